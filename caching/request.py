"""What a minibatch asks of whom, worked out before anything is sent; and which slot of a cache holds which id.

    ids              7 2 9 4 5          this rank owns 0..4, another 5..9; id 9 is cached in slot 3

    local            2 4                positions among the own rows       local_places    1 3
    cached           3                  slots of the cache                 cached_places   2
    remote           7 5                ids, grouped by owner (0 | 2)      remote_places   0 4

Every row has one place, so the three together fill the answer.

A cache index takes an id to its slot, in one of two forms. It is read-only once made, so any number of threads may
read it::

    direct   one int32 for each id there is             4 N bytes, one read
    table    open addressing, at most half full         32 to 64 bytes for each id cached, one or two reads
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from windrow.caching.store_kernels import Direct, Table, classify, fill_table, sort_by_source
from windrow.comm.errors import DataError
from windrow.comm.rows import group_by_owner

__all__ = ["CacheIndex", "RowRequest", "plan_request"]

SMALL_BYTES = 64 << 20
"""A direct map up to this size is always taken: 16 million ids. Reading it is a little faster than probing."""


class CacheIndex:
    """Slots of ids that are cached: position i of `ids` is slot i.

    Args:
        ids: int64 [c] on the CPU, distinct, 0 <= id < num_ids.
        num_ids: ids there are, N.
        small_bytes: size in bytes up to which a direct map is taken even where a table would be smaller.

    Raises:
        DataError: an id is out of range or given twice.

    Cost:
        Memory of the smaller of both forms, or of the direct map up to 64 MiB; nothing where nothing is cached.
    """

    def __init__(self, ids: Tensor, num_ids: int, *, small_bytes: int = SMALL_BYTES) -> None:
        array = ids.contiguous().numpy()
        outside = (array < 0) | (array >= num_ids)
        if outside.any():
            position = int(outside.argmax())
            raise DataError(
                f"cached id {array[position]} at position {position} is out of range: ids are 0 to {num_ids - 1}. "
                "Check that the ids are in the numbering of this partition"
            )
        count = len(array)
        self.direct: Direct = np.empty(0, np.int32)
        """int32 [N], slot of each id or -1; empty where there is a table, or nothing is cached."""
        self.table: Table = np.empty((0, 2), np.int64)
        """int64 [capacity, 2], (id, slot) or (-1, -1); empty where there is a direct map, or nothing is cached."""
        capacity = 2 << max(0, count - 1).bit_length()
        repeated = -1
        if count > 0 and 4 * num_ids <= max(small_bytes, 16 * capacity):
            self.direct = np.full(num_ids, -1, np.int32)
            slots = np.arange(count, dtype=np.int32)
            self.direct[array] = slots
            overwritten = self.direct[array] != slots
            # Of an id that stands twice one slot has lost.
            repeated = int(overwritten.argmax()) if overwritten.any() else -1
        elif count > 0:
            self.table = np.full((capacity, 2), -1, np.int64)
            repeated = fill_table(array, self.table)
        if repeated >= 0:
            raise DataError(f"cached id {array[repeated]} is given twice: give each id once, as torch.unique does")


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class RowRequest:
    """Where the rows of a list of ids come from, and where they belong; all tensors int64 on the CPU.

    In each group ids keep their order.
    """

    num_rows: int
    """Ids that were asked for."""
    local: Tensor
    """Positions among the rows that this rank owns."""
    local_places: Tensor
    """Where each of them stands in the list of ids."""
    cached: Tensor
    """Slots of the cache."""
    cached_places: Tensor
    """Where each of them stands in the list of ids."""
    remote: Tensor
    """Ids that other ranks are asked for, grouped by owner in rank order."""
    remote_places: Tensor
    """Where each of them stands in the list of ids."""
    remote_counts: list[int]
    """How many of `remote` each rank is asked for; 0 for this rank."""


def plan_request(ids: Tensor, offsets: Sequence[int], rank: int, index: CacheIndex) -> RowRequest:
    """Split a list of ids by where their rows come from. Makes no collective; any thread may call it.

    Args:
        ids: int64 [n] on the CPU, in any order; may repeat, and is then asked for as often.
        offsets: [ranks + 1] never falling; rank r owns offsets[r] .. offsets[r + 1] - 1.
        rank: this one.
        index: what this rank has cached of the ids of others.

    Raises:
        DataError: nobody owns an id; names it and its position.

    Cost:
        About log2(ranks) + 4 passes over the ids, without the interpreter lock.
    """
    array = ids.contiguous().numpy()
    boundaries = np.asarray(offsets, np.int64)
    num_ranks = len(boundaries) - 1
    source, slots = np.empty(len(array), np.int32), np.empty(len(array), np.int32)
    counts = np.zeros(num_ranks + 1, np.int64)
    outside = classify(array, boundaries, rank, index.direct, index.table, source, slots, counts)
    if outside >= 0:
        group_by_owner(ids, offsets)  # It says which id.
    num_local, num_cached = int(counts[rank]), int(counts[num_ranks])
    num_remote = len(array) - num_local - num_cached
    remote_counts = counts[:num_ranks].copy()
    remote_counts[rank] = 0
    # Groups stand in this order: remote by owner, local, cached.
    cursors = np.zeros(num_ranks + 1, np.int64)
    cursors[1:] = np.cumsum(remote_counts)
    cursors[rank] = num_remote
    cursors[num_ranks] = num_remote + num_local
    values, places = np.empty(len(array), np.int64), np.empty(len(array), np.int64)
    sort_by_source(array, source, slots, int(boundaries[rank]), rank, cursors, values, places)
    sizes = [num_remote, num_local, num_cached]
    remote, local, cached = torch.from_numpy(values).split(sizes)
    remote_places, local_places, cached_places = torch.from_numpy(places).split(sizes)
    return RowRequest(
        num_rows=len(array),
        local=local,
        local_places=local_places,
        cached=cached,
        cached_places=cached_places,
        remote=remote,
        remote_places=remote_places,
        remote_counts=remote_counts.tolist(),
    )
