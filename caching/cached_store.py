"""Rows spread over the ranks, of which each rank keeps copies of those it will need most.

    ids --plan--> RowRequest --start--> RowGather:  counts, send_ids, send_rows, finish --> rows in the order of ids

    own rows       this rank's part                 never pass the codec
    cached rows    copies, filled at construction   passed the codec once, and are kept in the form of the wire
    shared rows    read in memory of the host       passed the codec once, before they were shared
    other rows     asked of their owners            pass the codec every time

So the answer does not depend on what is cached or shared, bit for bit. The static cache is that of Kaler et al.,
Communication-Efficient Graph Neural Networks with Probabilistic Neighborhood Expansion Analysis and Caching, MLSys
2023.
"""

import operator
from collections.abc import Sequence
from itertools import compress, pairwise
from typing import Self

import numpy as np
import torch
from torch import Tensor

from windrow.caching.request import RowRequest, index_cache, plan_request
from windrow.caching.window import CacheWindow
from windrow.comm.errors import DataError
from windrow.comm.fetch import IdRequest, check_ranges, fetch_rows
from windrow.comm.route import Route, Rows, Transfer
from windrow.comm.rows import group_by_owner, move_rows, spans
from windrow.comm.shared_memory import SharedRows
from windrow.comm.wire import Codec, Wire
from windrow.comm.world import World

__all__ = ["CachedStore", "LocalRows", "RowGather"]


class LocalRows:
    """Rows in two pieces that are read as one; use `split` to make one.

    `first` [cut, ...], those that are needed most where a part is ordered so, are on the device that answers are wanted
    on, `rest` [n - cut, ...] in memory of the host, copied to the device when needed.
    """

    def __init__(self, first: Tensor, rest: Tensor) -> None:
        assert (first.dtype, first.shape[1:]) == (rest.dtype, rest.shape[1:])
        self._first = first
        self._rest = rest
        self.device, self.dtype, self.row_shape = first.device, first.dtype, first.shape[1:]

    @classmethod
    def split(cls, rows: Tensor, device: torch.device, share: float) -> Self:
        """A GPU keeps a share of rows [n, ...], from the first on; a CPU all, in the memory of `rows`."""
        if device.type == "cpu":
            return cls(rows, rows[:0])
        cut = int(share * len(rows))
        rest = rows[cut:].cpu()
        return cls(rows[:cut].to(device), rest.pin_memory() if len(rest) > 0 else rest)

    def __len__(self) -> int:
        """Rows in both pieces."""
        return len(self._first) + len(self._rest)

    def gather(self, positions: Tensor, *, out: Tensor) -> None:
        """Copy ``rows[positions]`` into `out` [m, ...]; see `move`."""
        if len(self._rest) == 0 and out.device == self.device:
            move_rows(self._first, positions.to(self.device), out, None)
        else:
            self.move(positions, out, torch.arange(len(positions)))

    def move(self, positions: Tensor, out: Tensor, places: Tensor) -> None:
        """Copy row ``positions[i]`` to ``out[places[i]]``, converting where dtypes differ.

        Args:
            positions: int64 [m] on the CPU, 0 <= position < n, which is not checked.
            out: [k, ...] contiguous, any device, of any dtype that rows convert to.
            places: int64 [m] on the CPU, 0 <= place < k, no two equal; neither is checked.
        """
        if len(self._rest) == 0:
            _move_between(self._first, positions, out, places)
            return
        cut = len(self._first)
        in_first, in_rest = positions < cut, positions >= cut
        _move_between(self._first, positions[in_first], out, places[in_first])
        _move_between(self._rest, positions[in_rest] - cut, out, places[in_rest])


def _move_between(rows: Tensor, positions: Tensor, out: Tensor, places: Tensor) -> None:
    """`move_rows` where rows and out may be on different devices; positions and places are on the CPU."""
    if len(positions) == 0:
        return
    if rows.device == out.device:
        move_rows(rows, positions.to(rows.device), out, places.to(out.device))
        return
    pinned = rows.device.type == "cpu" and out.is_cuda
    picked = torch.empty((len(positions), *rows.shape[1:]), dtype=rows.dtype, device=rows.device, pin_memory=pinned)
    move_rows(rows, positions.to(rows.device), picked, None)
    # Before the rows, which may still be on their way to the GPU when this returns: page-locked memory that is let go
    # of is not given out again until then.
    places = places.to(out.device)
    move_rows(picked.to(out.device, non_blocking=pinned), None, out, places)


class CachedStore:
    """Rows of one matrix, spread over the ranks in contiguous id ranges, with copies of some on other ranks.

    Making one is collective: it fetches the copies. Where every rank holds every row, or rows have no numbers, nothing
    is ever sent.

    Args:
        world: all its ranks make the same store and call the same collective methods in the same order.
        offsets: [size + 1], rank r owns ids offsets[r] .. offsets[r + 1] - 1; must agree.
        rows: [offsets[rank + 1] - offsets[rank], ...] this rank's rows, any device; row shape and dtype must agree.
        cached_ids: int64 [c] distinct ids of other ranks to keep copies of, in the order of the cache's slots; may
            differ between ranks. None: none.
        codec: how rows travel; must agree. Where it packs rows into bytes, those of this rank are kept packed besides.
            None: as they are.
        stage: name of the traffic: "<stage>: ids" and "<stage>: rows", "<stage>: cache: ..." for the copies.
        device: where rows are wanted; None: where `rows` are.
        device_share: 0 to 1, share of the own rows, from the first on, that is kept on a GPU; the rest is kept in
            page-locked memory of the host. Means nothing on a CPU.
        shared: the rows of ranks on this host as the codec encodes them, which then do not travel; all ranks give them,
            or none. None: all rows of other ranks travel.

    Raises:
        ValueError: `offsets` or `rows` do not fit the world.
        DataError: a cached id is out of range, given twice, or this rank's own.
        DeadlineError: a rank did not come in time.
    """

    def __init__(
        self,
        world: World,
        offsets: Sequence[int],
        rows: Tensor,
        *,
        cached_ids: Tensor | None = None,
        codec: Codec | None = None,
        stage: str = "rows",
        device: torch.device | None = None,
        device_share: float = 1.0,
        shared: SharedRows | None = None,
    ) -> None:
        self.world = world
        self.stage = stage
        self.offsets = [int(offset) for offset in offsets]
        self.is_empty = rows.shape[1:].numel() == 0
        """Whether rows have no numbers."""
        if self.is_empty:
            cached_ids, codec, shared = None, None, None
        codec = codec or Codec()
        check_ranges(world, self.offsets, rows)
        first, stop = self.offsets[world.rank], self.offsets[world.rank + 1]
        wanted = torch.empty(0, dtype=torch.int64) if cached_ids is None else cached_ids.cpu()
        self.index = index_cache(wanted, self.offsets[-1])
        own = (wanted >= first) & (wanted < stop)
        if bool(own.any()):
            raise DataError(
                f"cached id {int(wanted[own][0])} is one of rank {world.rank}'s own, {first} to {stop - 1}: "
                "give ids of other ranks"
            )
        self.device = rows.device if device is None else torch.device(device)
        self.local = LocalRows.split(rows, self.device, device_share)
        self.row_shape, self.dtype = rows.shape[1:], rows.dtype
        self.codec = codec
        self.shared = shared
        self.packed: LocalRows | None = None
        """This rank's rows as they travel, where these are bytes that no single number can be read from."""
        if codec.of_message(world.rank, sent=True) is not None:
            # Rows that do not change are encoded once, not for each message that they are in.
            rows = codec.encode(rows) if shared is None else shared.local
            self.packed, codec = LocalRows.split(rows, self.device, device_share), Codec()
        copies = rows.new_empty((len(wanted), *rows.shape[1:]), dtype=codec.wire_dtype(rows.dtype))
        wire = Wire(world, stage=f"{stage}: cache", codec=codec, dtype=rows.dtype, device=rows.device)
        self.cached = fetch_rows(wire, self.offsets, rows, wanted, out=copies).to(self.device)
        """[c, ...] the copies, by slot, as the codec encodes them: whatever they are converted to, they equal what
        would have arrived, and take no more memory."""
        held = {world.rank} | (shared.near if shared else set())
        self.by_message = [rank not in held for rank in range(world.size)]
        """Whose rows travel: those of other ranks, but for what is read from shared memory."""
        sizes = [stop - start for start, stop in pairwise(self.offsets)]
        kept = group_by_owner(wanted, self.offsets)[1]
        missing = 0 if self.is_empty else sum(compress(map(operator.sub, sizes, kept), self.by_message))
        most = world.all_reduce(torch.tensor([missing, len(wanted)]), stage=f"{stage}: cache", op="max")
        self.needs_messages, self._is_cached = most.bool().tolist()
        """Whether some rank lacks a row, else nothing is ever sent; and whether some rank keeps one of others."""
        self._kept, self._has_window = wanted, False
        self.under_way: list[RowGather] = []
        """Gathers that were started, and are not finished."""
        self.wire = Wire(
            world,
            stage=stage,
            codec=codec,
            dtype=rows.dtype,
            device=self.device,
            packed_on=world.transport_device(self.device),
            # The minibatch that is computed meanwhile needs its sums of gradients sooner.
            gives_way=True,
        )
        """How rows that are asked for travel."""

    def plan(self, ids: Tensor) -> RowRequest:
        """Work out where the rows of ids, int64 [n] on the CPU, come from, for `start`; see `plan_request`."""
        return plan_request(ids, self.offsets, self.world.rank, self.index)

    def plan_uncached(self, ids: Tensor) -> RowRequest:
        """The same as if nothing were cached, for a `window`."""
        return plan_request(ids, self.offsets, self.world.rank, self.index[:0])

    def window(self, length: int) -> CacheWindow | None:
        """What changes the cache from minibatch to minibatch, where so many that follow each are known.

        Cached ids were given the most probable first. Once for a store; the rows that it has gathered are written to
        memory of the dtype of its rows, or to one that holds each of their numbers.

        Returns:
            None, on all ranks, where caches may stay as they are: no length, nothing in any, or nothing that is ever
            sent.
        """
        if not length or not self._is_cached or not self.needs_messages:
            return None
        assert not self._has_window, "a second window would not know what the first has changed"
        self._has_window = True
        if not len(self._kept):
            self.index = np.full(self.offsets[-1], -1, np.int32)
        return CacheWindow(self.index, self._kept, self.by_message, length=length)

    def start(self, request: RowRequest) -> "RowGather":
        """Begin to gather what was planned: tell other ranks how many rows are wanted. Collective; does not wait.

        The stages of the gather follow. Several may be under way.
        """
        asked = None
        if self.needs_messages:
            ids = self.travelling(request.remote, request.remote_counts)
            asked = IdRequest(self.wire, torch.cat(ids), list(map(len, ids)), self.offsets[self.world.rank])
        gather = RowGather(self, request, asked)
        self.under_way.append(gather)
        return gather

    def settle(self) -> None:
        """Finish the gathers whose caller has given them up: no message lands in memory that is gone. Collective.

        What `plan` takes for cached is there then.
        """
        while self.under_way:
            self.under_way[0].finish()

    def travelling(self, grouped: Tensor, counts: Sequence[int]) -> list[Tensor]:
        """What is grouped by rank, [sum(counts)], for each rank; nothing for those whose rows do not travel."""
        return [part[: len(part) * sent] for part, sent in zip(grouped.split(counts), self.by_message, strict=True)]


class RowGather:
    """Rows on their way to this rank; made by `CachedStore.start`.

    Its stages are `send_ids`, `send_rows` and `finish`; each first does those before it, and waits for no more than the
    message that the stage before has posted. Every rank calls them, those of several gathers in the same order, and
    finishes every gather; what a caller gives up, `CachedStore.settle` finishes.
    """

    def __init__(self, store: CachedStore, request: RowRequest, asked: IdRequest | None) -> None:
        self._store = store
        self._request = request
        self._asked = asked
        self._transfer: Transfer | None = None

    def send_ids(self) -> None:
        """Wait for the counts, then tell other ranks which rows are wanted of them. Collective."""
        if self._asked is not None:
            self._asked.send_ids()

    def send_rows(self) -> None:
        """Wait for the ids, then gather and send the rows that other ranks asked for. Collective."""
        if self._asked is None or self._transfer is not None:
            return
        store, request = self._store, self._request
        places = store.travelling(request.remote_places, request.remote_counts)
        if store.packed is None:
            route = Route.of_rows(store.wire, self._asked.wait(), places, store.row_shape)
            self._transfer = route.start([store.local])
            return
        self._places = torch.cat(places)
        row_shape = store.packed.row_shape
        self._arriving = torch.empty((len(self._places), *row_shape), dtype=torch.uint8, device=store.device)
        targets: list[Rows] = [*spans(list(map(len, places)))]
        # What lands without a message lands in places that are listed, here none.
        targets[store.world.rank] = places[store.world.rank]
        route = Route.of_rows(store.wire, self._asked.wait(), targets, row_shape)
        self._transfer = route.start([store.packed], into=[self._arriving])

    def finish(self, out: Tensor | None = None) -> Tensor:
        """Put own and cached rows in their places, wait for the others, and put these in theirs. Collective.

        Args:
            out: [number of ids, ...] contiguous memory for the result on the store's device, of the rows' dtype or one
                they convert to: new memory costs as much time as filling it, so a caller that gathers at every step
                keeps its own. None: new memory, of the rows' dtype.

        Returns:
            `out`, or the new rows: in the order of the ids.
        """
        self.send_rows()
        store, request = self._store, self._request
        if out is None:
            out = torch.empty((request.num_rows, *store.row_shape), dtype=store.dtype, device=store.device)
        store.local.move(request.local, out, request.local_places)
        slots, places = request.cached.to(store.device), request.cached_places.to(store.device)
        store.codec.decode(store.cached, out, positions=slots, places=places)
        shared = 0
        if store.shared is not None:
            grouped = request.remote, request.remote_counts, request.remote_places
            shared = store.shared.read(*grouped, store.offsets, store.codec, out)
        if self._transfer is not None:
            if store.packed is None:
                self._transfer.finish([out])
            else:
                self._transfer.finish([self._arriving])
                store.codec.decode(self._arriving, out, places=self._places.to(store.device))
            self._keep(out)
        store.under_way.remove(self)
        # Counted when they are there: a gather that is under way when a checkpoint is written is made again after it.
        if store.world.meter is not None and not store.is_empty:
            store.world.meter.record_found(
                f"{store.stage}: rows",
                local=len(request.local),
                cached=len(request.cached),
                shared=shared,
                remote=len(request.remote) - shared,
            )
        return out

    def _keep(self, out: Tensor) -> None:
        """Have the cache hold what it shall from now on, in the form in which it came."""
        store, request = self._store, self._request
        positions, slots = request.kept, request.kept_slots
        if positions is None or slots is None:
            return
        rows = out
        if store.packed is None:
            positions = torch.cat(store.travelling(request.remote_places, request.remote_counts))[positions]
        else:
            rows = self._arriving
        move_rows(rows, positions.to(store.device), store.cached, slots.to(store.device))
