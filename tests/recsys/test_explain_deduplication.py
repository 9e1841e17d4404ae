"""windrow.recsys.explain_deduplication: what each step would save, and what is said about a log."""

import dataclasses
import json
import tomllib

import pytest

from windrow.comm.errors import RecipeError
from windrow.launch.recommendation_recipe import load_recommendation_recipe
from windrow.recsys.explain_deduplication import describe_deduplication, describe_groups, explain_deduplication
from windrow.recsys.log_survey import groups_for, open_and_survey

GROUPS = 'deduplication.groups=[["cart", "sellers"], ["history"]]'


def explain(recipe_file, *overrides, ranks=2):
    recipe = load_recommendation_recipe(recipe_file, overrides)
    store, found = open_and_survey(recipe, ranks=ranks, seed=recipe.run.seed)
    return explain_deduplication(recipe, store, found, ranks=ranks), found


def test_every_step_is_there_and_saves(planted_recipes):
    explained, found = explain(planted_recipes["time"], GROUPS)
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
    assert json.loads(json.dumps(dataclasses.asdict(explained)))["ranks"] == 2


def test_figures_of_a_step_do_not_depend_on_the_number_of_ranks_but_the_wire(planted_recipes):
    alone, _ = explain(planted_recipes["time"], GROUPS, ranks=1)
    four, _ = explain(planted_recipes["time"], GROUPS, ranks=4)
    assert not any("wire" in saving.what for saving in alone.savings)
    assert sum("wire" in saving.what for saving in four.savings) == 3
    lookups = [
        next(saving.without for saving in found.savings if saving.what == "rows looked up") for found in (alone, four)
    ]
    assert lookups[0] == pytest.approx(lookups[1], rel=0.1)


def test_groups_are_proposed_where_there_are_none(planted_recipes):
    explained, _ = explain(planted_recipes["time"])
    with pytest.raises(RecipeError, match=r"'cars'"):
        explain(planted_recipes["time"], 'deduplication.groups=[["cart", "cars"]]')
    assert explained.proposed
    assert ("cart", "sellers") in explained.groups
    assert set(explained.not_worthwhile) == {"item"}


def test_chance_is_told_from_sessions(planted_recipes):
    # The price is new in each sample, and in one of eight buckets.
    bounds = "transforms.level.bucketise=[-1.15, -0.67, -0.32, 0.0, 0.32, 0.67, 1.15]"
    explained, _ = explain(planted_recipes["time"], "transforms.level.dense=price", bounds)
    assert explained.repeated_by_chance == {"level": pytest.approx(32, rel=0.1)}
    assert explained.predicted_factors["level"] < 1.2
    assert "level" not in {name for group in explained.groups for name in group}


def test_an_order_that_is_not_known(planted_store, tmp_path):
    planted_store(tmp_path, order="sessions", time=False)
    explained, _ = explain(tmp_path / "planted.toml", GROUPS)
    assert "O1, O2 are not shown" in described(tmp_path / "planted.toml")
    assert {"O1", "O2"}.isdisjoint(saving.step for saving in explained.savings)


def described(recipe_file, *overrides, ranks=2):
    recipe = load_recommendation_recipe(recipe_file, overrides)
    return describe_deduplication(*explain(recipe_file, *overrides, ranks=ranks), recipe)


def test_the_table_of_steps(planted_recipes):
    text = described(planted_recipes["time"], GROUPS, "deduplication.compute=false")
    assert 'groups = [["cart", "sellers"], ["history"]]   # of the recipe' in text
    for words in (
        "compute, off",
        "read, on",
        "an epoch saves",
        "set deduplication.cluster = true and run windrow prepare again",
        "does not pay for features with a factor below 1.5: item (1.00).",
        "O1 changes nothing where all samples are in one file",
    ):
        assert words in text


def test_what_depends_on_ranks_and_model(planted_recipes):
    text = described(
        planted_recipes["sessions"], "training.shuffle=none", "model.sequences=[]", "model.sequence_query=none", ranks=1
    )
    assert "proposed, the recipe has none" in text
    assert "one rank sends nothing: --ranks N" in text
    assert "O6 changes nothing: no feature of a group is a sequence" in text
    assert "the store is clustered" in text
    assert "seldom meet" not in text


def test_groups_can_be_pasted(planted_recipes):
    for order, recipe_file in planted_recipes.items():
        recipe = load_recommendation_recipe(recipe_file)
        _, found = open_and_survey(recipe, ranks=1, seed=recipe.run.seed)
        groups = groups_for(recipe, found)
        text = describe_groups(groups, found, recipe, ranks=1)
        pasted = tomllib.loads(text[text.index("[deduplication]") :].split("\n\n")[0])["deduplication"]
        assert pasted["groups"] == [list(group) for group in groups]
        assert pasted.get("cluster", False) == (order == "time")
        for name in found.features:
            assert f"\n{name} " in text
        assert "\ncart, sellers " in text
        assert 'set training.shuffle = "sessions"' in text


def test_nothing_to_hold_once(planted_recipes):
    recipe = load_recommendation_recipe(planted_recipes["time"])
    _, found = open_and_survey(recipe, ranks=1, seed=recipe.run.seed)
    text = describe_groups((), found, recipe, ranks=1)
    assert "no feature has a factor above 1.5: there is nothing to hold once" in text
    assert "groups =" not in text
