"""How often minibatches ask for each vertex: the sampling to analyse, the order of vertices that follows, and counts.

`demand_of` describes the minibatches of one part to the analysis of `windrow.caching`, `vertex_priorities` says which
vertices of a part its own minibatches need most (a store orders them by that), and `count_accesses` samples and counts
what the analysis predicts.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from windrow.caching.vip import Demand, find_samplers, inclusion_probabilities
from windrow.gnn.graph import Graph
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.sampler import NeighborSampler
from windrow.gnn.seed_order import SeedOrder, count_steps
from windrow.partition.book import VertexOrder

__all__ = ["bytes_for_priorities", "count_accesses", "demand_of", "vertex_priorities"]


def demand_of(graph: PartitionedGraph, part: int, fanouts: Sequence[int], steps: int) -> Demand:
    """Describe the training minibatches of a part, whether `graph` is its view or not, with so many steps an epoch."""
    start, stop = graph.book.part_range(part)
    train_ids = graph.train_ids
    return Demand(
        indptr=graph.indptr.numpy(),
        indices=graph.indices.numpy(),
        own=(start, stop),
        seeds=train_ids[(train_ids >= start) & (train_ids < stop)].numpy(),
        steps=steps,
        fanouts=tuple(fanouts),
    )


PRIORITY_STAGE = "ordering vertices"
VECTORS_PER_HOP = 4
"""Of N numbers of 8 bytes each: those of `inclusion_probabilities`."""
VECTORS_BESIDE_HOPS = 8
"""Five of the same function, what it knows of lists that overlap, the priorities, and the ids of a part."""


def vertex_priorities(
    graph: Graph,
    assignment: npt.NDArray[np.integer],
    num_parts: int,
    order: VertexOrder,
    *,
    progress: Callable[[str, float], None] | None = None,
) -> npt.NDArray[np.float64]:
    """The probability of each vertex to be needed in a minibatch of the rank that owns it, float64 [N].

    A part without training vertices has zeros. `assignment` integer [N] is each vertex's part, in the user's numbering
    as the graph; `progress` is called with a stage name and the share done, 0 to 1.

    Cost: a pass over the edges for each part and hop, one part after another; memory: see `bytes_for_priorities`.
    """
    indptr, indices = graph.indptr.numpy(), graph.indices.numpy()
    train_ids = graph.train_ids.numpy()
    parts_of_seeds = assignment[train_ids]
    steps = count_steps(len(train_ids), order.batch_size)
    priorities = np.zeros(graph.num_vertices)
    report = progress or (lambda *_: None)
    report(PRIORITY_STAGE, 0.0)
    samplers = find_samplers(indptr, indices)
    # Parts are no ranges before vertices are renumbered; probabilities do not ask who owns a vertex.
    known = partial(Demand, indptr=indptr, indices=indices, own=(0, 0), steps=steps, fanouts=order.fanouts)
    for part in range(num_parts):
        seeds = train_ids[parts_of_seeds == part]
        if len(seeds):
            mine = np.flatnonzero(assignment == part)
            priorities[mine] = inclusion_probabilities(known(seeds=seeds), samplers=samplers)[-1][mine]
        report(PRIORITY_STAGE, (part + 1) / num_parts)
    return priorities


def bytes_for_priorities(graph: Graph, order: VertexOrder) -> int:
    """Estimate the peak memory of `vertex_priorities` beyond the graph, in bytes; less where it is undirected."""
    lists = graph.num_edges * (graph.indices.element_size() + 1)
    return lists + graph.num_vertices * 8 * (VECTORS_BESIDE_HOPS + VECTORS_PER_HOP * len(order.fanouts))


def count_accesses(sampler: NeighborSampler, order: SeedOrder, epochs: Iterable[int]) -> npt.NDArray[np.int64]:
    """Sample all minibatches of some epochs and count how often each vertex is among the input rows, int64 [N].

    The draws are those of training where the sampler's seed is the run's. Ranking vertices for training by epochs that
    training will sample itself would be looking ahead: take others.
    """
    counts = np.zeros(sampler.num_vertices, np.int64)
    for epoch in epochs:
        for step in range(order.steps_per_epoch):
            # No vertex is twice among the input rows of a minibatch.
            counts[sampler.sample(order.seeds(epoch, step), epoch=epoch, step=step).input_ids.numpy()] += 1
    return counts
