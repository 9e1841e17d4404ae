"""A cache that decides for itself what to keep: S3-FIFO.

    new id  ->  small queue, a tenth of the slots  -- used again twice -->  main queue, the rest  -- unused -->  gone
                        |                                    ^  |  used: round again, one use less
                        | otherwise                          |  +-----+
                        v                                    |
                 forgotten: remembered by id only  -- used --+

Most ids are used once, and leave through the small queue soon, so that they push nothing out that is used often.

Yang, Zhang, Qiu, Yue, Rashmi: FIFO queues are all you need for cache eviction, SOSP 2023. As there, a tenth of the
slots is the small queue's, uses are counted up to 3, and as many ids are remembered as the main queue has slots.
"""

import numpy as np
import torch
from torch import Tensor

from windrow.caching.dynamic_kernels import access
from windrow.comm.errors import DataError

__all__ = ["DynamicCache"]

SMALL_SHARE = 0.1
"""Share of the slots that the small queue has; from the paper, which found anything from .05 to .2 to do."""


class DynamicCache:
    """Which ids are cached, in which slot, as they are used one after another. It holds no rows.

    Unlike the static cache it needs no knowledge of what will be asked for, and can hold rows that change; but what it
    holds depends on the order of requests, and every id that it lets in was fetched first.

    Args:
        capacity: slots, from 0.
        num_vertices: N; ids are 0 to N - 1.

    Cost: 15 bytes for each vertex and 20 for each slot; some nanoseconds for each use.
    """

    def __init__(self, capacity: int, num_vertices: int) -> None:
        if capacity < 0:
            raise ValueError(f"a cache of {capacity} slots: there must be 0 or more")
        self.capacity = capacity
        self.num_vertices = num_vertices
        small_share = min(capacity, max(1, round(SMALL_SHARE * capacity)))
        self._shares = (small_share, capacity - small_share)
        self._uses = np.zeros(num_vertices, np.uint8)
        self._queue = np.zeros(num_vertices, np.uint8)
        self._stale = np.zeros(num_vertices, np.bool_)
        self._slot_of = np.full(num_vertices, -1, np.int32)
        self._forgotten = np.zeros(num_vertices, np.int64)
        self._small = np.zeros(capacity, np.int64)
        self._main = np.zeros(capacity, np.int64)
        self._free = np.arange(capacity, dtype=np.int32)[::-1].copy()
        self._cursors = np.array([0, 0, 0, 0, capacity, 0], np.int64)

    def access(self, ids: Tensor) -> Tensor:
        """Use ids one after another, and let in those that are not cached.

        Args:
            ids: int64 [n] on the CPU; may repeat.

        Returns:
            bool [n]: whether each was cached when its turn came.

        Raises:
            DataError: an id is out of range.
        """
        return self.find_and_admit(ids) >= 0

    def find_and_admit(self, ids: Tensor) -> Tensor:
        """`access`, for those who keep rows in the slots.

        Args:
            ids: int64 [n] on the CPU; may repeat.

        Returns:
            int32 [n]: the slot of each id when its turn came, -1 where it was not cached or had been invalidated. A
            slot may have been given to a later one of `ids`, so read the slots before any row is written; `slots`
            tells where rows go that were fetched.

        Raises:
            DataError: an id is out of range.
        """
        array = ids.contiguous().numpy()
        self._check(array)
        found = np.full(len(array), -1, np.int32)
        if self.capacity > 0:
            access(
                array,
                self._shares,
                self._uses,
                self._queue,
                self._stale,
                self._slot_of,
                self._forgotten,
                self._small,
                self._main,
                self._free,
                self._cursors,
                found,
            )
        return torch.from_numpy(found)

    def slots(self, ids: Tensor) -> Tensor:
        """The slot that each id has now, int32, or -1; changes nothing."""
        array = ids.contiguous().numpy()
        self._check(array)
        return torch.from_numpy(self._slot_of[array])

    def invalidate(self, ids: Tensor) -> None:
        """Make the next use of each id find nothing, because its row has changed; its slot stays its own.

        Args:
            ids: int64 [n] on the CPU; those that are not cached do not matter.

        Raises:
            DataError: an id is out of range.
        """
        array = ids.contiguous().numpy()
        self._check(array)
        self._stale[array] = True

    def _check(self, ids: np.typing.NDArray[np.int64]) -> None:
        outside = (ids < 0) | (ids >= self.num_vertices)
        if outside.any():
            position = int(outside.argmax())
            raise DataError(
                f"id {ids[position]} at position {position} is out of range: ids are 0 to {self.num_vertices - 1}. "
                "Check that the ids are in the numbering of this partition"
            )
