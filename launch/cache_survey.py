"""What caches of several sizes would leave to be asked for, for all parts of a graph, in one process."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from windrow.caching.auto_capacity import automatic_capacities, rows_that_fit
from windrow.caching.samplers import find_samplers
from windrow.caching.selection import cache_capacity
from windrow.gnn.partitioned import PartitionedGraph
from windrow.launch.part_ranking import rank_part, row_sizes
from windrow.launch.recipe import Recipe

__all__ = ["CacheSize", "CacheSurvey", "survey_caches"]


@dataclass(frozen=True, kw_only=True, eq=False)
class CacheSize:
    """A size of the caches, and what it leaves to be asked for."""

    alpha: float
    """Replication factor."""
    kept: npt.NDArray[np.int64]
    """int64 [parts], rows in each cache."""
    asked: npt.NDArray[np.float64]
    """float64 [parts, parts], rows that each rank asks each for in an epoch, in expectation."""
    everything: bool
    """Whether each rank keeps every row, so that there is no exchange."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CacheSurvey:
    """Sizes of caches, compared."""

    steps: int
    """Minibatches of a rank in an epoch."""
    input_rows: float
    """Rows, local and remote, that all minibatches of an epoch need, in expectation."""
    sizes: tuple[CacheSize, ...]
    """One for each alpha that was asked for, in that order."""
    automatic: CacheSize
    """What ``cache.alpha = "auto"`` keeps."""
    everything: CacheSize
    """Every rank keeps every row."""
    worthwhile: int
    """Rows that are worth keeping on the rank where most are, whatever memory there is."""


def survey_caches(graph: PartitionedGraph, recipe: Recipe, alphas: Sequence[float]) -> CacheSurvey:
    """Rank the remote rows of every part and see what caches leave.

    Args:
        graph: topology and training vertices; of its features only shape and dtype count.
        recipe: as it would be trained.
        alphas: replication factors, in any order.

    Cost:
        That of `windrow.launch.part_ranking.rank_part` for every part, one after another; memory for one at a time.
    """
    parts, vertices = graph.book.num_parts, graph.num_vertices
    _, copy_bytes = row_sizes(recipe.sampler, graph.features)
    affordable = rows_that_fit(recipe.cache.memory_gib, copy_bytes)
    by_alpha = [cache_capacity(alpha, vertices, parts) for alpha in alphas]
    remote = [vertices - graph.book.part_size(part) for part in range(parts)]

    # Behind the sizes asked for stand the two that depend on the part: what is worth it and fits, and everything.
    kept = np.empty((len(alphas) + 2, parts), np.int64)
    asked = np.empty((len(alphas) + 2, parts, parts))
    samplers = find_samplers(graph.indptr.numpy(), graph.indices.numpy())
    worthwhile, input_rows, steps = [], 0.0, 0
    for part in range(parts):
        ranking = rank_part(graph, part, recipe, samplers=samplers)
        worthwhile.append(ranking.worthwhile(recipe.training.epochs))
        capacities = [*by_alpha, min(worthwhile[-1], affordable), remote[part]]
        kept[:, part] = [ranking.num_kept(capacity) for capacity in capacities]
        asked[:, part] = ranking.expected_rows(capacities)
        input_rows += ranking.input_rows
        steps = ranking.steps

    def size(index: int, alpha: float) -> CacheSize:
        everything = bool((kept[index] == remote).all())
        return CacheSize(alpha=alpha, kept=kept[index], asked=asked[index], everything=everything)

    everything = size(-1, max(remote) * parts / vertices)
    capacities = automatic_capacities(worthwhile, remote, copy_bytes, recipe.cache.memory_gib)
    partly = size(-2, max(capacities) * parts / vertices)
    return CacheSurvey(
        steps=steps,
        input_rows=input_rows,
        sizes=tuple(size(index, alpha) for index, alpha in enumerate(alphas)),
        automatic=everything if capacities == remote else partly,
        everything=everything,
        worthwhile=max(worthwhile),
    )
