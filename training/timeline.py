"""The timeline of a run's first epochs: who records, for how long, and the file that Perfetto and Chrome open.

    trace.json      {"displayTimeUnit": "ms",
                     "otherData": {what is known of clocks and of what is missing},
                     "traceEvents": [one line for each event]}

The format is the "Trace Event Format" of Chrome's tracing tools. A rank is a process, a row is a thread. A row is
either this rank's own work or one kind of message. Rows stand in the order in which a minibatch meets them, so that a
step reads from the upper left to the lower right.

Events of one thread must nest or be disjoint, or a viewer drops them; so messages of one row that are on their way at
the same time are spread over tracks::

    all-reduce      [=== bucket 1 ===]     [=== bucket 3 ===]
    all-reduce 2            [=== bucket 2 ======]

Ranks may be on machines that share no disk: each turns its spans into events, and these travel to rank 0 in pieces.
"""

import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch

from windrow.comm.clock import ClockAlignment, ClockOffset, measure_clock_offset
from windrow.comm.meter import SPANS_PER_RANK, Span, Stopwatch, Tracer, trace_clock_ns
from windrow.comm.world import World
from windrow.partition.atomic_writes import open_atomically

__all__ = [
    "EPOCH",
    "EPOCHS",
    "GRAPH_ROWS",
    "LOG_ROWS",
    "OTHER_TRAFFIC",
    "VIEWER",
    "RankTrace",
    "Timeline",
    "event_pieces",
    "row_of",
    "sorted_rows",
    "tracks",
    "write_alone",
    "write_together",
]

EPOCH = "epoch"
"""Row of whole epochs, whose spans are called "epoch 1" and so on."""

_ALL_REDUCE = "all-reduce"
"""Row of sums over all ranks, whatever they are for."""

OTHER_TRAFFIC = "other traffic"
"""Row of messages that belong to no minibatch: figures, checkpoints, evaluation."""


Rows = Mapping[str, str]
"""Name of a row -> the stage of the stopwatch that it shows; of messages how the stage of their exchange ends."""

_COMPUTED: Rows = {"forward": "forward", "backward": "backward"}
_LAST: Rows = {_ALL_REDUCE: "", "wait": "wait", "update": "update", "evaluate": "evaluate"}

GRAPH_ROWS: Rows = {
    EPOCH: "",
    "sample": "sample",
    "wait for samples": "wait for samples",
    "fetch": "fetch",
    "request": ": ids",
    "reply": ": rows",
    **_COMPUTED,
    **_LAST,
}
"""Training on a graph."""

LOG_ROWS: Rows = {
    EPOCH: "",
    "read": "read",
    "pack": "ids",
    "counts": ": counts",
    "ids": ": ids",
    "lookup": "lookup",
    "vectors": ": vectors",
    "unpack": "pooled",
    **_COMPUTED,
    "gradients": ": gradients",
    **_LAST,
}
"""Training on a click log."""


def row_of(span: Span, data: Literal["graph", "log"]) -> str:
    """The name of a span's row; the work of a stage that is not known gets a row of its own."""
    if span.operation == "all_reduce":
        return _ALL_REDUCE
    if span.stage.startswith(f"{EPOCH} "):
        return EPOCH
    shown = {stage: row for row, stage in _rows(data).items() if stage}
    if span.operation == "exchange":
        return shown.get(f": {span.stage.rpartition(': ')[2]}", OTHER_TRAFFIC)
    return shown.get(span.stage, span.stage)


def sorted_rows(names: Iterable[str], data: Literal["graph", "log"]) -> list[str]:
    """Rows from top to bottom: those known, then others by name, and traffic that belongs to no minibatch."""
    places = {name: place for place, name in enumerate(_rows(data))}
    last = len(places) + 1
    return sorted(names, key=lambda name: (last if name == OTHER_TRAFFIC else places.get(name, last - 1), name))


def _rows(data: Literal["graph", "log"]) -> Rows:
    return GRAPH_ROWS if data == "graph" else LOG_ROWS


TICK_NS = 125
"""Times are whole eighths of a microsecond: viewers multiply microseconds by 1000 as binary fractions and cut off the
rest, and with eighths nothing is cut off, so what touches in the file touches on the screen."""

THREADS_PER_RANK = 10_000
"""Distance between the thread numbers of ranks: no number is used twice, and none is that of a rank's process."""

EVENTS_PER_PIECE = 10_000
"""Events that travel together, about 1.5 MB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTrace:
    """What one rank recorded."""

    rank: int
    host: str
    """Name of its machine."""
    data: Literal["graph", "log"]
    """What is learnt from: decides the rows."""
    spans: Sequence[Span]
    """In any order, on the rank's own clock."""
    dropped: int
    """Spans that found no place."""
    alignment: ClockAlignment
    """Its clock as that of rank 0."""

    @property
    def clock_uncertainty_us(self) -> float:
        """Its clock is laid over that of rank 0 to within this many microseconds."""
        return self.alignment.uncertainty_ns / 1000


@dataclass(frozen=True, slots=True)
class _Placed:
    """A span in ticks, and where it is drawn."""

    span: Span
    begin: int
    end: int
    track: int


def tracks(intervals: Iterable[tuple[int, int]]) -> list[int]:
    """For each interval, ordered by begin, the first track, from 0, that is free then; touching ones are disjoint."""
    free_from: list[int] = []
    chosen: list[int] = []
    for begin, end in intervals:
        track = next((track for track, moment in enumerate(free_from) if moment <= begin), len(free_from))
        if track == len(free_from):
            free_from.append(end)
        free_from[track] = end
        chosen.append(track)
    return chosen


def event_pieces(trace: RankTrace, *, origin_ns: int) -> Iterator[bytes]:
    """A rank's events as JSON in UTF-8, in pieces that are made one by one; those that name process and threads first.

    Each piece holds objects, separated by commas. `origin_ns` is the moment 0 of the timeline, on the clock of rank 0.
    """
    rows = _placed_rows(trace, origin_ns)
    events = [_name(trace, "process_name", name=f"rank {trace.rank} ({trace.host})")]
    events.append(_name(trace, "process_sort_index", sort_index=trace.rank))
    events.append(_name(trace, "process_labels", labels=_label(trace)))
    keys = [(row, track) for row, placed in rows.items() for track in sorted({one.track for one in placed})]
    threads = {key: place for place, key in enumerate(keys, _process(trace) * THREADS_PER_RANK)}
    for (row, track), thread in threads.items():
        name = row if track == 0 else f"{row} {track + 1}"
        events.append(_name(trace, "thread_name", thread, name=name))
        events.append(_name(trace, "thread_sort_index", thread, sort_index=thread))
    for row, placed in rows.items():
        for one in placed:
            if len(events) >= EVENTS_PER_PIECE:
                yield _json(events)
                events = []
            events.append(_event(trace, one, threads[row, one.track]))
    yield _json(events)


def _placed_rows(trace: RankTrace, origin_ns: int) -> dict[str, list[_Placed]]:
    """Every span in its row and track, rows from top to bottom, spans from left to right."""
    timed: defaultdict[str, list[tuple[int, int, Span]]] = defaultdict(list)
    for span in trace.spans:
        begin, end = (
            (trace.alignment.to_rank_0_ns(moment) - origin_ns) // TICK_NS for moment in (span.begin_ns, span.end_ns)
        )
        timed[row_of(span, trace.data)].append((begin, end, span))
    rows: dict[str, list[_Placed]] = {}
    for name in sorted_rows(timed, trace.data):
        ordered = sorted(timed[name])
        chosen = tracks((begin, end) for begin, end, _ in ordered)
        rows[name] = [
            _Placed(span, begin, end, track) for (begin, end, span), track in zip(ordered, chosen, strict=True)
        ]
    return rows


def _process(trace: RankTrace) -> int:
    # Not 0: viewers take that for the idle process of a kernel, and hide it.
    return trace.rank + 1


def _label(trace: RankTrace) -> str:
    label = f"clock within {trace.clock_uncertainty_us:.1f} us of rank 0's"
    if trace.dropped:
        label += f"; recording stopped after {len(trace.spans)} spans, {trace.dropped} more are missing"
    return label


def _name(trace: RankTrace, kind: str, thread: int | None = None, **arguments: object) -> dict[str, Any]:
    process = _process(trace)
    return {
        "ph": "M",
        "name": kind,
        "pid": process,
        "tid": process * THREADS_PER_RANK if thread is None else thread,
        "args": arguments,
    }


def _event(trace: RankTrace, placed: _Placed, thread: int) -> dict[str, Any]:
    span = placed.span
    event: dict[str, Any] = {
        "ph": "X",
        "name": span.stage,
        "cat": "work" if span.operation == "work" else "communication",
        "pid": _process(trace),
        "tid": thread,
        "ts": placed.begin * TICK_NS / 1000,
        "dur": (placed.end - placed.begin) * TICK_NS / 1000,
    }
    if span.operation == "exchange":
        event["args"] = {"bytes sent": span.bytes_sent, "bytes received": span.bytes_received}
    elif span.operation == "all_reduce":
        event["args"] = {"bytes reduced": span.bytes_sent}
    return event


def _json(events: list[dict[str, Any]]) -> bytes:
    return ",\n".join(json.dumps(event, separators=(",", ":")) for event in events).encode()


EPOCHS = 2
"""Epochs recorded: the first is slower than all others (code is compiled, files are read for the first time), so the
second one shows what training is like; more would only make the file larger."""

SPANS_PER_RUN = 4_000_000
"""Spans of all ranks: about 600 MB of timeline, near the most that the viewer opens."""

VIEWER = "https://ui.perfetto.dev"

STAGE = "trace"


class Timeline:
    """Records the first epochs that this start of a run trains, and writes them to a file. A context manager.

    Entering it is collective, and so is leaving it without an error. Where an error ends the block while it records,
    each rank that comes to know of it writes what it has to a file of its own, without a word to the others.

    Args:
        world: of the run.
        stopwatch: of this rank's trainer.
        data: what is learnt from.
        file: to be written by rank 0; those that ranks write alone are beside it (``trace-rank-3.json``).
        say: shows a line; called on rank 0.
    """

    def __init__(
        self,
        world: World,
        stopwatch: Stopwatch,
        data: Literal["graph", "log"],
        file: Path,
        *,
        say: Callable[[str], None],
    ) -> None:
        self._world = world
        self._stopwatch = stopwatch
        self._data = data
        self._file = file
        self._say = say
        self._tracer = Tracer(capacity=min(SPANS_PER_RANK, SPANS_PER_RUN // world.size))
        self._recording = False
        self._epochs = 0
        self._began_ns = 0
        self._epoch_began_ns = 0
        self._first = ClockOffset(at_ns=0, offset_ns=0, uncertainty_ns=0)

    def __enter__(self) -> Self:
        self._first = measure_clock_offset(self._world)
        # Rank 0 answers one rank after another; nobody begins before it is done.
        self._world.barrier(stage=STAGE)
        self._began_ns = self._epoch_began_ns = trace_clock_ns()
        self._record_into(self._tracer)
        return self

    def epoch_finished(self, epoch: int) -> None:
        """Take note of an epoch, numbered from 1; after the last one to record, write the file. Collective."""
        if not self._recording:
            return
        now = trace_clock_ns()
        self._tracer.record(f"{EPOCH} {epoch}", self._epoch_began_ns, now)
        self._epoch_began_ns = now
        self._epochs += 1
        if self._epochs == EPOCHS:
            self._finish()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._recording:
            return
        if error is not None:
            self._save_alone(error)
        elif self._epochs > 0:
            self._finish()
        else:
            self._record_into(None)

    def _record_into(self, tracer: Tracer | None) -> None:
        self._recording = tracer is not None
        self._world.tracer = tracer
        self._stopwatch.tracer = tracer

    def _finish(self) -> None:
        """Write the spans of all ranks. Collective."""
        self._record_into(None)
        trace = self._rank_trace(measure_clock_offset(self._world))
        origin = torch.tensor([trace.alignment.to_rank_0_ns(self._began_ns)])
        self._world.all_reduce(origin, stage=STAGE, op="min")
        failure = write_together(self._world, self._file, trace, origin_ns=int(origin))
        if self._world.rank == 0:
            if failure is None:
                epochs = "1 epoch" if self._epochs == 1 else f"{self._epochs} epochs"
                self._say(f"windrow: timeline of {epochs} in {self._file}: open it at {VIEWER}")
            else:
                self._say(f"windrow: the timeline could not be written: {failure}")

    def _save_alone(self, error: BaseException) -> None:
        """Write the spans of this rank: others may be gone."""
        self._record_into(None)
        rank = self._world.rank
        file = self._file if rank == 0 else self._file.with_name(f"trace-rank-{rank}.json")
        trace = self._rank_trace(self._first)
        origin_ns = trace.alignment.to_rank_0_ns(self._began_ns)
        try:
            write_alone(file, trace, origin_ns=origin_ns, reason=repr(error))
            said = f"windrow: timeline of rank {rank} until then in {file}"
        except OSError as failure:
            # What ends the run must be seen, not this.
            said = f"windrow: the timeline of rank {rank} could not be written: {failure}"
        print(said, file=sys.stderr, flush=True)

    def _rank_trace(self, last: ClockOffset) -> RankTrace:
        return RankTrace(
            rank=self._world.rank,
            host=os.uname().nodename,
            data=self._data,
            spans=self._tracer.spans,
            dropped=self._tracer.dropped,
            alignment=ClockAlignment(self._first, last),
        )


def write_together(world: World, path: Path, trace: RankTrace, *, origin_ns: int) -> OSError | None:
    """Write the spans of all ranks to one file. Collective; the world's tracer is off by now.

    Args:
        world: the ranks.
        path: of the file, whose folder exists on the machine of rank 0; nobody else looks at it.
        trace: of this rank.
        origin_ns: the moment 0 of the timeline on the clock of rank 0; must agree.

    Returns:
        On rank 0 what went wrong, in which case there is no new file: training need not end for that. Else None.
    """
    described = world.gather_object(_describe(trace), root=0, stage=STAGE)
    arriving = _gathered(world, event_pieces(trace, origin_ns=origin_ns))
    failure = None
    if world.rank == 0:
        try:
            _write(path, {"complete": True, "ranks": described}, arriving)
        except OSError as error:
            failure = error
    # The others send all that they have, whatever has become of the file.
    for _ in arriving:
        pass
    return failure


def write_alone(path: Path, trace: RankTrace, *, origin_ns: int, reason: str) -> None:
    """Write the spans of this rank, for a reason why others may no longer answer; `origin_ns` as for all together.

    Raises:
        OSError: the disk is full, or there is no such folder.
    """
    about = {"complete": False, "ended by": reason, "ranks": [_describe(trace)]}
    _write(path, about, event_pieces(trace, origin_ns=origin_ns))


def _describe(trace: RankTrace) -> dict[str, Any]:
    return {
        "rank": trace.rank,
        "host": trace.host,
        "clock_offset_us": trace.alignment.first.offset_ns / 1000,
        "clock_uncertainty_us": trace.clock_uncertainty_us,
        "spans": len(trace.spans),
        "spans_missing": trace.dropped,
    }


def _gathered(world: World, own: Iterator[bytes]) -> Iterator[bytes]:
    """On rank 0 the pieces of all ranks, one of each at a time in memory; elsewhere nothing. Collective."""
    while True:
        piece = next(own, b"")
        more = world.all_reduce(torch.tensor([len(piece)]), stage=STAGE, op="max")
        if int(more) == 0:
            return
        yield from (other for other in world.gather_object(piece, root=0, stage=STAGE) if other)


def _write(path: Path, about: Mapping[str, Any], pieces: Iterator[bytes]) -> None:
    with open_atomically(path) as file:
        head = json.dumps({"displayTimeUnit": "ms", "otherData": about}).removesuffix("}")
        file.write(f'{head},\n"traceEvents": [\n'.encode())
        separator = b""
        for piece in pieces:
            file.write(separator)
            file.write(piece)
            separator = b",\n"
        file.write(b"\n]}\n")
