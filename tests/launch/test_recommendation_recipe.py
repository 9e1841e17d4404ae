"""windrow.launch.recommendation_recipe: sections arrive, mistakes are named with place and cure."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from windrow.comm.errors import RecipeError
from windrow.launch.recommendation_recipe import (
    RecommendationRecipe,
    load_recommendation_recipe,
    make_recommendation_recipe,
)
from windrow.launch.settings import read_toml, write_toml


def test_every_shipped_recipe_loads(repository: Path) -> None:
    recipes = [path for path in (repository / "examples").glob("*.toml") if "log" in read_toml(path)]
    assert "open_bandit" in {load_recommendation_recipe(path).name for path in recipes}


INTERACTIONS = {"log": {"paths": ["g.npz"], "format": "interactions"}, "model": {"kind": "two_tower"}}


def test_interactions_need_no_store() -> None:
    values = {"name": "x", **INTERACTIONS}
    assert make_recommendation_recipe(values, source="r.toml", base=Path("/base")).log.features == {}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"log": INTERACTIONS["log"], "store": "s"}, 'format = "interactions" and model.kind = "dlrm"'),
        ({"log": {"paths": ["a.csv"], "format": "csv"}}, "needs a value for 'store'"),
        (
            INTERACTIONS | {"log": {"paths": ["a", "b"], "format": "interactions"}},
            "give one path in log.paths",
        ),
        (INTERACTIONS | {"deduplication": {"groups": [["history"]]}}, "are for prepared logs"),
        (
            {
                "log": {"paths": ["a.csv"], "format": "csv"},
                "store": "s",
                "deduplication": {"groups": [["user"]], "cluster": True},
            },
            'set training.shuffle = "sessions"',
        ),
    ],
)
def test_contradictions_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        make_recommendation_recipe({"name": "x", **values}, source="r.toml", base=Path("/base"))


def test_a_recipe_survives_its_file(
    tmp_path: Path, click_recipe: Callable[..., RecommendationRecipe]
) -> None:
    recipe = click_recipe(tmp_path, plan={"planner": "row_wise"})
    write_toml(tmp_path / "r.toml", recipe.settings())
    assert load_recommendation_recipe(tmp_path / "r.toml") == recipe
    assert recipe.store == tmp_path / "clicks"
    assert recipe.log.paths == (tmp_path / "log.csv",)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"log": {"featurs": {}}}, r"\[log\] has no key 'featurs'. Did you mean 'features'"),
        (
            {"log": {"features": {"item": {"row": 3}}}},
            r"\[log\.features\.item\] has no key 'row'. Did you mean 'rows'",
        ),
        ({"tables": {"dim": 3}}, r"\[tables\].*dim = 3"),
        ({"training": {"epochs": 0}}, r"\[training\].*epochs = 0"),
        ({"plan": {"planner": "magic"}}, r'\[plan\] planner = "magic": expected one of'),
    ],
)
def test_mistakes_are_named(
    click_recipe: Callable[..., RecommendationRecipe], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(RecipeError, match=words):
        click_recipe(Path("/base"), **changes)


def test_a_log_is_needed() -> None:
    with pytest.raises(RecipeError, match="needs the section 'log'"):
        make_recommendation_recipe({"name": "x", "store": "s"}, source="r.toml", base=Path("/base"))


DEDUPLICATED = {"deduplication": {"groups": [["item"]]}}


def test_what_a_checkpoint_depends_on(click_recipe: Callable[..., RecommendationRecipe]) -> None:
    recipe = click_recipe(Path("/a"))
    elsewhere = click_recipe(Path("/b"), plan={"planner": "row_wise"}, run={"threads": 3})
    assert recipe.decisive_settings() == elsewhere.decisive_settings()
    for changes in (
        {"run": {"seed": 1}},
        {"tables": {"dim": 4}},
        {"training": {"batch_size": 7}},
        DEDUPLICATED,
    ):
        assert recipe.decisive_settings() != click_recipe(Path("/a"), **changes).decisive_settings()
