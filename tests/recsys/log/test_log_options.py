"""windrow.recsys.log.options: what is refused, and names of columns and tables."""

from pathlib import Path
from typing import Any

import pytest

from windrow.comm.errors import RecipeError
from windrow.recsys.log.options import FeatureOptions, LogOptions

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
        ({"ids": "names"}, "expected one of vocabulary, hash, rows"),
        ({"ids": "hash"}, "needs rows"),
        ({"ids": "rows"}, "needs rows"),
        ({"ids": "hash", "rows": 1}, "rows = 1: expected at least 2"),
        ({"rows": 1}, "rows = 1: expected at least 2"),
        ({"ids": "rows", "rows": 0}, "rows = 0: expected at least 1"),
        ({"min_count": 0}, "min_count = 0"),
        ({"ids": "hash", "rows": 5, "min_count": 2}, 'needs ids = "vocabulary"'),
        ({"max_length": 3}, "set multi_hot = true"),
        ({"weights": "w"}, "set multi_hot = true"),
        ({"multi_hot": True, "max_length": 0}, "max_length = 0"),
        ({"separator": ""}, "separator = ''"),
    ],
)
def test_a_feature_is_checked(options: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        FeatureOptions(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"paths": ()}, "paths is empty"),
        ({"format": "xml"}, "expected one of parquet"),
        ({"dense_transform": "sqrt"}, "expected one of none, log1p, standard"),
        ({"dense": ("a", "a")}, "names a column twice"),
        ({"dense": ("label",)}, "is also an input"),
        ({"dense": ("x", "X")}, "dense columns 'x' and 'X' differ only in upper and lower case"),
        ({"features": {"a": FeatureOptions(), "A": FeatureOptions()}}, "features 'a' and 'A' differ only"),
        ({"features": {"time": FeatureOptions()}}, "a feature cannot be called 'time'"),
        (
            {"label": "click", "features": {"label": FeatureOptions(column="user")}},
            "cannot be called 'label'",
        ),
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
