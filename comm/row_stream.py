"""Move rows between ranks in rounds of bounded memory.

    round          0        1        2
    gather      [=====]  [=====]  [==]              rows of this rank that others asked for
    wire           [~~~~~]  [~~~~~]  [~~]           while the next round is gathered
    place                [=====]  [=====]  [==]     at their positions in the result

The memory of a round is used again: the system clears new memory page by page when it is first touched, which costs
more than sending it. Where rows arrive in the order they are wanted in, they are received in place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from windrow.comm.codec import Codec
from windrow.comm.rows import gather_rows, offsets_from_counts, scatter_rows
from windrow.comm.transfer import Pending
from windrow.comm.world import World

__all__ = ["RowStream"]

ROUND_BYTES = 2 << 20
"""Bytes to all peers together in a round: 1 to 4 MiB were fastest of 1 to 64, where a round costs far more than
starting one and still fits the cache. A stream keeps up to four times this."""

OWN_ROWS = 1024
"""This rank's own rows are copied twice, this many at a time, so that the copy in between stays in the cache."""


@dataclass(frozen=True)
class _Request:
    """What one call of `RowStream.move` is about; see there."""

    asked: Sequence[Tensor]
    counts: Sequence[int]
    starts: Sequence[int]
    """Where the rows of each rank start among all that were asked for."""
    order: Tensor | None
    out: Tensor


@dataclass(frozen=True)
class _Round:
    """One round on its way."""

    pending: Pending[None]
    wires: list[Tensor]
    """What arrives, per peer."""
    first: int
    """Number of the round's first row, in the order of each peer's rows."""


class RowStream:
    """Answers requests for this rank's rows, and places the answers to its own.

    Args:
        world: all its ranks move at the same time.
        rows: [rows held here, ...], any device.
        codec: how rows travel.
        stage: name of the traffic.
        round_bytes: decoded bytes to all peers together in a round; must agree.
    """

    def __init__(
        self, world: World, rows: Tensor, codec: Codec, *, stage: str, round_bytes: int = ROUND_BYTES
    ) -> None:
        self._world = world
        self._rows = rows
        self._codec = codec
        self._stage = stage
        row_bytes = max(1, rows.shape[1:].numel() * rows.element_size())
        self._rows_per_round = max(1, round_bytes // row_bytes // max(1, world.size - 1))
        self._memory: dict[tuple[str, int, int], Tensor] = {}

    def move(self, asked: Sequence[Tensor], counts: Sequence[int], order: Tensor | None, out: Tensor) -> None:
        """Send what was asked of this rank and receive what it asked for. Collective.

        Args:
            asked: for each rank, int64 positions among this rank's rows that it asked for; its own included.
            counts: rows that this rank asked of each rank; rank p's ``len(asked[q])`` is rank q's ``counts[p]``.
            order: [sum(counts)] int64, where each row belongs in `out`, rows grouped by the rank they come from;
                None: where they stand.
            out: [sum(counts), ...] contiguous, to be filled.
        """
        request = _Request(asked, counts, offsets_from_counts(counts), order, out)
        lengths = [max(len(positions), count) for positions, count in zip(asked, counts, strict=True)]
        longest = max((length for peer, length in enumerate(lengths) if peer != self._world.rank), default=0)
        current = self._post(request, 0) if longest > 0 else None
        self._place_own(request)
        while current is not None:
            following = current.first + self._rows_per_round
            ahead = self._post(request, following) if following < longest else None
            current.pending.wait()
            self._place(request, current)
            current = ahead

    def _post(self, request: _Request, first: int) -> _Round:
        nothing = request.out[:0]
        sends = [nothing] * self._world.size
        wires = [nothing] * self._world.size
        for peer, positions in enumerate(request.asked):
            if peer == self._world.rank:
                continue
            some = positions[first : first + self._rows_per_round]
            gathered = self._reused("gathered", peer, first, len(some))
            gather_rows(self._rows, some, out=gathered)
            sends[peer] = self._codec.encode(gathered)
            span = self._span(request, peer, first)
            if request.order is None:
                target = request.out[span]
            else:
                target = self._reused("arriving", peer, first, span.stop - span.start)
            wires[peer] = self._codec.wire_buffer(target)
        return _Round(self._world.start_exchange(sends, wires, stage=self._stage), wires, first)

    def _place(self, request: _Request, arrived: _Round) -> None:
        for peer, wire in enumerate(arrived.wires):
            if len(wire) == 0:
                continue
            span = self._span(request, peer, arrived.first)
            if request.order is None:
                self._codec.decode(wire, out=request.out[span])
            else:
                decoded = self._codec.decode(wire).to(request.out.dtype)
                scatter_rows(decoded, request.order[span], out=request.out)

    def _place_own(self, request: _Request) -> None:
        """Copy the rows that this rank asked of itself; they never meet the codec."""
        rank = self._world.rank
        positions, start = request.asked[rank], request.starts[rank]
        if request.order is None:
            gather_rows(self._rows, positions, out=request.out[start : start + len(positions)])
            return
        places = request.order[start : start + len(positions)]
        for some, where in zip(positions.split(OWN_ROWS), places.split(OWN_ROWS), strict=True):
            scatter_rows(self._rows.index_select(0, some), where, out=request.out)

    def _reused(self, what: str, peer: int, first: int, count: int) -> Tensor:
        """Memory for `count` rows. Two rounds are on their way at a time, so every other one has the same."""
        key = (what, peer, first // self._rows_per_round % 2)
        memory = self._memory.get(key)
        if memory is None or len(memory) < count:
            memory = self._memory[key] = self._rows.new_empty((count + count // 8, *self._rows.shape[1:]))
        return memory[:count]

    def _span(self, request: _Request, peer: int, first: int) -> slice:
        """Where a round's rows of one peer stand among all that were asked for."""
        start, count = request.starts[peer], request.counts[peer]
        return slice(start + min(first, count), start + min(first + self._rows_per_round, count))
