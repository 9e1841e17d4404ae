"""How good lists of recommended items are, and what evaluators share that score users or sessions against all items.

Metrics are those of LightGCN (He et al., SIGIR 2020), and reciprocal ranks. For a user with the relevant items R and
the recommendations i_1 .. i_k, best first::

    recall@k = |R and {i_1 .. i_k}| / |R|
    ndcg@k   = sum of 1 / log2(1 + j) over the j with i_j in R  /  the same sum over j = 1 .. min(k, |R|)
    mrr@k    = 1 / the least j with i_j in R, 0 where there is none

Users without relevant items are left out of means.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.comm.rows import near_equal_split
from windrow.comm.world import World
from windrow.recsys.batches.arrow_columns import Lists

__all__ = [
    "check_finite",
    "find_hits",
    "gather_item_vectors",
    "mrr_at_k",
    "ndcg_at_k",
    "recall_at_k",
    "sum_of_chunks",
]

FloatArray = npt.NDArray[np.float64]


def find_hits(
    recommended: npt.NDArray[np.int64], users: npt.NDArray[np.int64], relevant: Lists
) -> npt.NDArray[np.bool_]:
    """Say which recommendations are relevant.

    Args:
        recommended: [n, k] item ids.
        users: [n] the user of each row.
        relevant: items by user, in ascending order for each.

    Returns:
        [n, k] true where the user has the item. Cost: a binary search for each recommendation among the items of
        the n users.
    """
    chosen = relevant.select(users)
    rows, items = chosen.rows, chosen.values
    # One number for each (row, item), in ascending order as rows and items are.
    width = max(int(recommended.max(initial=0)), int(items.max(initial=0))) + 1
    keys = rows * width + items
    wanted = np.arange(len(users))[:, None] * width + recommended
    places = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
    return keys[places] == wanted if len(keys) else np.zeros(recommended.shape, dtype=bool)


def recall_at_k(hits: npt.NDArray[np.bool_], num_relevant: npt.NDArray[np.int64]) -> FloatArray:
    """Share of the relevant items that were recommended.

    Args:
        hits: [n, k] of `find_hits`.
        num_relevant: [n] items that are relevant, each at least 1.

    Returns:
        [n] float64 in [0, 1].
    """
    recall: FloatArray = hits.sum(axis=1) / num_relevant
    return recall


def ndcg_at_k(hits: npt.NDArray[np.bool_], num_relevant: npt.NDArray[np.int64]) -> FloatArray:
    """Normalised discounted cumulative gain: hits high in the list count more.

    Args:
        hits: [n, k] of `find_hits`, best recommendation first.
        num_relevant: [n] items that are relevant, each at least 1.

    Returns:
        [n] float64 in [0, 1]; 1 where no order is better.
    """
    k = hits.shape[1]
    discounts = 1 / np.log2(np.arange(2, k + 2))
    best = np.cumsum(discounts)[np.minimum(num_relevant, k) - 1]
    ndcg: FloatArray = (hits * discounts).sum(axis=1) / best
    return ndcg


def mrr_at_k(hits: npt.NDArray[np.bool_]) -> FloatArray:
    """Reciprocal rank of the first hit; its mean is the mean reciprocal rank.

    Args:
        hits: [n, k] of `find_hits`, best recommendation first.

    Returns:
        [n] float64 in [0, 1]; 0 where nothing was hit.
    """
    reciprocal: FloatArray = hits.any(axis=1) / (hits.argmax(axis=1) + 1)
    return reciprocal


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
