"""windrow.launch.explain_deduplication: each step's saving on a log whose repeats are known."""

import json

import pytest

from windrow.comm.errors import RecipeError
from windrow.launch.explain_deduplication import explain_deduplication
from windrow.launch.log_survey import open_and_survey
from windrow.launch.recommendation_recipe import load_recommendation_recipe

GROUPS = 'deduplication.groups=[["cart", "sellers"], ["history"]]'


def explain(recipe_file, *overrides, ranks=2):
    recipe = load_recommendation_recipe(recipe_file, overrides)
    store, found = open_and_survey(recipe, ranks=ranks)
    return explain_deduplication(recipe, store, found, ranks=ranks), found


@pytest.fixture(scope="module")
def recipe_file(planted_store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    planted_store(folder)
    return folder / "planted.toml"


def test_every_step_is_there_and_saves(recipe_file):
    explained, found = explain(recipe_file, GROUPS)
    assert [saving.step for saving in explained.savings] == [
        "O1", "O2", "O3", "O4", "O5", "O5", "O5", "O5", "O6", "O7", "O7",
    ]  # fmt: skip
    assert not explained.proposed
    assert explained.groups == (("cart", "sellers"), ("history",))
    by_name = {(saving.step, saving.what): saving for saving in explained.savings}
    items = by_name["O7", "items of sequence towers"]
    factor = found.clustered.num_ids("history") / found.clustered.distinct(["history"])[1]["history"]
    assert items.without / items.clustered == pytest.approx(factor)
    for saving in explained.savings:
        if saving.step not in {"O1", "O2"}:
            assert saving.clustered < saving.without
        # Padding is the same in any order.
        if saving.step not in {"O1", "O2", "O6"}:
            assert saving.clustered < saving.as_read, "in clustered batches more repeats"
    assert by_name["O2", "samples on disk"].clustered < 0.95 * by_name["O2", "samples on disk"].without
    assert by_name["O1", "samples on disk"].clustered == by_name["O1", "samples on disk"].without, "one file"
    assert explained.steps * explained.batch_size == pytest.approx(found.split_samples)
    assert json.loads(json.dumps(explained.to_dict()))["ranks"] == 2


def test_figures_of_a_step_do_not_depend_on_the_number_of_ranks_but_the_wire(recipe_file):
    alone, _ = explain(recipe_file, GROUPS, ranks=1)
    four, _ = explain(recipe_file, GROUPS, ranks=4)
    assert not any("wire" in saving.what for saving in alone.savings)
    assert sum("wire" in saving.what for saving in four.savings) == 3
    lookups = [
        next(saving.without for saving in found.savings if saving.what == "rows looked up")
        for found in (alone, four)
    ]
    assert lookups[0] == pytest.approx(lookups[1], rel=0.1)


def test_groups_are_proposed_where_there_are_none(recipe_file):
    explained, _ = explain(recipe_file)
    assert explained.proposed
    assert ("cart", "sellers") in explained.groups
    assert set(explained.not_worthwhile) == {"item"}


def test_chance_is_told_from_sessions(recipe_file):
    # The price is new in each sample, and in one of eight buckets.
    bounds = "transforms.level.bucketise=[-1.15, -0.67, -0.32, 0.0, 0.32, 0.67, 1.15]"
    explained, _ = explain(recipe_file, "transforms.level.dense=price", bounds)
    assert explained.repeated_by_chance == {"level": pytest.approx(32, rel=0.1)}
    assert explained.predicted_factors["level"] < 1.2
    assert "level" not in {name for group in explained.groups for name in group}


def test_a_group_of_an_unknown_feature(recipe_file):
    with pytest.raises(RecipeError, match=r"'cars'"):
        explain(recipe_file, 'deduplication.groups=[["cart", "cars"]]')


def test_an_order_that_is_not_known(planted_store, tmp_path):
    planted_store(tmp_path, order="sessions", time=False)
    explained, _ = explain(tmp_path / "planted.toml", GROUPS)
    assert {"O1", "O2"}.isdisjoint(saving.step for saving in explained.savings)
