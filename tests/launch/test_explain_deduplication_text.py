"""windrow.launch.explain_deduplication: what is said about a log."""

import tomllib

import pytest

from windrow.launch.explain_deduplication import (
    describe_deduplication,
    describe_groups,
    explain_deduplication,
    groups_line,
)
from windrow.launch.log_survey import groups_for, open_and_survey
from windrow.launch.recommendation_recipe import load_recommendation_recipe

GROUPS = 'deduplication.groups=[["cart", "sellers"], ["history"]]'


@pytest.fixture(scope="module")
def folders(planted_store, tmp_path_factory):
    found = {}
    for order in ("time", "sessions"):
        found[order] = tmp_path_factory.mktemp(order)
        planted_store(found[order], order=order)
    return found


def described(folder, *overrides, ranks=2):
    recipe = load_recommendation_recipe(folder / "planted.toml", overrides)
    store, found = open_and_survey(recipe, ranks=ranks)
    return describe_deduplication(explain_deduplication(recipe, store, found, ranks=ranks), found, recipe)


def test_the_table_of_steps(folders):
    text = described(folders["time"], GROUPS, "deduplication.compute=false")
    assert 'groups = [["cart", "sellers"], ["history"]]   # of the recipe' in text
    lines = text.splitlines()
    header = next(line for line in lines if line.startswith("step"))
    assert header.split("  ")[0] == "step"
    for word in ("switch", "without", "with", "factor", "as read", "an epoch saves"):
        assert word in header
    rows = [line for line in lines if line.startswith("O") and " x" in line]
    assert [row[:2] for row in rows] == ["O1", "O2", "O3", "O4", "O5", "O5", "O5", "O5", "O6", "O7", "O7"]
    assert "compute, off" in text
    assert "read, on" in text
    assert "set deduplication.cluster = true and run windrow prepare again" in text
    assert "does not pay for features with a factor below 1.5: item (1.00)." in text
    assert "O1 changes nothing where all samples are in one file" in text


def test_what_depends_on_ranks_and_model(folders):
    text = described(
        folders["sessions"],
        "training.shuffle=none",
        "model.sequences=[]",
        "model.sequence_query=none",
        ranks=1,
    )
    assert "proposed, the recipe has none" in text
    assert "one rank sends nothing: --ranks N" in text
    assert "O6 changes nothing: no feature of a group is a sequence" in text
    assert "the store is clustered" in text
    assert "seldom meet" not in text


def test_an_order_that_is_not_known(planted_store, tmp_path):
    planted_store(tmp_path, order="sessions", time=False)
    assert "O1, O2 are not shown" in described(tmp_path)


def test_groups_can_be_pasted(folders):
    for order, folder in folders.items():
        recipe = load_recommendation_recipe(folder / "planted.toml")
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


def test_nothing_to_hold_once(folders):
    recipe = load_recommendation_recipe(folders["time"] / "planted.toml")
    _, found = open_and_survey(recipe, ranks=1)
    text = describe_groups((), found, recipe, ranks=1)
    assert "no feature has a factor above 1.5: there is nothing to hold once" in text
    assert "groups =" not in text


def test_names_are_written_as_toml_reads_them():
    line = groups_line([("größe", 'say "x"'), ("b",)])
    assert tomllib.loads(line)["groups"] == [["größe", 'say "x"'], ["b"]]
