"""windrow.recsys.explain_deduplication: what each step would save, and what is said about a log."""

import dataclasses
import json
import tomllib

import pytest

from windrow.comm.errors import RecipeError
from windrow.launch.recommendation_recipe import load_recommendation_recipe
from windrow.recsys.explain_deduplication import describe_deduplication, describe_groups, explain_deduplication
from windrow.recsys.log.store import LogStore
from windrow.recsys.log_survey import groups_for, open_and_survey

GROUPS = 'deduplication.groups=[["cart", "sellers"], ["history"]]'


def explain(recipe_file, *overrides, ranks=2):
    recipe = load_recommendation_recipe(recipe_file, overrides)
    store, found = open_and_survey(recipe, ranks=ranks)
    return explain_deduplication(recipe, store, found, ranks=ranks), found


def test_every_step_is_there_and_saves(planted_recipes):
    explained, _ = explain(planted_recipes["time"], GROUPS)
    assert [saving.step for saving in explained.savings] == ["O3", "O4", "O5", "O5", "O5", "O5", "O7", "O7"]
    assert not explained.proposed
    assert explained.groups == (("cart", "sellers"), ("history",))
    for saving in explained.savings:
        assert saving.left < saving.without
    assert explained.steps * explained.batch_size == pytest.approx(found_samples(planted_recipes["time"]))
    assert json.loads(json.dumps(dataclasses.asdict(explained)))["ranks"] == 2


def test_each_block_of_an_array_is_looked_up_and_sent(planted_recipes):
    sharded = 'tables.cart={form="robe", compression=2, robe_block=8, robe_sharded=true}'
    amounts = []
    for overrides in ([], [sharded]):
        explained, found = explain(planted_recipes["time"], GROUPS, "plan.replicate_below_bytes=0", *overrides)
        amounts.append({saving.what: saving for saving in explained.savings})
    dense, blocks = (of_kind["rows looked up"].without for of_kind in amounts)
    assert blocks - dense == pytest.approx(2 * found.counted_ids("cart"))
    dense, blocks = (of_kind["vectors on the wire"].without for of_kind in amounts)
    # One rank sent to one other; now either does, but for lists of which it has no block.
    assert 0.8 < (blocks - dense) / (found.counted_samples() * VECTOR_BYTES) < 1


def test_groups_of_ranks_send_each_other_no_vectors(planted_recipes):
    explained, _ = explain(planted_recipes["time"], GROUPS, "plan.replica_groups=2")
    assert explained.group_size == 1
    assert "vectors on the wire" not in {saving.what for saving in explained.savings}
    assert "rows looked up" in {saving.what for saving in explained.savings}


def found_samples(recipe_file):
    return LogStore.open(load_recommendation_recipe(recipe_file).store).split("train").rows


POOLED, SEQUENCES = ("item", "user", "cart", "tags", "sellers"), ("history",)
MULTI_HOT = ("cart", "sellers", "history", "tags")
VECTOR_BYTES = 4 * 16


def means(found, group):
    """Distinct rows of the mean batch, and ids in them, by Python's sets."""
    rows, ids = 0, dict.fromkeys(group, 0)
    for places in found.batches:
        columns = [found.codes[name][places].tolist() for name in group]
        first = {}
        for place, key in zip(places, zip(*columns, strict=True), strict=True):
            first.setdefault(key, place)
        rows += len(first)
        for name in group:
            ids[name] += int(found.lengths[name][list(first.values())].sum())
    count = len(found.batches)
    return rows / count, {name: number / count for name, number in ids.items()}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("deduplicated", [False, True])
def test_against_counting(planted_recipes, ranks, deduplicated):
    explained, found = explain(planted_recipes["sessions"], GROUPS, ranks=ranks)
    counts = {saving.what: saving.left if deduplicated else saving.without for saving in explained.savings}
    size = found.counted_samples()
    rows = dict.fromkeys(found.features, size)
    ids = {name: found.counted_ids(name) for name in found.features}
    group_rows = size * len(explained.groups)
    if deduplicated:
        group_rows = 0
        for group in explained.groups:
            distinct, of_distinct = means(found, group)
            group_rows += distinct
            rows |= dict.fromkeys(group, distinct)
            ids |= of_distinct
    inverses = 8 * size * len(explained.groups) * deduplicated
    held = ranks * (8 * sum(ids.values()) + 8 * sum(rows.values()) + inverses)
    assert counts["lists that readers hold"] == pytest.approx(held)
    assert counts["ids transformed"] == pytest.approx(ranks * ids["history"])
    assert counts["rows looked up"] == pytest.approx(ranks * sum(ids.values()))
    assert counts["items of sequence towers"] == pytest.approx(ranks * ids["history"])
    assert counts["rows computed of groups"] == pytest.approx(ranks * group_rows)
    # Whole tables: each is on one rank, to which all others send.
    others = ranks - 1
    vectors = sum(rows[name] for name in POOLED) + sum(ids[name] for name in SEQUENCES)
    assert counts.get("vectors on the wire", 0) == pytest.approx(others * vectors * VECTOR_BYTES)
    assert counts.get("gradients on the wire", 0) == counts.get("vectors on the wire", 0)
    lengths = sum(rows[name] for name in POOLED if name in MULTI_HOT)
    headers = 8 * ranks * (2 + len(found.features) + deduplicated * 2)
    expected = others * (4 * sum(ids.values()) + 4 * lengths + (headers if others else 0))
    assert counts.get("ids on the wire", 0) == pytest.approx(expected, abs=8 * ranks * 8)


def test_ids_that_are_looked_up_once(planted_recipes):
    plain, _ = explain(planted_recipes["sessions"], GROUPS)
    once, found = explain(planted_recipes["sessions"], GROUPS, "deduplication.index_dedup=true")
    for what, number_bytes in (("ids on the wire", 4), ("vectors on the wire", VECTOR_BYTES)):
        before, after = (
            next(saving.without for saving in explained.savings if saving.what == what) for explained in (plain, once)
        )
        (name,) = SEQUENCES
        saved = number_bytes * (found.counted_ids(name) - found.distinct_ids(name))
        assert before - after == pytest.approx(saved)
        assert saved > 0


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
    ):
        assert words in text


def test_what_depends_on_ranks_and_model(planted_recipes):
    text = described(
        planted_recipes["sessions"], "training.shuffle=none", "model.sequences=[]", "model.sequence_query=none", ranks=1
    )
    assert "proposed, the recipe has none" in text
    assert "one rank sends nothing: --ranks N" in text
    assert "items of sequence towers" not in text
    assert "the store is clustered" in text
    assert "seldom meet" not in text


def test_groups_can_be_pasted(planted_recipes):
    for order, recipe_file in planted_recipes.items():
        recipe = load_recommendation_recipe(recipe_file)
        _, found = open_and_survey(recipe, ranks=1)
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
    _, found = open_and_survey(recipe, ranks=1)
    text = describe_groups((), found, recipe, ranks=1)
    assert "no feature has a factor above 1.5: there is nothing to hold once" in text
    assert "groups =" not in text
