"""Which ids a cache holds that decides for itself, by what is used, what to keep: S3-FIFO, the rival of static caches.

    new id  ->  small queue, a tenth of the room  -- used again twice -->  main queue, the rest  -- unused -->  gone
                        |                                    ^  |  used: round again, one use less
                        | otherwise                          |  +-----+
                        v                                    |
                 forgotten: remembered by id only  -- used --+

Most ids are used once, and leave through the small queue soon, so that they push nothing out that is used often.

Yang, Zhang, Qiu, Yue, Rashmi: FIFO queues are all you need for cache eviction, SOSP 2023. As there, a tenth of the
room is the small queue's, uses are counted up to 3, and as many ids are remembered as the main queue has room for.
"""

import numpy as np
import torch
from torch import Tensor

from windrow.caching.store_kernels import access
from windrow.comm.errors import DataError

__all__ = ["DynamicCache"]

SMALL_SHARE = 0.1
"""Share of the room that the small queue has; from the paper, which found anything from .05 to .2 to do."""


class DynamicCache:
    """Which ids are cached as they are used one after another. It holds no rows: it is there to be compared with.

    Args:
        capacity: ids that it holds at most, from 0.
        num_vertices: N; ids are 0 to N - 1.

    Cost: 10 bytes for each vertex and 16 for each id held; some nanoseconds for each use.
    """

    def __init__(self, capacity: int, num_vertices: int) -> None:
        if capacity < 0:
            raise ValueError(f"a cache of {capacity} ids: there must be 0 or more")
        self.capacity = capacity
        self.num_vertices = num_vertices
        small_share = min(capacity, max(1, round(SMALL_SHARE * capacity)))
        self._shares = (small_share, capacity - small_share)
        self._uses = np.zeros(num_vertices, np.uint8)
        self._queue = np.zeros(num_vertices, np.uint8)
        self._forgotten = np.zeros(num_vertices, np.int64)
        self._small = np.zeros(capacity, np.int64)
        self._main = np.zeros(capacity, np.int64)
        self._cursors = np.zeros(5, np.int64)

    def access(self, ids: Tensor) -> Tensor:
        """Use ids one after another, and let in those that are not cached.

        Args:
            ids: int64 [n] on the CPU; may repeat.

        Returns:
            bool [n]: whether each was cached when its turn came.

        Raises:
            DataError: an id is out of range.
        """
        array = ids.contiguous().numpy()
        outside = (array < 0) | (array >= self.num_vertices)
        if outside.any():
            position = int(outside.argmax())
            raise DataError(
                f"id {array[position]} at position {position} is out of range: ids are 0 to {self.num_vertices - 1}. "
                "Check that the ids are in the numbering of this partition"
            )
        found = np.zeros(len(array), np.bool_)
        if self.capacity > 0:
            access(
                array,
                self._shares,
                self._uses,
                self._queue,
                self._forgotten,
                self._small,
                self._main,
                self._cursors,
                found,
            )
        return torch.from_numpy(found)
