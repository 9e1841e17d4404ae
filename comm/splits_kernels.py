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
    outside = False
    for position in range(ids.size):
        outside |= (ids[position] < first) | (ids[position] >= last)
        owner[position] = 0
    if outside:
        for position in range(ids.size):
            if ids[position] < first or ids[position] >= last:
                return False, position

    # One level of the binary search at a time for all ids: these loops have no branch on the data, which no
    # processor could guess for ids in random order, and compile to vector code.
    length = counts.size
    while length > 1:
        half = length >> 1
        for position in range(ids.size):
            low = owner[position]
            owner[position] = low + np.int32(half) * np.int32(offsets[low + half] <= ids[position])
        length -= half

    grouped = True
    previous = 0
    for position in range(ids.size):
        low = owner[position]
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
