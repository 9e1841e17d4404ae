"""Which remote rows each rank keeps during a training run, decided by all ranks together before it starts."""

from dataclasses import dataclass

import torch
from torch import Tensor

from windrow.caching.auto_capacity import automatic_capacities
from windrow.caching.selection import cache_capacity
from windrow.comm.world import World
from windrow.gnn.partitioned import PartitionedGraph
from windrow.launch.part_ranking import PartRanking, rank_part, row_sizes
from windrow.launch.recipe import Recipe

__all__ = ["CacheChoice", "agree_on_capacities", "choose_cache"]

STAGE = "size of caches"


@dataclass(frozen=True, kw_only=True, eq=False)
class CacheChoice:
    """What one rank keeps."""

    alpha: float
    """Replication factor, the same on every rank: the largest cache as a share of N / ranks."""
    cached_ids: Tensor
    """int64, ids of remote vertices whose rows this rank keeps."""
    expected_rows: float | None
    """Rows that this rank will ask others for in an epoch; None where nobody has worked it out (no cache)."""


def choose_cache(world: World, graph: PartitionedGraph, recipe: Recipe) -> CacheChoice:
    """Choose the remote rows that this rank keeps, as section [cache] says. Collective.

    Args:
        world: one rank for each part.
        graph: this rank's view.
        recipe: the same on every rank.

    Returns:
        The choice. With a number for alpha every rank keeps floor(alpha N / ranks) rows, or as many as it can ever
        need; with "auto", those that pay, within the memory budget.

    Cost:
        That of `windrow.launch.part_ranking.rank_part`; none where alpha is 0 or there is one rank.
    """
    options = recipe.cache
    if world.size == 1 or options.alpha == 0:
        return CacheChoice(alpha=0.0, cached_ids=torch.empty(0, dtype=torch.int64), expected_rows=None)
    ranking = rank_part(graph, world.rank, recipe)
    _, copy_bytes = row_sizes(recipe.sampler, graph.features)
    if isinstance(options.alpha, str):
        worthwhile = ranking.worthwhile(recipe.training.epochs)
        capacities = agree_on_capacities(world, ranking, worthwhile, copy_bytes, options.memory_gib)
        alpha = max(capacities) * world.size / graph.num_vertices
    else:
        capacities = [cache_capacity(options.alpha, graph.num_vertices, world.size)] * world.size
        alpha = options.alpha
    own = capacities[world.rank]
    return CacheChoice(
        alpha=alpha,
        cached_ids=torch.from_numpy(ranking.kept(own)),
        expected_rows=float(ranking.expected_rows([own]).sum()),
    )


def agree_on_capacities(
    world: World, ranking: PartRanking, worthwhile: int, row_bytes: int, memory_gib: float
) -> list[int]:
    """Rows that each rank keeps where alpha is "auto". Collective.

    Args:
        world: one rank for each part.
        ranking: of this rank.
        worthwhile: remote rows that this rank would gain by keeping.
        row_bytes: of one row as it is kept; must agree.
        memory_gib: see `windrow.caching.auto_capacity.automatic_capacities`; must agree.
    """
    needs = world.all_gather_object((worthwhile, ranking.num_remote), stage=STAGE)
    everywhere, remote = zip(*needs, strict=True)
    return automatic_capacities(everywhere, remote, row_bytes, memory_gib)
