"""How good lists of recommended items are: as LightGCN measures it (He et al., SIGIR 2020), and by reciprocal ranks.

For a user with the relevant items R and the recommendations i_1 .. i_k, best first::

    recall@k = |R and {i_1 .. i_k}| / |R|
    ndcg@k   = sum of 1 / log2(1 + j) over the j with i_j in R  /  the same sum over j = 1 .. min(k, |R|)
    mrr@k    = 1 / the least j with i_j in R, 0 where there is none

Users without relevant items are left out of means.
"""

import numpy as np
import numpy.typing as npt

from windrow.recsys.interactions import ItemLists

__all__ = ["find_hits", "mrr_at_k", "ndcg_at_k", "recall_at_k"]

FloatArray = npt.NDArray[np.float64]


def find_hits(
    recommended: npt.NDArray[np.int64], users: npt.NDArray[np.int64], relevant: ItemLists
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
    counts = relevant.counts[users]
    rows = np.repeat(np.arange(len(users)), counts)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    items = relevant.items[relevant.indptr[users[rows]] + within]
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
