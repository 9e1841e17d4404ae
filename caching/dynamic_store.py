"""Rows spread over the ranks, with copies of those that were asked for lately: for rows that change.

distinct ids    own rows  |  copies that are still true  |  fetched, and kept where the cache lets them in
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from windrow.caching.cache_index import CacheIndex
from windrow.caching.dynamic import DynamicCache
from windrow.caching.local_rows import LocalRows
from windrow.caching.request import plan_request
from windrow.comm.codec import Codec, Fp32Codec
from windrow.comm.distinct import distinct_ids
from windrow.comm.row_fetch import RowFetcher
from windrow.comm.rows import move_rows
from windrow.comm.splits import group_by_owner
from windrow.comm.world import World

__all__ = ["DynamicStore"]


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
