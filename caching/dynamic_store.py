"""Rows spread over the ranks, with copies of those that were asked for lately, for rows that change: an S3-FIFO cache.

A request of distinct ids finds own rows, copies that are still true, and the rest, which is fetched, and kept where the
cache lets it in. The cache decides for itself what to keep::

    new id  ->  small queue, a tenth of the slots  -- used again twice -->  main queue, the rest  -- unused -->  gone
                        |                                    ^  |  used: round again, one use less
                        | otherwise                          |  +-----+
                        v                                    |
                 forgotten: remembered by id only  -- used --+

Most ids are used once, and leave through the small queue soon, so that they push nothing out that is used often.

Yang, Zhang, Qiu, Yue, Rashmi: FIFO queues are all you need for cache eviction, SOSP 2023. As there, a tenth of the
slots is the small queue's, uses are counted up to 3, and as many ids are remembered as the main queue has slots.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from windrow.caching.cached_store import LocalRows
from windrow.caching.request import CacheIndex, plan_request
from windrow.caching.store_kernels import access
from windrow.comm.codec import Codec, Fp32Codec
from windrow.comm.errors import DataError
from windrow.comm.row_fetch import RowFetcher
from windrow.comm.rows import distinct_ids, group_by_owner, move_rows
from windrow.comm.world import World

__all__ = ["DynamicCache", "DynamicStore"]

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


class DynamicStore:
    """Rows of one matrix, spread over the ranks in contiguous id ranges, with copies that come and go.

    An owner changes its rows in place, in the tensor that it gave; then every rank calls `invalidate` with the ids of
    what has changed. Where rows never change, `windrow.caching.cached_store.CachedStore` sends less and does not wait.

    Args:
        world: all its ranks make the same store and call `gather` in the same order.
        offsets: [size + 1], rank r owns ids offsets[r] .. offsets[r + 1] - 1; must agree.
        rows: [offsets[rank + 1] - offsets[rank], ...] this rank's rows, kept by reference; row shape and dtype must
            agree.
        capacity: copies of rows of other ranks that this rank keeps at most; may differ between ranks.
        codec: how rows travel; must agree. None: as they are.
        stage: name of the traffic: "<stage>: ids" and "<stage>: rows".

    Raises:
        ValueError: `offsets` or `rows` do not fit the world, or the capacity is negative.
    """

    def __init__(
        self,
        world: World,
        offsets: Sequence[int],
        rows: Tensor,
        *,
        capacity: int,
        codec: Codec | None = None,
        stage: str = "rows",
    ) -> None:
        self.world = world
        self.stage = stage
        self.offsets = [int(offset) for offset in offsets]
        if len(self.offsets) != world.size + 1:
            raise ValueError(
                f"{len(self.offsets) - 1} id ranges for {world.size} ranks: there must be one each"
            )
        first, stop = self.offsets[world.rank], self.offsets[world.rank + 1]
        if len(rows) != stop - first:
            raise ValueError(f"rank {world.rank} owns {stop - first} ids but was given {len(rows)} rows")
        self.cache = DynamicCache(capacity, self.offsets[-1])
        codec = codec or Fp32Codec()
        self._local = LocalRows(rows, rows[:0].cpu())
        self._nothing = CacheIndex(torch.empty(0, dtype=torch.int64), self.offsets[-1])
        self._fetcher = RowFetcher(world, self._local, first=first, codec=codec, stage=stage)
        # In the number format of the wire, so that a copy equals what would arrive.
        kept_as = codec.wire_dtype(rows.dtype) or torch.float32
        self._copies = torch.empty((capacity, *rows.shape[1:]), dtype=kept_as, device=rows.device)

    def invalidate(self, ids: Tensor) -> None:
        """Forget copies of rows that have changed; no collective. A rank that has none of them may be told or not.

        Args:
            ids: int64 [n] on the CPU, 0 <= id < offsets[-1].

        Raises:
            DataError: an id is out of range.
        """
        self.cache.invalidate(ids)

    def gather(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Gather rows, and wait for them. Collective: every rank calls it, if with no ids.

        Args:
            ids: int64 [n] on the CPU, 0 <= id < offsets[-1], in any order; may repeat, and is asked for once.
            out: [n, ...] contiguous memory for the result, on the device of the rows, of a dtype they convert to.
                None: new memory, of the rows' dtype.

        Returns:
            `out`, or the new rows: in the order of `ids`.

        Raises:
            DataError: an id is out of range.
            DeadlineError: a rank did not come in time.
        """
        distinct, inverse = distinct_ids(ids)
        device = self._local.device
        request = plan_request(distinct, self.offsets, self.world.rank, self._nothing)
        rows = torch.empty(
            (len(distinct), *self._local.row_shape),
            dtype=self._local.dtype if out is None else out.dtype,
            device=device,
        )
        self._local.move(request.local, rows, request.local_places)
        slots = self.cache.find_and_admit(request.remote)
        hit = slots >= 0
        # All copies that are wanted are read before the first one is overwritten.
        move_rows(self._copies, slots[hit].long().to(device), rows, request.remote_places[hit].to(device))
        missing = request.remote[~hit]
        _, counts = group_by_owner(missing, self.offsets)
        if self.world.meter is not None:
            self.world.meter.record_found(
                f"{self.stage}: rows",
                local=len(request.local),
                cached=len(request.remote) - len(missing),
                remote=len(missing),
            )
        fetched = self._fetch(missing, counts)
        move_rows(fetched, None, rows, request.remote_places[~hit].to(device))
        self._keep(missing, fetched)
        if out is None:
            return rows.index_select(0, inverse.to(device))
        move_rows(rows, inverse.to(device), out, None)
        return out

    def _fetch(self, ids: Tensor, counts: Sequence[int]) -> Tensor:
        fetch = self._fetcher.start(ids, counts)
        fetch.send_ids()
        fetch.send_rows()
        fetched = self._copies.new_empty((len(ids), *self._local.row_shape))
        fetch.finish(fetched, torch.arange(len(ids)))
        return fetched

    def _keep(self, ids: Tensor, fetched: Tensor) -> None:
        slots = self.cache.slots(ids)
        kept = (slots >= 0).nonzero().squeeze(1)
        device = self._local.device
        move_rows(fetched, kept.to(device), self._copies, slots[kept].long().to(device))
