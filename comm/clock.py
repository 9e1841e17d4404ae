r"""The clocks of ranks, laid over that of rank 0 by exchanged messages.

    rank r    sent_ns ----------.                       .---> received_ns        its own clock
                                 \                     /
    rank 0                        '--> arrived_ns  left_ns                       the clock of rank 0

The offset is known best where both ways took equally long: (arrived + left - sent - received) / 2. It is wrong by half
the time on the way at most, however unequal the ways were, so of many exchanges the quickest one counts (Cristian,
"Probabilistic clock synchronization", 1989; the formula is that of the Network Time Protocol, RFC 5905).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from windrow.comm.meter import trace_clock_ns
from windrow.comm.world import World, exchange_with

__all__ = ["ClockAlignment", "ClockOffset", "measure_clock_offset"]

PING_PONGS = 48
"""Of these, on an idle network, most are as quick as the quickest; on a machine with more ranks than cores, some."""

STAGE = "clock"


class _PingPong(NamedTuple):
    """One message to rank 0 and its answer, as drawn above."""

    sent_ns: int
    arrived_ns: int
    left_ns: int
    received_ns: int

    @property
    def on_the_way_ns(self) -> int:
        """Time that both messages took together."""
        return (self.received_ns - self.sent_ns) - (self.left_ns - self.arrived_ns)


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """How far a rank's clock was behind that of rank 0, and when."""

    at_ns: int
    """Own clock."""
    offset_ns: int
    """To be added to the own clock to have that of rank 0."""
    uncertainty_ns: int
    """The offset is wrong by this much at most."""


@dataclass(frozen=True, slots=True)
class ClockAlignment:
    """A rank's clock as that of rank 0, between two measurements and a little beyond.

    Clocks of two machines run at slightly different speeds (some tens of microseconds in a second at most), evenly
    enough for a straight line between two measurements.
    """

    first: ClockOffset
    """At the beginning."""
    last: ClockOffset
    """At the end; the same as `first` where nothing was measured there."""

    def to_rank_0_ns(self, own_ns: int) -> int:
        """Any moment of the own clock on the clock of rank 0; later moments never come before earlier ones."""
        elapsed = self.last.at_ns - self.first.at_ns
        gained = self.last.offset_ns - self.first.offset_ns
        if elapsed <= 0:
            return own_ns + self.first.offset_ns
        return own_ns + self.first.offset_ns + gained * (own_ns - self.first.at_ns) // elapsed

    @property
    def uncertainty_ns(self) -> int:
        """The larger one of both measurements."""
        return max(self.first.uncertainty_ns, self.last.uncertainty_ns)


def _best_offset(ping_pongs: Sequence[_PingPong]) -> ClockOffset:
    """The offset that the quickest of some exchanges tells; there is at least one."""
    best = min(ping_pongs, key=lambda one: one.on_the_way_ns)
    twice = best.arrived_ns + best.left_ns - best.sent_ns - best.received_ns
    # Rounded down here and up there, so that the bound holds for whole nanoseconds too.
    return ClockOffset(
        at_ns=(best.sent_ns + best.received_ns) // 2, offset_ns=twice // 2, uncertainty_ns=(best.on_the_way_ns + 1) // 2
    )


def measure_clock_offset(world: World) -> ClockOffset:
    """Compare this rank's clock with that of rank 0, whose own offset is 0 and certain. Collective.

    Raises:
        DeadlineError: a rank did not come in time.

    Cost: 2 * `PING_PONGS` * (size - 1) short messages, one after another.
    """
    if world.rank == 0:
        for peer in range(1, world.size):
            for _ in range(PING_PONGS):
                exchange_with(world, peer, receive=torch.empty(1, dtype=torch.int64), stage=STAGE)
                arrived_ns = trace_clock_ns()
                exchange_with(world, peer, send=torch.tensor([arrived_ns, trace_clock_ns()]), stage=STAGE)
        return ClockOffset(at_ns=trace_clock_ns(), offset_ns=0, uncertainty_ns=0)
    return _best_offset([_ping_pong(world) for _ in range(PING_PONGS)])


def _ping_pong(world: World) -> _PingPong:
    times = torch.empty(2, dtype=torch.int64)
    sent_ns = trace_clock_ns()
    exchange_with(world, 0, send=torch.zeros(1, dtype=torch.int64), stage=STAGE)
    exchange_with(world, 0, receive=times, stage=STAGE)
    received_ns = trace_clock_ns()
    arrived_ns, left_ns = times.tolist()
    return _PingPong(sent_ns, arrived_ns, left_ns, received_ns)
