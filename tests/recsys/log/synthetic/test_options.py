"""windrow.recsys.log.synthetic.options: what cannot be generated; the preset has the published statistics."""

import numpy as np
import pytest

from windrow.comm.errors import RecipeError
from windrow.recsys.log.synthetic.options import (
    FeatureGroup,
    SessionFeature,
    SessionLogOptions,
    published_statistics,
    recd,
)
from windrow.recsys.log.synthetic.sessions import popularity
from windrow.recsys.log.synthetic.statistics import expected_statistics

IDS_PER_FEATURE = 15.8
"""Ids of a sample in each feature of Meta's traces, and how often an id occurs among so many samples."""
REUSE, REUSE_SAMPLES = 6.9, 65_536

ITEM = SessionFeature(name="item", rows=10)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "time", "rows": 3}, "cannot be called 'time'"),
        ({"name": "a", "rows": 1, "effect": 0.5}, "effect = 0.5: needs at least 2 rows"),
    ],
)
def test_wrong_features(settings, words):
    with pytest.raises(RecipeError, match=words):
        SessionFeature(**settings)


@pytest.mark.parametrize(
    ("settings", "words"), [({"features": (ITEM,), "shifted": 0.5}, "give it a mean_length"), ({}, "is empty")]
)
def test_wrong_groups(settings, words):
    with pytest.raises(RecipeError, match=words):
        FeatureGroup(name="g", **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"groups": (FeatureGroup(name="g", features=(ITEM, ITEM)),)}, "two columns are called 'item'"),
        ({"groups": (FeatureGroup(name="g", dense=("session",)),)}, "two columns are called 'session'"),
        ({"groups": (FeatureGroup(name="g", dense=("a",)), FeatureGroup(name="g", dense=("b",)))}, "two groups"),
    ],
)
def test_wrong_logs(settings, words):
    with pytest.raises(RecipeError, match=words):
        SessionLogOptions(**{"groups": (), **settings})


def test_ids_of_a_sample_are_counted_without_empty_lists():
    pair = (ITEM, SessionFeature(name="shop", rows=3))
    options = SessionLogOptions(
        groups=(
            FeatureGroup(name="lists", features=pair, mean_length=10, empty=0.5),
            FeatureGroup(name="one", features=(SessionFeature(name="user", rows=4),), dense=("age",)),
        )
    )
    assert options.ids_per_sample() == 2 * 5 + 1
    assert [feature.name for feature in options.features] == ["item", "shop", "user"]
    assert options.dense == ("age",)


def test_the_preset_expects_what_is_published():
    expected, published = expected_statistics(recd()), published_statistics()
    assert expected.samples_per_session == published["samples_per_session"]
    for name in ("unchanged_share", "unchanged_id_share", "repeated_id_share"):
        assert getattr(expected, name) == pytest.approx(published[name], abs=0.005), name


def test_users_lists_are_long_and_repeat_and_items_ids_are_single_and_change():
    options = recd()
    expected = expected_statistics(options)
    lists = [f.name for group in options.groups if group.mean_length is not None for f in group.features]
    (item,) = [group for group in options.groups if group.name == "item"]
    assert min(expected.mean_length[name] for name in lists) > 5
    assert min(expected.unchanged[name] for name in lists) > 0.7
    assert item.mean_length is None
    assert max(expected.unchanged[feature.name] for feature in item.features) < 0.05
    assert 450 < options.ids_per_sample() < 550


def test_ids_are_used_again_as_often_as_in_published_traces():
    options = recd()
    lengths = expected_statistics(options).mean_length
    assert sum(lengths.values()) / len(lengths) == pytest.approx(IDS_PER_FEATURE, rel=0.02)
    distinct = 0.0
    for feature in options.features:
        draws = REUSE_SAMPLES * lengths[feature.name]
        distinct += float(-np.expm1(draws * np.log1p(-popularity(feature))).sum())
    reuse = REUSE_SAMPLES * sum(lengths.values()) / distinct
    assert reuse == pytest.approx(REUSE, rel=0.05)


def test_scales():
    small = recd(length_scale=0.1, rows_scale=0.001)
    assert small.ids_per_sample() < 75
    assert max(feature.rows for feature in small.features) == 3_000
    assert min(feature.rows for feature in small.features) == 4
    with pytest.raises(RecipeError, match="rows_scale = 0"):
        recd(rows_scale=0)
