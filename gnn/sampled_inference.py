"""Outputs of a model from sampled neighbourhoods, through the pipeline of training: sampled and fetched ahead.

Each vertex is computed on the rank that owns it. What it samples depends on its id alone, not on the vertices that
share its minibatch, so that the result does not depend on the number of ranks or on the size of minibatches.
"""

import contextlib
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor

from windrow.caching.cached_store import CachedStore
from windrow.comm.meter import Stopwatch
from windrow.comm.splits import near_equal_split
from windrow.comm.world import World
from windrow.gnn.loader import SeedTask
from windrow.gnn.models import GNN
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.pipeline import MinibatchPipeline
from windrow.gnn.pipeline_options import PipelineOptions
from windrow.gnn.sampler import NeighborSampler

__all__ = ["infer_sampled", "own_vertices", "sampled_steps"]


def own_vertices(graph: PartitionedGraph, ids: Tensor | None) -> Tensor:
    """The vertices that this rank computes.

    Args:
        graph: this rank's view.
        ids: int64 [n], distinct ids of the partition, over all parts; None for all vertices.

    Returns:
        int64, those of this part: in the order of `ids`, or ascending.
    """
    start, stop = graph.own_range
    return torch.arange(start, stop) if ids is None else ids[(ids >= start) & (ids < stop)]


def sampled_steps(graph: PartitionedGraph, ids: Tensor | None, batch_size: int) -> int:
    """How many minibatches `infer_sampled` goes through, the same on every rank.

    Args:
        graph: any rank's view.
        ids: as for `own_vertices`.
        batch_size: vertices of a minibatch, over all ranks.
    """
    ranges = list(pairwise(graph.offsets))
    if ids is None:
        largest = max(stop - start for start, stop in ranges)
    else:
        largest = max(int(((ids >= start) & (ids < stop)).sum()) for start, stop in ranges)
    return -(-largest // max(1, batch_size // len(ranges)))


@torch.no_grad()
def infer_sampled(
    world: World,
    graph: PartitionedGraph,
    model: GNN,
    ids: Tensor | None,
    *,
    sampler: NeighborSampler,
    store: CachedStore,
    options: PipelineOptions,
    batch_size: int,
    after_step: Callable[[], None] | None = None,
) -> Tensor:
    """Compute the outputs of this rank's vertices from sampled neighbours, without dropout. Collective.

    Args:
        world: all ranks call this, with the same weights, fanouts and sizes.
        graph: this rank's view.
        model: in evaluation mode, on any device.
        ids: int64 [n], distinct ids of the partition, over all parts; None for all vertices; must agree.
        sampler: of this rank; it has one fanout for each layer.
        store: where rows of features are.
        options: how far ahead minibatches are made.
        batch_size: vertices of a minibatch, over all ranks.
        after_step: called after each minibatch, to show progress.

    Returns:
        float32 [own vertices, outputs] on the CPU, in the order of `own_vertices`.

    Raises:
        DataError: an id is not a vertex.
        DeadlineError: a rank did not come in time.
    """
    own = own_vertices(graph, ids)
    outputs = torch.empty((len(own), graph.outputs))
    steps = sampled_steps(graph, ids, batch_size)
    if steps == 0:
        return outputs
    bounds = list(pairwise(near_equal_split(len(own), steps)))
    device = next(model.parameters()).device
    pipeline = MinibatchPipeline(world, sampler, store, options, device=device, stopwatch=Stopwatch())
    with contextlib.closing(pipeline):
        for (first, last), loaded in zip(bounds, pipeline.run(_tasks(own, bounds)), strict=True):
            outputs[first:last] = model(loaded.minibatch.blocks, loaded.rows)
            if after_step is not None:
                after_step()
    return outputs


def _tasks(own: Tensor, bounds: list[tuple[int, int]]) -> Iterator[SeedTask]:
    # One key for all steps: what a vertex samples then does not depend on which seeds share its step.
    return (SeedTask(seeds=own[first:last], epoch=0, step=0) for first, last in bounds)
