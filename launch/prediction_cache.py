"""Which remote rows each rank keeps during one pass of sampled inference.

Seeds are all vertices to predict, and there is one epoch. A row that two minibatches need is worth keeping: it travels
once instead of twice.
"""

import torch
from torch import Tensor

from windrow.caching.demand import Demand
from windrow.caching.selection import cache_capacity, choose_cached
from windrow.caching.vip import inclusion_probabilities
from windrow.comm.world import World
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.sampled_inference import own_vertices, sampled_steps
from windrow.launch.cache_choice import agree_on_capacities
from windrow.launch.part_ranking import PartRanking, row_sizes
from windrow.launch.recipe import Recipe

__all__ = ["choose_inference_cache"]


def choose_inference_cache(
    world: World, graph: PartitionedGraph, ids: Tensor | None, recipe: Recipe, fanouts: tuple[int, ...]
) -> Tensor:
    """Choose the remote rows that this rank keeps, by the probability that a minibatch needs them. Collective.

    Args:
        world: one rank for each part.
        graph: this rank's view.
        ids: int64 [n], vertices to predict, ids of the partition; None for all; must agree.
        recipe: section [cache] says how much room there is, [evaluation] the size of minibatches; must agree.
        fanouts: neighbours per hop; must agree.

    Returns:
        int64 ids of other ranks' vertices: never more than save transfers, save where rows of all ranks fit.

    Cost:
        One pass over the edges for each hop; none where alpha is 0 or there is one rank.
    """
    options = recipe.cache
    steps = sampled_steps(graph, ids, recipe.evaluation.batch_size)
    if world.size == 1 or options.alpha == 0 or steps == 0:
        return torch.empty(0, dtype=torch.int64)
    demand = Demand(
        indptr=graph.indptr.numpy(),
        indices=graph.indices.numpy(),
        own=graph.own_range,
        seeds=own_vertices(graph, ids).numpy(),
        steps=steps,
        fanouts=fanouts,
    )
    total = inclusion_probabilities(demand).total
    ranking = PartRanking(
        part=world.rank,
        offsets=graph.offsets,
        steps=steps,
        total=total,
        ranking=choose_cached(total, demand.own, graph.num_vertices),
    )
    worthwhile = ranking.worthwhile(1)
    if isinstance(options.alpha, str):
        row_bytes, _ = row_sizes(recipe.sampler, graph.features)
        capacities = agree_on_capacities(world, ranking, worthwhile, row_bytes, options.memory_gib)
        return torch.from_numpy(ranking.kept(capacities[world.rank]))
    room = cache_capacity(options.alpha, graph.num_vertices, world.size)
    return torch.from_numpy(ranking.kept(min(worthwhile, room)))
