"""The recipe of a recommendation model: every setting of a run in one TOML file.

Its sections are those of `windrow.recsys.recipe_sections`, and [run].
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from windrow.comm.options import checked_dataclass
from windrow.launch.rank_process import RunOptions
from windrow.launch.recipe_file import read_recipe
from windrow.launch.settings import parse_settings, refuse_sections, settings_to_dict
from windrow.recsys.recipe_sections import RecommendationSections

__all__ = ["RecommendationRecipe", "load_recommendation_recipe", "make_recommendation_recipe"]

NOT_OF_LOGS = {
    "cache": 'rows of tables learn, so that copies are part of a plan (planner = "oper" finds which rows have some)',
    "pipeline": "lookups of the next two minibatches are always under way",
    "full_graph": "a sample has no neighbours",
}
"""Sections of a graph's recipe, and why a log's has none."""

DECISIVE_SECTIONS = ("interactions", "transforms", "deduplication", "tables", "wire", "model", "training", "evaluation")


@checked_dataclass
class RecommendationRecipe(RecommendationSections):
    """Every setting of a run on a click log."""

    run: RunOptions = field(default_factory=RunOptions)
    """Where and how the run happens."""

    def settings(self) -> dict[str, Any]:
        """Every setting as nested dictionaries that TOML can hold; paths are absolute."""
        return settings_to_dict(self)

    def decisive_settings(self) -> dict[str, Any]:
        """The settings that the outcome depends on: a checkpoint is gone on from only under the same.

        Log and split are told by the fingerprint of the prepared log instead, so that a moved file is the same, and
        the plan is left out, so that a run may go on under another plan and with another number of ranks.
        """
        everything = self.settings()
        return {"seed": self.run.seed, **{section: everything[section] for section in DECISIVE_SECTIONS}}


def load_recommendation_recipe(path: Path, overrides: Sequence[str] = ()) -> RecommendationRecipe:
    """Read and check a recipe, as `windrow.launch.recipe.load_recipe`."""
    return make_recommendation_recipe(read_recipe(path, overrides, kind="log"), source=str(path), base=path.parent)


def make_recommendation_recipe(values: Mapping[str, Any], *, source: str, base: Path) -> RecommendationRecipe:
    """Check a recipe that is already a nested dictionary; messages name the source, paths start from the base."""
    refuse_sections(values, NOT_OF_LOGS, "log", source=source)
    return parse_settings(RecommendationRecipe, values, source=source, base=base)
