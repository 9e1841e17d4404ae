"""The loops of `windrow.caching.cached_store`: slots of cached ids and sources of rows."""

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.inline_kernels import prefetch
from windrow.comm.rows_kernels import find_owners

__all__ = ["classify", "sort_by_source"]

Ids = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]

AHEAD = 16
"""Ids between asking for an entry and reading it."""


@numba.njit(nogil=True, cache=True)
def classify(ids: Ids, offsets: Ids, rank: int, index: Ints, source: Ints, slots: Ints, counts: Ids) -> int:
    """Find where the row of each id [n] comes from: a rank, or the cache.

    Rank r owns the ids from offsets[r] to offsets[r + 1]; the rows of `rank` come from itself, also where they are
    cached. `index` is from `index_cache`. Written: `source` [n], the rank that owns the id, or `ranks` where it is
    cached; `slots` [n], the slot where it is; `counts` [ranks + 1], zeros before, how many come from each source.

    Returns:
        The first position whose id nobody owns (the rest is unfinished then), or -1.
    """
    num_ranks = offsets.size - 1
    _, outside = find_owners(ids, offsets, source, counts[:num_ranks])
    if outside >= 0 or index.size == 0:
        return outside
    last = ids.size - 1
    for i in range(ids.size):
        prefetch(index, ids[min(i + AHEAD, last)])
        slot, owner = index[ids[i]], source[i]
        slots[i] = slot
        taken = (slot >= 0) & (owner != rank)
        counts[owner] -= taken
        counts[num_ranks] += taken
        source[i] = num_ranks if taken else owner
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
