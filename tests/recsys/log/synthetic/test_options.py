"""windrow.recsys.log.synthetic.options: what cannot be generated, and the preset."""

import pytest

from windrow.comm.errors import RecipeError
from windrow.recsys.log.synthetic.options import FeatureGroup, SessionFeature, SessionLogOptions, recd

ITEM = SessionFeature(name="item", rows=10)


def test_lists_alone_move_on():
    with pytest.raises(RecipeError, match="give it a mean_length"):
        FeatureGroup(name="g", features=(ITEM,), shifted=0.5)


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


def test_scales():
    small = recd(length_scale=0.1, rows_scale=0.001)
    assert small.ids_per_sample() < 75
    assert max(feature.rows for feature in small.features) == 3_000
    assert min(feature.rows for feature in small.features) == 4
    with pytest.raises(RecipeError, match="rows_scale = 0"):
        recd(rows_scale=0)
