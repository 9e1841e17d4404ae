"""windrow.recsys.log.options: what is refused, names of columns and tables; splits are disjoint, complete, stable."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import RecipeError
from windrow.recsys.log.options import (
    FeatureOptions,
    LogOptions,
    LogSplitOptions,
    parse_instant,
    split_by_hash,
    split_by_time,
)

LOG = {"paths": (Path("a.csv"),), "format": "csv"}


def test_columns_and_tables() -> None:
    features = {
        "item": FeatureOptions(column="item_id"),
        "user": FeatureOptions(ids="hash", rows=10),
        "history": FeatureOptions(multi_hot=True, table="item"),
    }
    log = LogOptions(paths=(Path("a.csv"),), format="csv", features=features)
    assert [log.column_of(name) for name in features] == ["item_id", "user", "history"]
    assert log.tables() == {"item": ("item", "history"), "user": ("user",)}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ids": "hash"}, "needs rows"),
        ({"ids": "rows"}, "needs rows"),
        ({"ids": "hash", "rows": 1}, "rows = 1: expected at least 2"),
        ({"rows": 1}, "rows = 1: expected at least 2"),
        ({"ids": "hash", "rows": 5, "min_count": 2}, 'needs ids = "vocabulary"'),
        ({"max_length": 3}, "set multi_hot = true"),
        ({"weights": "w"}, "set multi_hot = true"),
    ],
)
def test_a_feature_is_checked(options: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        FeatureOptions(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dense": ("a", "a")}, "names a column twice"),
        ({"dense": ("label",)}, "is also an input"),
        ({"dense": ("x", "X")}, "dense columns 'x' and 'X' differ only in upper and lower case"),
        ({"features": {"a": FeatureOptions(), "A": FeatureOptions()}}, "features 'a' and 'A' differ only"),
        ({"features": {"time": FeatureOptions()}}, "a feature cannot be called 'time'"),
        ({"label": "click", "features": {"label": FeatureOptions(column="user")}}, "cannot be called 'label'"),
        (
            {"features": {"a": FeatureOptions(multi_hot=True, weights="w"), "a.weights": FeatureOptions()}},
            "cannot be called 'a.weights'",
        ),
        ({"features": {"a/b": FeatureOptions()}}, "must not be empty or hold"),
        ({"features": {"a": FeatureOptions(table="../t")}}, "must not be empty or hold"),
        ({"features": {"": FeatureOptions()}}, "must not be empty or hold"),
        ({"features": {"a": FeatureOptions(column="label")}}, "is also an input"),
        (
            {"features": {"a": FeatureOptions(table="t"), "b": FeatureOptions(table="t", min_count=2)}},
            "'a' and 'b' share table 't'",
        ),
    ],
)
def test_a_log_is_checked(options: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        LogOptions(**(LOG | options))  # type: ignore[arg-type]  # of any type


@given(st.lists(st.integers(-50, 50)), st.integers(-60, 60), st.integers(0, 60))
def test_split_by_time_is_what_it_says(times: list[int], first: int, length: int) -> None:
    cuts = (first, first + length)
    expected = [0 if time < cuts[0] else 1 if time < cuts[1] else 2 for time in times]
    assert split_by_time(np.array(times, np.int64), cuts).tolist() == expected


@given(st.integers(0, 2**32), st.permutations(range(40)))
def test_split_by_hash_knows_key_and_seed_alone(seed: int, order: list[int]) -> None:
    fractions = (0.5, 0.2, 0.3)
    codes = split_by_hash(np.arange(40), fractions, seed)
    assert set(codes.tolist()) <= {0, 1, 2}
    assert np.array_equal(split_by_hash(np.array(order), fractions, seed), codes[order])


def test_split_by_hash_has_the_shares_it_was_asked_for() -> None:
    codes = split_by_hash(np.arange(100_000), (0.7, 0.0, 0.3), 3)
    counts = np.bincount(codes, minlength=3) / len(codes)
    assert counts == pytest.approx([0.7, 0, 0.3], abs=0.01)
    assert (codes != split_by_hash(np.arange(100_000), (0.7, 0.0, 0.3), 4)).any()
    assert not split_by_hash(np.arange(1000), (1.0, 0.0, 0.0), 0).any()


def test_expected_splits() -> None:
    assert LogSplitOptions().expected_splits() == ("train", "validation", "test")
    assert LogSplitOptions(fractions=(0.9, 0.0, 0.1)).expected_splits() == ("train", "test")
    assert LogSplitOptions(by="files", test_paths=(Path("t"),)).expected_splits() == ("train", "test")
    everything = ("train", "validation", "test")
    instants = ("1", "2")
    options = LogSplitOptions(by="time", fractions=(1.0, 0.0, 0.0), instants=instants)
    assert options.expected_splits() == everything


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fractions": (0.5, 0.1, 0.1)}, "add up to 1"),
        ({"instants": ("1", "2")}, "expected two"),
        ({"by": "time", "instants": ("1",)}, "expected two"),
        ({"by": "time", "instants": ("2", "1")}, "validation must begin before test"),
        ({"by": "time", "instants": ("soon", "2")}, "'soon' is no whole number and no ISO date"),
        ({"by": "time", "column": "user"}, 'is for by = "hash"'),
        ({"test_paths": (Path("a"),)}, 'are for by = "files"'),
    ],
)
def test_options_are_checked(options: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        LogSplitOptions(**options)


def test_instants() -> None:
    instant = datetime(2019, 11, 24, 0, 3, 13, 442536, UTC)
    assert parse_instant("2019-11-24 00:03:13.442536") == round(instant.timestamp() * 1e6)
    assert parse_instant("2019-11-24 00:03:13.442536") == parse_instant("2019-11-24T01:03:13.442536+01:00")
    assert parse_instant("-17") == -17
