"""The recipe of a graph: every setting of a run in one TOML file; and the reader of recipes of either kind.

Each section is a dataclass beside the component that it configures. A recipe is checked before any other process is
involved. Its sections tell its kind: [graph], or [log] for `windrow.launch.recommendation_recipe`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, TypeAlias

from windrow.caching.selection import CacheOptions
from windrow.comm.errors import RecipeError
from windrow.comm.options import checked_dataclass
from windrow.comm.wire import SHORTER, WireOptions
from windrow.gnn.cache_choice import Sampling
from windrow.gnn.evaluation import EvaluationOptions
from windrow.gnn.full_graph import FullGraphOptions
from windrow.gnn.models import ModelOptions
from windrow.gnn.partitioning import PartitionJob
from windrow.gnn.pipeline import PipelineOptions
from windrow.launch.rank_process import RunOptions
from windrow.launch.recipe_file import read_recipe
from windrow.launch.recommendation_recipe import RecommendationRecipe, make_recommendation_recipe
from windrow.launch.settings import parse_settings, refuse_sections, settings_to_dict
from windrow.recsys.tables.options import TableOptions

__all__ = ["VERTEX_TABLE", "AnyRecipe", "Recipe", "load_any_recipe", "load_recipe", "make_any_recipe", "make_recipe"]

VERTEX_TABLE = "vertex"
"""Name of the table of learnt rows of vertices."""

NOT_OF_GRAPHS = {
    "plan": "each row of a vertex that is learnt is where its vertex is, as the partition has it",
    "deduplication": "a minibatch names each of its vertices once as it is",
}
"""Sections of a log's recipe, and why a graph's has none."""

OF_SAMPLES = {
    "sampler": ("storage",),
    "cache": tuple(each.name for each in dataclasses.fields(CacheOptions)),
    "pipeline": tuple(each.name for each in dataclasses.fields(PipelineOptions)),
    "training": ("accumulate",),
    "evaluation": ("method", "fanouts", "batch_size"),
}
"""Settings that full-graph training has no use for. How minibatches are made (fanouts, order, batch size) is not among
them: recipes say it of when they sample."""

DECISIVE_SECTIONS = ("model", "sampler", "full_graph", "wire", "training", "evaluation")


@checked_dataclass
class Recipe(PartitionJob):
    """Every setting of a run."""

    name: str
    """Names the run folder; the file's name without ".toml" where it is not given."""
    model: ModelOptions = field(default_factory=ModelOptions)
    """The network."""
    tables: TableOptions = field(default_factory=TableOptions)
    """How the learnt rows of vertices (`model.embedding`) are stored, and how they learn."""
    full_graph: FullGraphOptions = field(default_factory=FullGraphOptions)
    """Training on the whole graph at once, without sampling."""
    cache: CacheOptions = field(default_factory=CacheOptions)
    """Which rows of other ranks are kept on each."""
    pipeline: PipelineOptions = field(default_factory=PipelineOptions)
    """How far ahead of training minibatches are made."""
    wire: WireOptions = field(default_factory=WireOptions)
    """In which number formats features and gradients travel between ranks."""
    evaluation: EvaluationOptions = field(default_factory=EvaluationOptions)
    """How and when it is measured."""
    run: RunOptions = field(default_factory=RunOptions)
    """Where and how the run happens."""

    def __post_init__(self) -> None:
        """Check what concerns two sections.

        Raises:
            RecipeError: names both settings, their values and the cure.
        """
        if self.tables != TableOptions() and not self.model.embedding:
            raise RecipeError(
                "the section [tables] is about rows of vertices that are learnt, and there are none: set "
                "model.embedding = true, or leave the section out"
            )
        if self.full_graph.enabled:
            self._check_full_graph()
            return
        if self.full_graph != FullGraphOptions():
            raise RecipeError(
                "the section [full_graph] counts for nothing where minibatches are sampled: set full_graph.enabled = "
                "true, or leave it out"
            )
        self._check_fanouts("sampler", self.sampler.fanouts)
        if self.evaluation.fanouts:
            self._check_fanouts("evaluation", self.evaluation.fanouts)
        self.wire.check_vertices(SHORTER[self.sampler.storage], learnt=self.model.embedding)

    def _check_full_graph(self) -> None:
        """Refuse what has no meaning without sampling."""
        for section, names in OF_SAMPLES.items():
            given = getattr(self, section)
            defaults = type(given)()
            for name in names:
                value, only = getattr(given, name), getattr(defaults, name)
                if value != only:
                    raise RecipeError(
                        f"{section}.{name} = {value!r} with full_graph.enabled = true, where every step takes "
                        f"all vertices and nothing is sampled: leave it out ({only!r})"
                    )

    def _check_fanouts(self, section: str, fanouts: Sequence[int]) -> None:
        if len(fanouts) != self.model.num_layers:
            raise RecipeError(
                f"{section}.fanouts = {list(fanouts)} has {len(fanouts)} hops, but model.num_layers = "
                f"{self.model.num_layers}: give one fanout for each layer, or change the number of layers"
            )

    @property
    def vertex_table(self) -> TableOptions:
        """How the learnt rows of vertices are stored, and how they learn."""
        return self.tables.of(VERTEX_TABLE)

    @property
    def sampling(self) -> Sampling:
        """What its caches are chosen by."""
        cache = self.cache
        if self.run.device != "cpu":
            cache = dataclasses.replace(cache, shared_memory=False)  # CPUs alone read each other's rows.
        return Sampling(
            sampler=self.sampler,
            cache=cache,
            wire=self.wire,
            batch_size=self.training.batch_size,
            epochs=self.training.epochs,
            seed=self.run.seed,
        )

    def settings(self) -> dict[str, Any]:
        """Every setting as nested dictionaries that TOML can hold; paths are absolute."""
        return settings_to_dict(self)

    def decisive_settings(self) -> dict[str, Any]:
        """The settings that the outcome depends on: a checkpoint is gone on from only under the same.

        The graph is told by its fingerprint instead, so that a moved file is the same graph, and the partition
        is left out, so that a run may go on with another number of ranks.
        """
        everything = self.settings()
        sections = (*DECISIVE_SECTIONS, "tables") if self.model.embedding else DECISIVE_SECTIONS
        return {"seed": self.run.seed, **{section: everything[section] for section in sections}}


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read and check a recipe.

    Args:
        path: a TOML file. Relative paths in it start from its folder.
        overrides: ``SECTION.KEY=VALUE`` texts, as given to ``--set``; their paths start from the current folder.

    Raises:
        RecipeError: the file cannot be read, or a setting is unknown, missing, of the wrong type, out of range,
            or contradicts another; the message names file, section, key, value and cure.
    """
    return make_recipe(read_recipe(path, overrides, kind="graph"), source=str(path), base=path.parent)


def make_recipe(values: Mapping[str, Any], *, source: str, base: Path) -> Recipe:
    """Check a recipe that is already a nested dictionary; messages name the source, paths start from the base."""
    refuse_sections(values, NOT_OF_GRAPHS, "graph", source=source)
    recipe = parse_settings(Recipe, values, source=source, base=base)
    return dataclasses.replace(recipe, graph=recipe.graph.resolved(base.absolute()))


AnyRecipe: TypeAlias = Recipe | RecommendationRecipe
"""What can be trained."""


def load_any_recipe(path: Path, overrides: Sequence[str] = ()) -> AnyRecipe:
    """Read and check a recipe, as `load_recipe`: a graph's where there is a section [graph], a log's where [log] is.

    Raises:
        RecipeError: neither section is there, or both are; or as `load_recipe`.
    """
    return make_any_recipe(read_recipe(path, overrides), source=str(path), base=path.parent)


def make_any_recipe(values: Mapping[str, Any], *, source: str, base: Path) -> AnyRecipe:
    """Check a recipe of either kind that is already a nested dictionary, as `make_recipe`."""
    make = make_recipe if "graph" in values else make_recommendation_recipe
    return make(values, source=source, base=base)
