"""Fetch rows from the ranks that hold them in stages that do not block, with several requests under way at a time.

    request i        counts   ids   gather, rows   place
    request i + 1             counts   ids   gather, rows   place
    request i + 2                      counts   ids   gather, rows   place

A stage waits for the message of the stage before, which by then has had a whole step to travel, and posts its own.
Whole messages travel, in memory that later requests use again: the system clears new memory page by page when it is
first touched, which costs more than sending it. `windrow.comm.exchange.RowExchange` is for callers that wait: it moves
rows in rounds of bounded memory, and overlaps gathering, wire and placing within one request, so the two share nothing
but the codec and the copying of rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from windrow.comm.codec import Codec
from windrow.comm.rows import move_rows
from windrow.comm.world import World

if TYPE_CHECKING:
    from windrow.comm.transfer import Pending

__all__ = ["RowFetch", "RowFetcher", "RowSource"]

CODED_BYTES = 256 << 10
"""Rows are encoded and decoded this many bytes at a time, so that they stay in the cache from one pass to the next."""

GROWTH = 8
"""Memory that must grow gets this fraction (1 / 8) on top, so that it grows a few times only."""


class RowSource(Protocol):
    """The rows of this rank that others may ask for."""

    @property
    def row_shape(self) -> torch.Size:
        """Shape of one row."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""

    @property
    def device(self) -> torch.device:
        """Where the rows are, or most of them."""

    def gather(self, positions: Tensor, *, out: Tensor) -> None:
        """Copy the rows at `positions` (int64 on the CPU) into `out` (contiguous, maybe of another dtype)."""


@dataclass
class _Memory:
    """What one request needs while it is under way; later ones use it again."""

    asked: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """Ids that other ranks asked for."""
    outgoing: Tensor | None = None
    """Their rows, encoded."""
    incoming: Tensor | None = None
    """Rows that this rank asked for, encoded."""
    copied: torch.cuda.Event | None = None
    """When the GPU has read `incoming`; None where that was done at once."""


class RowFetcher:
    """Starts requests for rows of other ranks, and answers theirs.

    Args:
        world: all its ranks make the same fetcher and call the same methods in the same order.
        source: the rows of this rank; row shape and dtype must agree.
        first: id of this rank's first row.
        codec: how rows travel; must agree.
        stage: name of the traffic: "<stage>: ids" and "<stage>: rows".
    """

    def __init__(self, world: World, source: RowSource, *, first: int, codec: Codec, stage: str) -> None:
        self.world = world
        self.source = source
        self.first = first
        self.codec = codec
        self.stage = stage
        self._free: list[_Memory] = []
        # A dtype that the codec cannot take is refused here, not in the middle of a request.
        codec.encode(torch.zeros((1, *source.row_shape), dtype=source.dtype))
        self.wire_dtype = codec.wire_dtype(source.dtype)
        """Of what travels, where copying rows into it is all there is to encoding; None: the codec must be asked."""

    def start(self, ids: Tensor, counts: Sequence[int]) -> "RowFetch":
        """Tell every rank how many of its rows are wanted. Collective; does not wait.

        Args:
            ids: int64 [sum(counts)] on the CPU, grouped by the rank that owns them; must not change until the end.
            counts: ids of each rank, none of this one.

        Returns:
            The request; its stages follow.
        """
        memory = self._free.pop() if self._free else _Memory()
        return RowFetch(self, ids, counts, memory)

    def take_back(self, memory: _Memory) -> None:
        """Keep memory that a request no longer needs for another one."""
        self._free.append(memory)

    def wire(self, memory: Tensor | None, num_rows: int) -> Tensor:
        """Room for at least so many encoded rows: `memory` where that is enough, else new."""
        if memory is not None and len(memory) >= num_rows:
            return memory
        device = self.world.transport_device(self.source.device)
        rows = torch.empty(
            (num_rows + num_rows // GROWTH, *self.source.row_shape),
            dtype=self.wire_dtype or self.source.dtype,
            device=device,
            pin_memory=self.source.device.type == "cuda" and device.type == "cpu",
        )
        return rows if self.wire_dtype is not None else self.codec.wire_buffer(rows)

    def rows_coded_at_once(self, num_rows: int) -> int:
        """Of so many rows, how many to encode or decode in one pass: on a GPU all."""
        if self.source.device.type != "cpu":
            return max(1, num_rows)
        row_bytes = max(1, self.source.row_shape.numel() * self.source.dtype.itemsize)
        return max(1, CODED_BYTES // row_bytes)


class RowFetch:
    """One request under way; made by `RowFetcher.start`.

    Call `send_ids`, `send_rows` and `finish`, in this order. All are collective: the stages of several requests come
    in the same order on all ranks.
    """

    def __init__(self, fetcher: RowFetcher, ids: Tensor, counts: Sequence[int], memory: _Memory) -> None:
        self._fetcher = fetcher
        self._world = fetcher.world
        self._ids = ids
        self._counts = list(counts)
        self._memory: _Memory | None = memory
        self._asked_counts: list[int] = []
        self._pending_counts: Pending[list[int]] | None = self._world.start_all_to_all_counts(
            self._counts, stage=f"{fetcher.stage}: ids"
        )
        self._pending_ids: Pending[None] | None = None
        self._pending_rows: Pending[None] | None = None

    def send_ids(self) -> None:
        """Wait for the counts and send the ids."""
        assert self._pending_counts is not None, "send_ids follows start"
        assert self._memory is not None
        self._asked_counts = self._pending_counts.wait()
        self._pending_counts = None
        total = sum(self._asked_counts)
        if len(self._memory.asked) < total:
            self._memory.asked = torch.empty(total + total // GROWTH, dtype=torch.int64)
        self._pending_ids = self._world.start_exchange(
            self._ids.split(self._counts),
            self._memory.asked[:total].split(self._asked_counts),
            stage=f"{self._fetcher.stage}: ids",
        )

    def send_rows(self) -> None:
        """Wait for the ids, gather the rows that others asked for, and send them."""
        assert self._pending_ids is not None, "send_rows follows send_ids"
        memory, fetcher = self._memory, self._fetcher
        assert memory is not None
        self._pending_ids.wait()
        self._pending_ids = None
        if memory.copied is not None:
            memory.copied.synchronize()
            memory.copied = None
        num_asked, num_wanted = sum(self._asked_counts), sum(self._counts)
        memory.outgoing = fetcher.wire(memory.outgoing, num_asked)
        memory.incoming = fetcher.wire(memory.incoming, num_wanted)
        outgoing = memory.outgoing[:num_asked]
        positions = memory.asked[:num_asked].sub_(fetcher.first)
        if fetcher.wire_dtype is not None:
            fetcher.source.gather(positions, out=outgoing)
        else:
            self._encode(positions, outgoing)
        self._pending_rows = self._world.start_exchange(
            outgoing.split(self._asked_counts),
            memory.incoming[:num_wanted].split(self._counts),
            stage=f"{fetcher.stage}: rows",
            # The minibatch that is computed meanwhile needs its sums of gradients sooner.
            gives_way=True,
        )

    def finish(self, out: Tensor, places: Tensor) -> None:
        """Wait for the rows and put them where they belong.

        Args:
            out: [n, ...] contiguous, of any device and of a dtype that rows convert to.
            places: int64 [number of ids] on the CPU, where the row of each id belongs; no two equal.
        """
        assert self._pending_rows is not None, "finish follows send_rows"
        assert self._memory is not None
        self._pending_rows.wait()
        self._pending_rows = None
        assert self._memory.incoming is not None
        # Before the rows, which may still be on their way to the GPU when this returns.
        places = places.to(out.device)
        arrived = self._memory.incoming[: len(places)].to(out.device, non_blocking=out.is_cuda)
        if self._fetcher.wire_dtype is not None:
            move_rows(arrived, None, out, places)
        else:
            self._decode(arrived, out, places)
        if out.is_cuda:
            self._memory.copied = torch.cuda.current_stream(out.device).record_event()
        self._fetcher.take_back(self._memory)
        self._memory = None

    def _encode(self, positions: Tensor, wire: Tensor) -> None:
        source, some = self._fetcher.source, self._fetcher.rows_coded_at_once(len(positions))
        scratch = torch.empty(
            (min(some, len(positions)), *source.row_shape), dtype=source.dtype, device=source.device
        )
        for part, encoded in zip(positions.split(some), wire.split(some), strict=True):
            rows = scratch[: len(part)]
            source.gather(part, out=rows)
            encoded.copy_(self._fetcher.codec.encode(rows))

    def _decode(self, wire: Tensor, out: Tensor, places: Tensor) -> None:
        some = self._fetcher.rows_coded_at_once(len(wire))
        scratch = out.new_empty((min(some, len(wire)), *out.shape[1:]))
        for part, where in zip(wire.split(some), places.split(some), strict=True):
            rows = scratch[: len(part)]
            self._fetcher.codec.decode(part, out=rows)
            move_rows(rows, None, out, where)
