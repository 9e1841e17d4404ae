"""Move rows between ranks in rounds that stay in the processor's cache.

    round          0        1        2
    gather      [=====]  [=====]  [==]              rows of this rank that others asked for
    wire           [~~~~~]  [~~~~~]  [~~]           while the next round is gathered
    place                [=====]  [=====]  [==]     at their positions in the result

Moving all rows at once would write them to memory and read them back twice more: after gathering, and before
placing. Where rows arrive in the order they are wanted in, they are received in place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from windrow.comm.codec import Codec
from windrow.comm.pending import Pending
from windrow.comm.splits import offsets_from_counts
from windrow.comm.world import World

__all__ = ["RowStream"]

ROUND_BYTES = 2 << 20
"""Bytes to each peer in a round: the best of 0.25 to 32 MiB in benchmarks/exchange.py, where latency and cache meet."""


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
        round_bytes: decoded bytes to each peer in a round; must agree.
    """

    def __init__(
        self, world: World, rows: Tensor, codec: Codec, *, stage: str, round_bytes: int = ROUND_BYTES
    ) -> None:
        self._world = world
        self._rows = rows
        self._codec = codec
        self._stage = stage
        row_bytes = max(1, rows.shape[1:].numel() * rows.element_size())
        self._rows_per_round = max(1, round_bytes // row_bytes)

    def move(
        self, asked: Sequence[Tensor], counts: Sequence[int], order: Tensor | None, out: Tensor
    ) -> None:
        """Send what was asked of this rank and receive what it asked for. Collective.

        Args:
            asked: for each rank, int64 positions among this rank's rows that it asked for; its own included.
            counts: rows that this rank asked of each rank; rank p's ``len(asked[q])`` is rank q's ``counts[p]``.
            order: [sum(counts)] int64, where each row belongs in `out`, rows grouped by the rank they come from;
                None: where they stand.
            out: [sum(counts), ...] contiguous, to be filled.
        """
        starts = offsets_from_counts(counts)
        rank = self._world.rank
        longest = max(
            max(len(positions), count) if peer != rank else 0
            for peer, (positions, count) in enumerate(zip(asked, counts, strict=True))
        )
        rounds = range(0, longest, self._rows_per_round)
        ahead = self._post(0, asked, counts, starts, order, out) if rounds else None
        self._place_own(asked[rank], starts[rank], order, out)
        for first in rounds:
            current = ahead
            following = first + self._rows_per_round
            ahead = self._post(following, asked, counts, starts, order, out) if following < longest else None
            assert current is not None
            current.pending.wait()
            self._place(current, counts, starts, order, out)

    def _post(
        self,
        first: int,
        asked: Sequence[Tensor],
        counts: Sequence[int],
        starts: Sequence[int],
        order: Tensor | None,
        out: Tensor,
    ) -> _Round:
        sends, wires = [], []
        nothing = out[:0]
        for peer, (positions, count) in enumerate(zip(asked, counts, strict=True)):
            if peer == self._world.rank:
                sends.append(nothing)
                wires.append(nothing)
                continue
            some = positions[first : first + self._rows_per_round]
            sends.append(self._codec.encode(self._rows.index_select(0, some)))
            start, stop = self._span(first, starts[peer], count)
            target = out[start:stop] if order is None else torch.empty_like(out[start:stop])
            wires.append(self._codec.wire_buffer(target))
        return _Round(self._world.start_exchange(sends, wires, stage=self._stage), wires, first)

    def _place(
        self,
        current: _Round,
        counts: Sequence[int],
        starts: Sequence[int],
        order: Tensor | None,
        out: Tensor,
    ) -> None:
        for peer, wire in enumerate(current.wires):
            if len(wire) == 0:
                continue
            start, stop = self._span(current.first, starts[peer], counts[peer])
            if order is None:
                self._codec.decode(wire, out=out[start:stop])
            else:
                decoded = self._codec.decode(wire).to(out.dtype)
                out.index_copy_(0, order[start:stop], decoded)

    def _place_own(self, positions: Tensor, start: int, order: Tensor | None, out: Tensor) -> None:
        if order is None:
            torch.index_select(self._rows, 0, positions, out=out[start : start + len(positions)])
            return
        for first in range(0, len(positions), self._rows_per_round):
            some = positions[first : first + self._rows_per_round]
            places = order[start + first : start + first + len(some)]
            out.index_copy_(0, places, self._rows.index_select(0, some))

    def _span(self, first: int, start: int, count: int) -> tuple[int, int]:
        """Where a round's rows of one peer stand among all that were asked for."""
        return start + min(first, count), start + min(first + self._rows_per_round, count)
