"""windrow.launch.recipe: which kind of recipe a file is."""

from collections.abc import Callable
from pathlib import Path

import pytest

from windrow.comm.errors import RecipeError
from windrow.launch.recipe import Recipe, load_any_recipe
from windrow.launch.recommendation_recipe import RecommendationRecipe
from windrow.launch.settings import write_toml


@pytest.mark.parametrize(
    ("name", "kind"), [("tolokers", Recipe), ("cora", Recipe), ("open_bandit", RecommendationRecipe)]
)
def test_the_examples_are_told_apart(repository: Path, name: str, kind: type) -> None:
    assert isinstance(load_any_recipe(repository / "examples" / f"{name}.toml"), kind)


def test_overrides_reach_features(tmp_path: Path, click_recipe: Callable[..., RecommendationRecipe]) -> None:
    recipe = click_recipe(tmp_path)
    write_toml(tmp_path / "r.toml", recipe.settings())
    assert load_any_recipe(tmp_path / "r.toml") == recipe
    changed = load_any_recipe(tmp_path / "r.toml", ["log.features.user.rows=50", "tables.dim=4"])
    assert isinstance(changed, RecommendationRecipe)
    assert changed.log.features["user"].rows == 50
    assert list(changed.log.features) == ["item", "user"]
    assert changed.tables.dim == 4


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({}, "has neither a section .graph. nor .log.: give .graph. to train on a graph"),
        ({"graph": {}, "log": {}}, "has both sections .graph. and .log."),
    ],
)
def test_neither_and_both_are_refused(tmp_path: Path, sections: dict[str, object], words: str) -> None:
    write_toml(tmp_path / "r.toml", {"store": "s", **sections})
    with pytest.raises(RecipeError, match=words):
        load_any_recipe(tmp_path / "r.toml")
