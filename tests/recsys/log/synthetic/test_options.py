"""windrow.recsys.log.synthetic.options: what cannot be generated is refused."""

import pytest

from windrow.comm.errors import RecipeError
from windrow.recsys.log.synthetic.options import (
    FeatureGroup,
    SessionFeature,
    SessionLogOptions,
    check_order,
)

ITEM = SessionFeature(name="item", rows=10)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "time", "rows": 3}, "cannot be called 'time'"),
        ({"name": "a", "rows": 0}, "rows = 0"),
        ({"name": "a", "rows": 3, "skew": -1.0}, "skew = -1.0"),
        ({"name": "a", "rows": 1, "effect": 0.5}, "effect = 0.5: needs at least 2 rows"),
    ],
)
def test_wrong_features(settings, words):
    with pytest.raises(RecipeError, match=words):
        SessionFeature(**settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"features": (ITEM,), "unchanged": 1.5}, "unchanged = 1.5"),
        ({"features": (ITEM,), "shifted": 0.5}, "give it a mean_length"),
        ({"features": (ITEM,), "mean_length": 0.5}, "mean_length = 0.5"),
        ({}, "is empty"),
    ],
)
def test_wrong_groups(settings, words):
    with pytest.raises(RecipeError, match=words):
        FeatureGroup(name="g", **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"samples_per_session": 0.5}, "samples_per_session = 0.5"),
        ({"concurrent_sessions": 0}, "concurrent_sessions = 0"),
        ({"click_share": 1.0}, "click_share = 1.0"),
        ({"groups": (FeatureGroup(name="g", features=(ITEM, ITEM)),)}, "two columns are called 'item'"),
        ({"groups": (FeatureGroup(name="g", dense=("session",)),)}, "two columns are called 'session'"),
        (
            {"groups": (FeatureGroup(name="g", dense=("a",)), FeatureGroup(name="g", dense=("b",)))},
            "two groups",
        ),
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


def test_orders():
    check_order("time")
    with pytest.raises(RecipeError, match='order = "random"'):
        check_order("random")
