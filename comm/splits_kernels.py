"""Compiled loops of `windrow.comm.splits`."""

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["find_owners", "sort_by_owner"]


@numba.njit(cache=True, nogil=True)
def find_owners(
    ids: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
    owner: npt.NDArray[np.int32],
    counts: npt.NDArray[np.int64],
) -> tuple[bool, int]:
    """Find who owns each id, how many each rank owns, and whether the ids are grouped by owner.

    Args:
        ids: [n].
        offsets: [ranks + 1], never falling.
        owner: [n]; written.
        counts: [ranks] of zeros; written.

    Returns:
        ``(grouped, bad_position)``: whether owners never fall, and the first position whose id nobody owns,
        or -1 (where it is not -1 the rest is unfinished).
    """
    first, last = offsets[0], offsets[-1]
    grouped = True
    previous = 0
    for position in range(ids.size):
        number = ids[position]
        if number < first or number >= last:
            return False, position
        # Binary search without a branch on the data: for ids in random order no processor could guess it.
        low, length = 0, counts.size
        while length > 1:
            half = length >> 1
            low += half * (offsets[low + half] <= number)
            length -= half
        owner[position] = low
        counts[low] += 1
        grouped &= previous <= low
        previous = low
    return grouped, -1


@numba.njit(cache=True, nogil=True)
def sort_by_owner(
    owner: npt.NDArray[np.int32],
    counts: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],
) -> None:
    """Counting sort: the positions of rank 0's ids in order, then those of rank 1, and so on.

    Args:
        owner: [n] from `find_owners`.
        counts: [ranks] from `find_owners`.
        order: [n]; written.
    """
    cursor = np.zeros(counts.size, np.int64)
    for rank in range(1, counts.size):
        cursor[rank] = cursor[rank - 1] + counts[rank - 1]
    for position in range(owner.size):
        rank = owner[position]
        order[cursor[rank]] = position
        cursor[rank] += 1
