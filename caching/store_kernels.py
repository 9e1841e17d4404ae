"""The loops of the stores: slots of cached ids and sources of rows (`windrow.caching.request`), the S3-FIFO cache."""

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.inline_kernels import prefetch
from windrow.comm.rows_kernels import find_owners

__all__ = ["Direct", "Table", "access", "classify", "fill_table", "sort_by_source"]

Ids = npt.NDArray[np.int64]

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
def _find_slots(ids: Ids, direct: Direct, table: Table, slots: npt.NDArray[np.int32]) -> None:
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
    ids: Ids,
    offsets: Ids,
    rank: int,
    direct: Direct,
    table: Table,
    source: npt.NDArray[np.int32],
    slots: npt.NDArray[np.int32],
    counts: Ids,
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
    ids: Ids,
    source: npt.NDArray[np.int32],
    slots: npt.NDArray[np.int32],
    first: int,
    rank: int,
    cursors: Ids,
    values: Ids,
    places: Ids,
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


NOWHERE, SMALL, MAIN = 0, 1, 2
"""The queue that an id stands in."""

MOST_USES = 3
"""Uses are counted in two bits."""

SMALL_HEAD, SMALL_COUNT, MAIN_HEAD, MAIN_COUNT, NUM_FORGOTTEN = 0, 1, 2, 3, 4
"""Places of the cursors: oldest entry and length of each ring, and how many ids the small queue has ever let
go."""


@numba.njit(nogil=True, cache=True)
def _evict_from_main(
    uses: npt.NDArray[np.uint8], queue: npt.NDArray[np.uint8], main: Ids, cursors: Ids
) -> None:
    """Let go the oldest id that was not used since it last came by; the others go round again, one use less."""
    while True:
        oldest = main[cursors[MAIN_HEAD]]
        cursors[MAIN_HEAD] = (cursors[MAIN_HEAD] + 1) % main.size
        if uses[oldest] == 0:
            break
        uses[oldest] -= np.uint8(1)
        main[(cursors[MAIN_HEAD] + cursors[MAIN_COUNT] - 1) % main.size] = oldest
    cursors[MAIN_COUNT] -= 1
    queue[oldest] = NOWHERE


@numba.njit(nogil=True, cache=True)
def access(
    ids: Ids,
    shares: tuple[int, int],
    uses: npt.NDArray[np.uint8],
    queue: npt.NDArray[np.uint8],
    forgotten: Ids,
    small: Ids,
    main: Ids,
    cursors: Ids,
    found: npt.NDArray[np.bool_],
) -> None:
    """Use ids [n] one after another, and write to `found` [n], False before, whether each was cached at its turn.

    `shares` are the room of the small and the main queue, together the capacity, at least 1. Of each id there is,
    `uses` [N] counts uses while it is cached, `queue` [N] says which queue it stands in, and `forgotten` [N] as how
    many-th the small queue let it go unused; 0 for never. `small` and `main` [capacity] are rings of ids; `cursors`:
    see `SMALL_HEAD`.
    """
    small_share, main_share = shares
    capacity = small_share + main_share
    for i in range(ids.size):
        key = ids[i]
        if queue[key] != NOWHERE:
            found[i] = True
            uses[key] = min(uses[key] + 1, MOST_USES)
            continue
        while cursors[SMALL_COUNT] + cursors[MAIN_COUNT] >= capacity:
            if cursors[SMALL_COUNT] < small_share:
                _evict_from_main(uses, queue, main, cursors)
                continue
            oldest = small[cursors[SMALL_HEAD]]
            cursors[SMALL_HEAD] = (cursors[SMALL_HEAD] + 1) % capacity
            cursors[SMALL_COUNT] -= 1
            if uses[oldest] > 1 and main_share > 0:
                queue[oldest] = MAIN
                uses[oldest] = 0
                if cursors[MAIN_COUNT] >= main_share:
                    _evict_from_main(uses, queue, main, cursors)
                main[(cursors[MAIN_HEAD] + cursors[MAIN_COUNT]) % capacity] = oldest
                cursors[MAIN_COUNT] += 1
            else:
                queue[oldest] = NOWHERE
                cursors[NUM_FORGOTTEN] += 1
                forgotten[oldest] = cursors[NUM_FORGOTTEN]
        uses[key] = 0
        if forgotten[key] > 0 and cursors[NUM_FORGOTTEN] - forgotten[key] < main_share:
            queue[key] = MAIN
            main[(cursors[MAIN_HEAD] + cursors[MAIN_COUNT]) % capacity] = key
            cursors[MAIN_COUNT] += 1
        else:
            queue[key] = SMALL
            small[(cursors[SMALL_HEAD] + cursors[SMALL_COUNT]) % capacity] = key
            cursors[SMALL_COUNT] += 1
        forgotten[key] = 0
