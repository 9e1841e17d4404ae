"""The loops behind `windrow.caching.request`."""

import numba
import numpy as np
import numpy.typing as npt

from windrow.caching.cache_index_kernels import Direct, Table, find_slots
from windrow.comm.splits_kernels import find_owners

__all__ = ["classify", "sort_by_source"]

Ids = npt.NDArray[np.int64]


@numba.njit(nogil=True, cache=True)
def classify(
    ids: Ids,
    offsets: npt.NDArray[np.int64],
    rank: int,
    direct: Direct,
    table: Table,
    source: npt.NDArray[np.int32],
    slots: npt.NDArray[np.int32],
    counts: npt.NDArray[np.int64],
) -> int:
    """Find where the row of each id comes from: a rank, or the cache.

    Args:
        ids: [n].
        offsets: [ranks + 1], never falling.
        rank: this one; its own rows come from itself, also where they are cached.
        direct: of a `windrow.caching.cache_index.CacheIndex`.
        table: of the same.
        source: [n]; written: the rank that owns the id, or `ranks` where it is cached.
        slots: [n]; written: slot in the cache, where it is cached.
        counts: [ranks + 1] of zeros; written: how many come from each source.

    Returns:
        The first position whose id nobody owns (the rest is unfinished then), or -1.
    """
    num_ranks = offsets.size - 1
    _, outside = find_owners(ids, offsets, source, counts[:num_ranks])
    if outside >= 0:
        return outside
    find_slots(ids, direct, table, slots)
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
    cursors: npt.NDArray[np.int64],
    values: Ids,
    places: Ids,
) -> None:
    """Group ids by source, keeping their order within each.

    Args:
        ids: [n].
        source: [n] from `classify`.
        slots: [n] from `classify`.
        first: id of this rank's first row.
        rank: this one.
        cursors: [ranks + 1], where each source's group starts; changed.
        values: [n]; written: ids of other ranks, positions among the own rows, or slots of the cache.
        places: [n]; written: the position of each among `ids`.
    """
    cache = cursors.size - 1
    for i in range(ids.size):
        where = source[i]
        place = cursors[where]
        cursors[where] = place + 1
        value = ids[i] - (first if where == rank else 0)
        values[place] = slots[i] if where == cache else value
        places[place] = i
