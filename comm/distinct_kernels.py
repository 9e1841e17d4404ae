"""The loop behind `windrow.comm.distinct`."""

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.random_kernels import mix64

__all__ = ["find_distinct"]

Ids = npt.NDArray[np.int64]


@numba.njit(nogil=True, cache=True)
def find_distinct(ids: Ids, slots: npt.NDArray[np.int32], found: Ids, positions: Ids) -> int:
    """Number ids by first appearance, with a hash table of open addressing.

    Args:
        ids: [n].
        slots: [power of two, at least 2 n], all -1; filled with places in `found`.
        found: [n], its first entries are filled with the distinct ids.
        positions: [n], filled with the place of each id in `found`.

    Returns:
        The number of distinct ids.
    """
    mask = np.uint64(len(slots) - 1)
    count = 0
    for i in range(len(ids)):
        number = ids[i]
        slot = mix64(np.uint64(number)) & mask
        while slots[slot] >= 0 and found[slots[slot]] != number:
            slot = (slot + np.uint64(1)) & mask
        if slots[slot] < 0:
            slots[slot] = count
            found[count] = number
            count += 1
        positions[i] = slots[slot]
    return count
