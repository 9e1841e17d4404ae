"""The ids of a multi-hot feature for some samples, in NumPy arrays."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from windrow.recsys.window_columns_kernels import gather_lists

__all__ = ["IdLists", "gathered_lists", "lists_of_single_ids", "offsets_of_lengths"]


@dataclass(frozen=True, slots=True)
class IdLists:
    """The ids of a multi-hot feature.

    Attributes:
        offsets: [n + 1] int32 or int64, sample i has the ids offsets[i] .. offsets[i + 1] - 1; may start past 0.
        ids: int64.
        weights: float32, one for each id; None where the feature has none.
    """

    offsets: npt.NDArray[np.integer]
    ids: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32] | None

    @property
    def num_bytes(self) -> int:
        """Of all arrays."""
        return self.offsets.nbytes + self.ids.nbytes + (0 if self.weights is None else self.weights.nbytes)


def lists_of_single_ids(ids: npt.NDArray[np.int64]) -> IdLists:
    """A feature of one id per sample as lists of length 1.

    Args:
        ids: [n] int64, not copied.
    """
    return IdLists(np.arange(len(ids) + 1, dtype=np.int64), ids, None)


def gathered_lists(lists: IdLists, order: npt.NDArray[np.int64]) -> IdLists:
    """Copy some lists, in any order.

    Args:
        lists: of n samples.
        order: [m] which list comes first, second and so on, each 0 <= order[i] < n; one may come several times.

    Returns:
        m lists, offsets int64 from 0, in memory of their own.
    """
    lengths = np.diff(lists.offsets)[order]
    offsets = offsets_of_lengths(lengths)
    starts = lists.offsets[:-1].astype(np.int64)
    ids = np.empty(offsets[-1], np.int64)
    gather_lists(starts, lists.ids, order, offsets, ids)
    if lists.weights is None:
        return IdLists(offsets, ids, None)
    weights = np.empty(offsets[-1], np.float32)
    gather_lists(starts, lists.weights, order, offsets, weights)
    return IdLists(offsets, ids, weights)


def offsets_of_lengths(lengths: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Where lists begin that lie one after the other.

    Args:
        lengths: [n] integers.

    Returns:
        [n + 1] int64: 0, then the sums of the first 1, 2, ... n lengths.
    """
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
