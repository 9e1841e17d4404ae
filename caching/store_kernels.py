"""The loops of `windrow.caching.request`: slots of cached ids and sources of rows."""

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.inline_kernels import prefetch
from windrow.comm.random import GOLDEN
from windrow.comm.rows_kernels import find_owners

__all__ = ["Direct", "Table", "classify", "fill_table", "sort_by_source"]

Ids = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]

Direct = npt.NDArray[np.int32]
"""int32 [N], slot of each id or -1; or [0]."""

Table = npt.NDArray[np.int64]
"""int64 [capacity, 2], (id, slot) or (-1, -1), the capacity a power of two above the number of ids; or [0, 2]."""

_GOLDEN = np.uint64(GOLDEN)
"""Multiples of it spread consecutive ids evenly (Knuth, The Art of Computer Programming, volume 3, section 6.4)."""

AHEAD = 16
"""Ids between asking for an entry and reading it."""


@numba.njit(nogil=True, cache=True)
def home(key: int, shift: np.uint64) -> np.int64:
    """Where the search for an id begins: the upper bits of its product."""
    return np.int64((np.uint64(key) * _GOLDEN) >> shift)


@numba.njit(nogil=True, cache=True)
def shift_of(capacity: int) -> np.uint64:
    """Bits to drop so that `capacity` places remain; the capacity is a power of two, at least 2."""
    shift = 64
    while capacity > 1:
        capacity >>= 1
        shift -= 1
    return np.uint64(shift)


@numba.njit(nogil=True, cache=True)
def fill_table(ids: Ids, table: Table) -> int:
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
def _probe(key: int, table: Table, shift: np.uint64) -> int:
    """The slot of an id, or -1."""
    mask = table.shape[0] - 1
    place = home(key, shift)
    while table[place, 0] != key and table[place, 0] != -1:
        place = (place + 1) & mask
    # An empty place has slot -1.
    slot: int = table[place, 1]
    return slot


@numba.njit(nogil=True, cache=True)
def _find_slots(ids: Ids, direct: Direct, table: Table, slots: Ints) -> None:
    """Write the slot of each id of 0..N - 1, or -1, into `slots` [n]. One of `direct` and `table` is empty, or both."""
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
            slots[i] = _probe(ids[i], table, shift)
    else:
        slots[:] = -1


@numba.njit(nogil=True, cache=True)
def classify(
    ids: Ids, offsets: Ids, rank: int, direct: Direct, table: Table, source: Ints, slots: Ints, counts: Ids
) -> int:
    """Find where the row of each id [n] comes from: a rank, or the cache.

    Rank r owns the ids from offsets[r] to offsets[r + 1]; the rows of `rank` come from itself, also where they are
    cached. `direct` and `table` are those of a `windrow.caching.request.CacheIndex`. Written: `source` [n], the rank
    that owns the id, or `ranks` where it is cached; `slots` [n], the slot where it is; `counts` [ranks + 1], zeros
    before, how many come from each source.

    Returns:
        The first position whose id nobody owns (the rest is unfinished then), or -1.
    """
    num_ranks = offsets.size - 1
    _, outside = find_owners(ids, offsets, source, counts[:num_ranks])
    if outside >= 0:
        return outside
    _find_slots(ids, direct, table, slots)
    cached = 0
    for i in range(ids.size):
        owner = source[i]
        taken = (slots[i] >= 0) & (owner != rank)
        counts[owner] -= taken
        cached += taken
        source[i] = num_ranks if taken else owner
    counts[num_ranks] = cached
    return -1


@numba.njit(nogil=True, cache=True)
def sort_by_source(
    ids: Ids, source: Ints, slots: Ints, first: int, rank: int, cursors: Ids, values: Ids, places: Ids
) -> None:
    """Group ids [n] by source, keeping their order within each.

    `source` and `slots` come from `classify`; `first` is the id of this rank's first row; `cursors` [ranks + 1], where
    each source's group starts, is changed. Written: `values` [n], ids of other ranks, positions among the own rows, or
    slots of the cache; `places` [n], the position of each among `ids`.
    """
    cache = cursors.size - 1
    for i in range(ids.size):
        where = source[i]
        place = cursors[where]
        cursors[where] = place + 1
        value = ids[i] - (first if where == rank else 0)
        values[place] = slots[i] if where == cache else value
        places[place] = i
