"""A recipe of either kind, told by its sections: [graph] or [log]."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from windrow.comm.errors import RecipeError
from windrow.launch.recipe import Recipe, make_recipe
from windrow.launch.recommendation_recipe import RecommendationRecipe, make_recommendation_recipe
from windrow.launch.toml_file import read_toml, with_overrides

__all__ = ["AnyRecipe", "load_any_recipe"]

AnyRecipe: TypeAlias = Recipe | RecommendationRecipe
"""What can be trained."""


def load_any_recipe(path: Path, overrides: Sequence[str] = ()) -> AnyRecipe:
    """Read and check a recipe.

    Args:
        path: a TOML file. Relative paths in it, and in the overrides, start from its folder.
        overrides: ``SECTION.KEY=VALUE`` texts, as given to ``--set``.

    Returns:
        A graph's recipe where there is a section [graph], a click log's where there is [log].

    Raises:
        RecipeError: neither section is there, or both are; or as `windrow.launch.recipe.load_recipe`.
    """
    values = with_overrides({"name": path.stem, **read_toml(path)}, overrides)
    kinds = [section for section in ("graph", "log") if section in values]
    if len(kinds) != 1:
        raise RecipeError(
            f"{path}: has {'both sections [graph] and [log]' if kinds else 'neither a section [graph] nor [log]'}: "
            "give [graph] to train on a graph, or [log] to train a recommendation model on a log"
        )
    if kinds == ["graph"]:
        return make_recipe(values, source=str(path), base=path.parent)
    return make_recommendation_recipe(values, source=str(path), base=path.parent)
