"""What evaluators share that score users or sessions against all items, all ranks together."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.comm.splits import near_equal_split
from windrow.comm.world import World

__all__ = ["check_finite", "gather_item_vectors", "sum_of_chunks"]


def gather_item_vectors(
    world: World,
    look_up: Callable[[npt.NDArray[np.int64]], Tensor],
    first_item: int,
    last_item: int,
    *,
    batch_size: int,
) -> Tensor:
    """Look a range of items up, a share on each rank, and give all of it to every rank.

    Args:
        world: all its ranks call this with the same arguments.
        look_up: from item ids [n] to their vectors [n, d]; collective, n may be 0 and differ between ranks.
        first_item: the first id.
        last_item: the one after the last.
        batch_size: items that all ranks together look up at once.

    Returns:
        [items, d], in order of their ids.
    """
    shares = near_equal_split(last_item - first_item, world.size)
    start, stop = shares[world.rank], shares[world.rank + 1]
    largest = max(b - a for a, b in pairwise(shares))
    # All ranks look up the same number of times, also those with a smaller share.
    steps = -(-largest // max(1, batch_size // world.size))
    parts = [
        look_up(np.arange(first_item + start + low, first_item + start + high, dtype=np.int64))
        for low, high in pairwise(near_equal_split(stop - start, steps))
    ]
    return torch.cat(world.all_gather(torch.cat(parts), stage="item vectors"))


def sum_of_chunks(world: World, sums: Tensor) -> list[float]:
    """Add what all ranks measured, chunk by chunk in their order: the sum does not depend on the number of ranks.

    Args:
        world: all its ranks call this.
        sums: [chunks of this rank, metrics] float64; chunks of rank 0 come first, then those of rank 1, and so on.

    Returns:
        The sum of each metric.
    """
    found: list[float] = torch.cat(world.all_gather(sums, stage="ranking")).cumsum(dim=0)[-1].tolist()
    return found


def check_finite(vectors: Tensor, name: str) -> None:
    """Refuse to rank by what is no number.

    Args:
        vectors: any shape.
        name: of what they are vectors.

    Raises:
        DataError: one is NaN or infinite.
    """
    if not torch.isfinite(vectors).all():
        raise DataError(f"the vector of {name} is NaN or infinite: lower the learning rates")
