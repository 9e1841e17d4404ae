"""What a rank does when: spans of time, from any thread, for a timeline of the run.

A world and a stopwatch record into their `Tracer` when they have one (``world.tracer = Tracer()``) and do nothing
otherwise.
"""

import time
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeVar

__all__ = ["SPANS_PER_RANK", "Operation", "Span", "Tracer", "trace_clock_ns"]

T = TypeVar("T")

Operation = Literal["work", "exchange", "all_reduce"]

SPANS_PER_RANK = 200_000
"""Spans kept: about 50 MB of memory and 25 MB of timeline for each rank, which a viewer still opens."""


class Span(NamedTuple):
    """Something that a rank did, from one moment to another."""

    stage: str
    """What for, as in the meter and the stopwatch."""
    begin_ns: int
    """On the clock of `trace_clock_ns`."""
    end_ns: int
    """For communication: when this rank saw that it was complete, which may be long after it was."""
    operation: Operation = "work"
    """What was under way: this rank's own work, or communication with others."""
    bytes_sent: int = 0
    """Bytes to other ranks; of an all-reduce the tensor's, counted once."""
    bytes_received: int = 0
    """Bytes from other ranks; of an all-reduce the same as `bytes_sent`."""


class Tracer:
    """Keeps the spans of one rank, up to a limit; later ones are counted and forgotten.

    Threads may record at the same time. A span is kept when it ends, so those that enclose others come after them.

    Args:
        capacity: spans kept.
    """

    def __init__(self, *, capacity: int = SPANS_PER_RANK) -> None:
        self._capacity = capacity
        self._dropped = 0
        self._spans: list[Span] = []

    def record(
        self,
        stage: str,
        begin_ns: int,
        end_ns: int,
        *,
        operation: Operation = "work",
        bytes_sent: int = 0,
        bytes_received: int = 0,
    ) -> None:
        """Keep a span; see `Span` for the arguments."""
        # No lock: appending is one step for all threads, and a few spans more than the limit do no harm.
        if len(self._spans) < self._capacity:
            self._spans.append(Span(stage, begin_ns, end_ns, operation, bytes_sent, bytes_received))
        else:
            self._dropped += 1

    def recording(
        self,
        finish: Callable[[], T],
        stage: str,
        begin_ns: int,
        *,
        operation: Operation,
        bytes_sent: int,
        bytes_received: int,
    ) -> Callable[[], T]:
        """What ends a communication, made to record its span first.

        Args:
            finish: called once, when the communication is seen to be complete.
            stage: of the span; and so on, see `Span`.
            begin_ns: when it was posted.
            operation: of the span.
            bytes_sent: of the span.
            bytes_received: of the span.

        Returns:
            To be called in its place.
        """

        def record_and_finish() -> T:
            self.record(
                stage,
                begin_ns,
                trace_clock_ns(),
                operation=operation,
                bytes_sent=bytes_sent,
                bytes_received=bytes_received,
            )
            return finish()

        return record_and_finish

    @property
    def spans(self) -> list[Span]:
        """What was kept, a copy, in the order in which it ended."""
        return list(self._spans)

    @property
    def dropped(self) -> int:
        """Spans that found no place; about as many, where several threads recorded them."""
        return self._dropped


def trace_clock_ns() -> int:
    """The clock of all spans: nanoseconds since a moment that differs between machines, never set back."""
    return time.perf_counter_ns()
