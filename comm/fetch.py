"""Rows by id: owners are told which rows are wanted of them, and send them."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from windrow.comm.route import Route
from windrow.comm.rows import group_by_owner, offsets_from_counts, spans
from windrow.comm.wire import Wire
from windrow.comm.world import World

if TYPE_CHECKING:
    from windrow.comm.route import Transfer
    from windrow.comm.transfer import Pending

__all__ = ["IdRequest", "check_ranges", "fetch_learnt_rows", "fetch_rows"]

ROUND_BYTES = 8 << 20
"""Bytes to all peers together in a round: posting one takes about 0.1 ms, and four times this is held to pack and land.
With rows of 0.5 to 4 KiB between two ranks on one machine, 8 MiB took 10 % less time than 2."""


class IdRequest:
    """Ids on their way to the ranks that own the rows: counts, then ids. Creating it is collective and does not wait.

    Args:
        wire: of the rows that will be the answer.
        ids: int64 [sum(counts)] on the CPU, grouped by the rank that owns them; must not change until the answer is
            here.
        counts: ids of each rank; none of this one travel.
        first: the first id that this rank owns.
    """

    def __init__(self, wire: Wire, ids: Tensor, counts: Sequence[int], first: int) -> None:
        self._wire = wire
        self._first = first
        self._ids = ids
        self._counts = list(counts)
        self._stage = f"{wire.stage}: ids"
        self._counting = wire.world.start_all_to_all_counts(self._counts, stage=self._stage)
        self._moving: Pending[None] | None = None

    def send_ids(self) -> None:
        """Wait for the counts and send the ids, once. Collective."""
        if self._moving is not None:
            return
        counts = self._counting.wait()
        self._asked = list(torch.empty(sum(counts), dtype=torch.int64).split(counts))
        wanted = list(self._ids.split(self._counts))
        rank = self._wire.world.rank
        self._asked[rank] = wanted[rank]
        self._moving = self._wire.world.start_exchange(wanted, self._asked, stage=self._stage)

    def wait(self) -> list[Tensor]:
        """Wait for the ids: int64 [n] positions of the rows that each rank asks this one for, its own included."""
        self.send_ids()
        assert self._moving is not None
        self._moving.wait()
        return [asked - self._first for asked in self._asked]


def fetch_rows(wire: Wire, offsets: Sequence[int], rows: Tensor, ids: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Gather rows from wherever they live, and wait for them. Collective: every rank calls it, if with no ids.

    Rows travel in rounds of bounded memory that overlap::

        round          0        1        2
        gather      [=====]  [=====]  [==]              rows of this rank that others asked for
        wire           [~~~~~]  [~~~~~]  [~~]           while the next round is gathered
        land                 [=====]  [=====]  [==]

    Args:
        wire: how rows travel.
        offsets: [size + 1], rank r holds ids offsets[r] .. offsets[r + 1] - 1; must agree.
        rows: [offsets[rank + 1] - offsets[rank], ...] this rank's rows.
        ids: [n] int64, 0 <= id < offsets[-1], in any order; n may differ between ranks and be 0. An id that repeats is
            fetched as often.
        out: [n, ...] contiguous memory for the result, of a dtype that rows convert to. None: new memory of the rows'.

    Returns:
        [n, ...] rows in the order of `ids`; what came from another rank is as exact as the codec.

    Raises:
        DataError: an id is out of range.
        ValueError: `offsets` or `rows` do not fit the world.
        DeadlineError: a rank did not come in time.

    Cost: 8 + encoded row bytes on the wire for each id of another rank.
    """
    world = wire.world
    check_ranges(world, offsets, rows)
    ids = ids.cpu()
    order, counts = group_by_owner(ids, offsets)
    grouped = ids if order is None else ids[order]
    if world.meter is not None:
        own = counts[world.rank]
        world.meter.record_found(f"{wire.stage}: rows", local=own, remote=sum(counts) - own)
    positions = IdRequest(wire, grouped, counts, offsets[world.rank]).wait()
    bounds = offsets_from_counts(counts)
    fetched = rows.new_empty((len(ids), *rows.shape[1:])) if out is None else out

    # The memory of a round is used again two rounds later, and still in the cache.
    others = [peer for peer in range(world.size) if peer != world.rank]
    longest = max((max(len(positions[peer]), counts[peer]) for peer in others), default=0)
    row_bytes = max(1, rows.shape[1:].numel() * wire.dtype.itemsize)
    per_round = max(1, ROUND_BYTES // row_bytes // max(1, len(others)))
    under_way: list[Transfer] = []
    for first in range(0, max(longest, 1), per_round):
        spans = [(first, first + per_round)] * world.size
        spans[world.rank] = (0, 0) if first else (0, counts[world.rank])
        places = [
            slice(min(start + low, stop), min(start + high, stop))
            for (low, high), (start, stop) in zip(spans, pairwise(bounds), strict=True)
        ]
        route = Route.of_rows(
            wire,
            [of_rank[low:high] for (low, high), of_rank in zip(spans, positions, strict=True)],
            places if order is None else [order[place] for place in places],
            rows.shape[1:],
        )
        under_way.append(route.start([rows], into=[fetched]))
        if first:
            under_way.pop(0).finish([fetched])
    under_way.pop().finish([fetched])
    return fetched


def fetch_learnt_rows(wire: Wire, offsets: Sequence[int], rows: Tensor, ids: Tensor) -> Tensor:
    """Gather rows that gradients go back to. Collective: every rank calls it, and runs a backward pass through it.

    Args:
        wire: how rows and their gradients travel.
        offsets: see `fetch_rows`.
        rows: [offsets[rank + 1] - offsets[rank], d] float32, differentiable.
        ids: [n] int64 on the CPU, distinct, 0 <= id < offsets[-1], in any order.

    Returns:
        [n, d] rows in the order of `ids`.

    Raises:
        DataError: an id is out of range.
        DeadlineError: a rank did not come in time.

    Cost: 8 + two rows on the wire for each id of another rank, and memory for a copy of all rows that go anywhere.
    """
    check_ranges(wire.world, offsets, rows)
    order, counts = group_by_owner(ids, offsets)
    grouped = ids.clone() if order is None else ids[order]
    positions = IdRequest(wire, grouped, counts, offsets[wire.world.rank]).wait()
    # A row may go to several ranks, but an element of a route's source to one.
    sent = rows[torch.cat(positions).to(rows.device)]
    places = torch.arange(len(ids)) if order is None else order
    route = Route.of_rows(
        wire, spans([len(of_rank) for of_rank in positions]), list(places.split(counts)), rows.shape[1:]
    )
    fetched = sent.new_empty(len(ids), *rows.shape[1:])
    return route.start([sent], differentiable=True).finish([fetched])[0]


def check_ranges(world: World, offsets: Sequence[int], rows: Tensor) -> None:
    """Refuse id ranges and rows that do not fit each other or the world, by a ValueError."""
    if len(offsets) != world.size + 1:
        raise ValueError(f"{len(offsets) - 1} id ranges for {world.size} ranks: there must be one each")
    held = offsets[world.rank + 1] - offsets[world.rank]
    if len(rows) != held:
        raise ValueError(f"rank {world.rank} owns {held} ids but was given {len(rows)} rows")
