"""The loops behind `windrow.caching.cache_index`."""

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.prefetch_kernels import prefetch

__all__ = ["AHEAD", "Direct", "Table", "fill_table", "find_slots", "probe"]

Direct = npt.NDArray[np.int32]
"""int32 [N], slot of each id or -1; or [0]."""

Table = npt.NDArray[np.int64]
"""int64 [capacity, 2], (id, slot) or (-1, -1), the capacity a power of two above the number of ids; or [0, 2]."""

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2**64 divided by the golden ratio: multiples of it spread consecutive ids evenly (Knuth, The Art of Computer
Programming, volume 3, section 6.4)."""

AHEAD = 16
"""Ids between asking for an entry and reading it."""


@numba.njit(nogil=True, cache=True)
def home(key: int, shift: np.uint64) -> np.int64:
    """Where the search for an id begins: the upper bits of its product."""
    return np.int64((np.uint64(key) * GOLDEN) >> shift)


@numba.njit(nogil=True, cache=True)
def shift_of(capacity: int) -> np.uint64:
    """Bits to drop so that `capacity` places remain; the capacity is a power of two, at least 2."""
    shift = 64
    while capacity > 1:
        capacity >>= 1
        shift -= 1
    return np.uint64(shift)


@numba.njit(nogil=True, cache=True)
def fill_table(ids: npt.NDArray[np.int64], table: Table) -> int:
    """Enter ids into an empty table, each with its position as slot.

    Returns:
        The position of an id that is there already, or -1.
    """
    shift, mask = shift_of(table.shape[0]), table.shape[0] - 1
    for slot in range(ids.size):
        place = home(ids[slot], shift)
        while table[place, 0] != -1:
            if table[place, 0] == ids[slot]:
                return slot
            place = (place + 1) & mask
        table[place, 0] = ids[slot]
        table[place, 1] = slot
    return -1


@numba.njit(nogil=True, cache=True)
def probe(key: int, table: Table, shift: np.uint64) -> int:
    """The slot of an id, or -1."""
    mask = table.shape[0] - 1
    place = home(key, shift)
    while table[place, 0] != key and table[place, 0] != -1:
        place = (place + 1) & mask
    # An empty place has slot -1.
    slot: int = table[place, 1]
    return slot


@numba.njit(nogil=True, cache=True)
def find_slots(
    ids: npt.NDArray[np.int64], direct: Direct, table: Table, slots: npt.NDArray[np.int32]
) -> None:
    """Find the slot of each id, or -1. One of `direct` and `table` is empty, or both are.

    Args:
        ids: [n], in 0..N - 1.
        direct: see `Direct`.
        table: see `Table`.
        slots: [n]; written.
    """
    last = ids.size - 1
    if direct.size > 0:
        for i in range(ids.size):
            prefetch(direct, ids[min(i + AHEAD, last)])
            slots[i] = direct[ids[i]]
    elif table.size > 0:
        shift = shift_of(table.shape[0])
        flat = table.reshape(-1)
        for i in range(ids.size):
            prefetch(flat, 2 * home(ids[min(i + AHEAD, last)], shift))
            slots[i] = probe(ids[i], table, shift)
    else:
        slots[:] = -1
