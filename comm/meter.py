"""What a rank does, measured: bytes and rows counted, time by stage, and spans of time for a timeline of the run.

A world counts into its `Meter` and records into its `Tracer` when it has one (``world.meter = Meter()``). Threads may
count at the same time, each under stages of its own.

All claims about traffic come from here. What stays on a rank is never traffic; of the rows that a minibatch needs,
those found there are counted too, so that both add up to what was asked for.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

__all__ = [
    "SPANS_PER_RANK",
    "Meter",
    "Operation",
    "RowsFound",
    "Span",
    "Stopwatch",
    "Tracer",
    "Traffic",
    "trace_clock_ns",
]


class _Amount:
    """Numbers that add up with ``+``, field by field."""

    __slots__: tuple[str, ...] = ()

    def __add__(self, other: Self) -> Self:
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic(_Amount):
    """An amount of traffic, by direction; amounts add up with ``+``.

    Bytes are payload as it travelled (encoded), without headers. Over all ranks, sent and received are the
    same traffic seen from its two ends: never add one to the other.
    """

    rows_sent: int = 0
    """Rows sent to other ranks."""
    bytes_sent: int = 0
    """Bytes sent to other ranks."""
    rows_received: int = 0
    """Rows received from other ranks."""
    bytes_received: int = 0
    """Bytes received from other ranks."""
    elements_reduced: int = 0
    """Elements of the tensors reduced over all ranks, each tensor counted once."""
    bytes_reduced: int = 0
    """Bytes of those tensors; how often they travel is the affair of the library that reduces."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowsFound(_Amount):
    """Where the rows were that a rank asked for; amounts add up with ``+``."""

    local: int = 0
    """Rows that the rank that needed them owns."""
    cached: int = 0
    """Rows of other ranks of which it keeps a copy."""
    shared: int = 0
    """Rows of other ranks of its host that it read where they stand."""
    remote: int = 0
    """Rows of other ranks that it had to ask for."""


class Meter:
    """Counts rows and bytes per (stage, peer), and per stage where the rows were that this rank asked for."""

    def __init__(self) -> None:
        self._amounts: dict[tuple[str, int | None], Traffic] = {}
        self._found: dict[str, RowsFound] = {}
        self._waiting_seconds: defaultdict[str, float] = defaultdict(float)

    def record_sent(self, stage: str, peer: int, rows: int, num_bytes: int) -> None:
        """Count rows sent to another rank; an empty message is none."""
        if rows > 0:
            self._add(stage, peer, Traffic(rows_sent=rows, bytes_sent=num_bytes))

    def record_received(self, stage: str, peer: int, rows: int, num_bytes: int) -> None:
        """Count rows received from another rank; an empty message is none."""
        if rows > 0:
            self._add(stage, peer, Traffic(rows_received=rows, bytes_received=num_bytes))

    def record_reduced(self, stage: str, elements: int, num_bytes: int) -> None:
        """Count a tensor reduced over all ranks, by its size here."""
        self._add(stage, None, Traffic(elements_reduced=elements, bytes_reduced=num_bytes))

    def record_found(self, stage: str, *, local: int, remote: int, cached: int = 0, shared: int = 0) -> None:
        """Count rows that this rank needed, whether it had to ask another rank for them or not."""
        self._found[stage] = self.found(stage) + RowsFound(local=local, cached=cached, shared=shared, remote=remote)

    def found(self, stage: str | None = None) -> RowsFound:
        """Where the rows were that this rank asked for since the last `reset`, in one stage or (None) all."""
        if stage is not None:
            return self._found.get(stage, RowsFound())
        return sum(self._found.copy().values(), start=RowsFound())

    def record_waiting(self, stage: str, seconds: float) -> None:
        """Count time that this rank spent waiting for a collective to complete: for the network or other ranks."""
        self._waiting_seconds[stage] += seconds

    @property
    def waiting_seconds(self) -> dict[str, float]:
        """Seconds that this rank spent waiting, by stage, since the last `reset`; a copy."""
        return dict(self._waiting_seconds)

    def totals(self, stage: str | None = None, *, peer: int | None = None) -> Traffic:
        """Add up what was counted since the last `reset`, in one stage, with one rank, or (None) all of it."""
        matching = (
            amount
            # A copy: another thread may add a stage meanwhile.
            for (of_stage, of_peer), amount in self._amounts.copy().items()
            if stage in (None, of_stage) and peer in (None, of_peer)
        )
        return sum(matching, start=Traffic())

    def table(self) -> dict[tuple[str, int | None], Traffic]:
        """Everything since the last `reset` by (stage, peer), in the order in which it first happened.

        The peer of a reduction is None.
        """
        return self._amounts.copy()

    def reset(self) -> None:
        """Forget everything, at the start of an epoch say."""
        self._amounts.clear()
        self._found.clear()
        self._waiting_seconds.clear()

    def _add(self, stage: str, peer: int | None, amount: Traffic) -> None:
        self._amounts[stage, peer] = self._amounts.get((stage, peer), Traffic()) + amount


class Stopwatch:
    """Seconds spent in each stage of a rank's work; its `tracer`, where one is set, records a span for each.

    Stages may nest: the outer one includes the inner one. A stage inside itself counts once. Threads may
    measure at the same time: their seconds add up, so stages that overlap can exceed the time that passed. What a
    stage queues on a GPU is not waited for.
    """

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._adding = threading.Lock()
        self._open_here = threading.local()
        self.tracer: Tracer | None = None

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Add the time spent inside the ``with`` block, also where it ends by an exception."""
        open_here: set[str] = vars(self._open_here).setdefault("stages", set())
        if stage in open_here:
            yield
            return
        open_here.add(stage)
        start = time.perf_counter()
        try:
            yield
        finally:
            open_here.remove(stage)
            end = time.perf_counter()
            with self._adding:
                self._seconds[stage] += end - start
            if self.tracer is not None:
                self.tracer.record(stage, round(start * 1e9), round(end * 1e9))

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each finished stage since the last `reset`, a copy, in the order of first finish."""
        with self._adding:
            return dict(self._seconds)

    def reset(self) -> None:
        """Forget everything that is finished, at the start of an epoch say; open stages run on."""
        with self._adding:
            self._seconds.clear()


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
    """Keeps the spans of one rank, up to `capacity`; later ones are counted and forgotten.

    Threads may record at the same time. A span is kept when it ends, so those that enclose others come after them.
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
