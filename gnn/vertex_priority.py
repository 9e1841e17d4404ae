"""Which vertices of a part its own minibatches need most: what a store orders them by."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from windrow.caching.demand import Demand
from windrow.caching.samplers import find_samplers
from windrow.caching.vip import inclusion_probabilities
from windrow.gnn.graph import Graph
from windrow.gnn.seed_order import count_steps
from windrow.partition.vertex_order import VertexOrder

__all__ = ["bytes_for_priorities", "vertex_priorities"]

STAGE = "ordering vertices"
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
    """The probability of each vertex to be needed in a minibatch of the rank that owns it.

    Args:
        graph: in the user's numbering, with training vertices.
        assignment: integer [N], each vertex's part.
        num_parts: number of parts.
        order: the minibatches.
        progress: called with a stage name and the share done, 0 to 1.

    Returns:
        float64 [N] from 0 to 1, for `windrow.partition.book.PartitionBook.from_assignment`; a part without training
        vertices has zeros.

    Cost:
        A pass over the edges for each part and hop, one part after another; see `windrow.caching.vip`. Memory: see
        `bytes_for_priorities`.
    """
    indptr, indices = graph.indptr.numpy(), graph.indices.numpy()
    train_ids = graph.train_ids.numpy()
    parts_of_seeds = assignment[train_ids]
    steps = count_steps(len(train_ids), order.batch_size)
    priorities = np.zeros(graph.num_vertices)
    if progress is not None:
        progress(STAGE, 0.0)
    samplers = find_samplers(indptr, indices)
    for part in range(num_parts):
        seeds = train_ids[parts_of_seeds == part]
        if len(seeds):
            demand = Demand(
                indptr=indptr,
                indices=indices,
                # Parts are no ranges before vertices are renumbered; probabilities do not ask who owns a vertex.
                own=(0, 0),
                seeds=seeds,
                steps=steps,
                fanouts=order.fanouts,
            )
            mine = np.flatnonzero(assignment == part)
            priorities[mine] = inclusion_probabilities(demand, samplers=samplers).total[mine]
        if progress is not None:
            progress(STAGE, (part + 1) / num_parts)
    return priorities


def bytes_for_priorities(graph: Graph, order: VertexOrder) -> int:
    """Estimate the peak memory of `vertex_priorities`, beyond the graph.

    Args:
        graph: directed or not; where it is not, it takes less: no second copy of the lists.
        order: the minibatches.

    Returns:
        Bytes.
    """
    lists = graph.num_edges * (graph.indices.element_size() + 1)
    return lists + graph.num_vertices * 8 * (VECTORS_BESIDE_HOPS + VECTORS_PER_HOP * len(order.fanouts))
