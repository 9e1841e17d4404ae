"""Which slot of a cache holds which id.

    direct   one int32 for each id there is             4 N bytes, one read
    table    open addressing, at most half full         32 to 64 bytes for each id cached, one or two reads

A map is read-only once made, so any number of threads may read it.
"""

import numpy as np
import torch
from torch import Tensor

from windrow.caching.cache_index_kernels import Direct, Table, fill_table, find_slots
from windrow.comm.errors import DataError

__all__ = ["CacheIndex"]

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
        self.num_ids = num_ids
        self.num_cached = len(array)
        self.direct: Direct = np.empty(0, np.int32)
        """int32 [N], slot of each id or -1; empty where there is a table, or nothing is cached."""
        self.table: Table = np.empty((0, 2), np.int64)
        """int64 [capacity, 2], (id, slot) or (-1, -1); empty where there is a direct map, or nothing is cached."""
        capacity = 2 << max(0, self.num_cached - 1).bit_length()
        repeated = -1
        if self.num_cached > 0 and 4 * num_ids <= max(small_bytes, 16 * capacity):
            self.direct = np.full(num_ids, -1, np.int32)
            slots = np.arange(self.num_cached, dtype=np.int32)
            self.direct[array] = slots
            overwritten = self.direct[array] != slots
            # Of an id that stands twice one slot has lost.
            repeated = int(overwritten.argmax()) if overwritten.any() else -1
        elif self.num_cached > 0:
            self.table = np.full((capacity, 2), -1, np.int64)
            repeated = fill_table(array, self.table)
        if repeated >= 0:
            raise DataError(
                f"cached id {array[repeated]} is given twice: give each id once, as torch.unique does"
            )

    @property
    def num_bytes(self) -> int:
        """Memory of the map."""
        return int(self.direct.nbytes + self.table.nbytes)

    def slots(self, ids: Tensor) -> Tensor:
        """Find the slots of ids.

        Args:
            ids: int64 [n] on the CPU, 0 <= id < N, which is not checked.

        Returns:
            int32 [n], -1 for an id that is not cached.
        """
        found = np.empty(len(ids), np.int32)
        find_slots(ids.contiguous().numpy(), self.direct, self.table, found)
        return torch.from_numpy(found)
