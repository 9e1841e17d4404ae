"""How often sampling asks for each vertex: what analysis predicts, counted."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from windrow.gnn.sampler import NeighborSampler
from windrow.gnn.seed_order import SeedOrder

__all__ = ["count_accesses"]


def count_accesses(
    sampler: NeighborSampler, order: SeedOrder, epochs: Iterable[int]
) -> npt.NDArray[np.int64]:
    """Sample all minibatches of some epochs and count how often each vertex is among the input rows.

    Args:
        sampler: of the rank; its draws are those of training where its seed is the run's.
        order: the rank's seeds.
        epochs: numbers of the epochs. Ranking vertices for training by epochs that training will sample itself would
            be looking ahead: take others.

    Returns:
        int64 [N].

    Cost:
        That of sampling; 8 bytes per vertex.
    """
    counts = np.zeros(sampler.num_vertices, np.int64)
    for epoch in epochs:
        for step in range(order.steps_per_epoch):
            # No vertex is twice among the input rows of a minibatch.
            counts[sampler.sample(order.seeds(epoch, step), epoch=epoch, step=step).input_ids.numpy()] += 1
    return counts
