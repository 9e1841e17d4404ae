"""What the minibatches of one part of a graph will ask for."""

from collections.abc import Sequence

from windrow.caching.demand import Demand
from windrow.gnn.partitioned import PartitionedGraph

__all__ = ["demand_of"]


def demand_of(graph: PartitionedGraph, part: int, fanouts: Sequence[int], steps: int) -> Demand:
    """Describe the training minibatches of one part, of which the topology and all training vertices are known.

    Args:
        graph: any rank's view.
        part: whose minibatches; need not be the part that `graph` holds.
        fanouts: neighbours sampled per vertex at each hop, from the seeds outwards; -1 for all.
        steps: minibatches in an epoch.
    """
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
