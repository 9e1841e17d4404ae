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

Ranks may be on machines that share no disk: each turns its spans into events, and these travel to rank 0 compressed.
"""

import json
import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
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
    "events_of",
    "row_of",
    "sorted_rows",
    "write_together",
]

EPOCH = "epoch"
"""Row of whole epochs, whose spans are called "epoch 1" and so on."""

_ALL_REDUCE = "all-reduce"
"""Row of sums over all ranks, whatever they are for."""

OTHER_TRAFFIC = "other traffic"
"""Row of messages that belong to no minibatch: figures, checkpoints, evaluation."""


Rows = dict[str, str]
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
    "vectors early": ": vectors early",
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
    shown = {stage: row for row, stage in _ROWS[data].items() if stage}
    if span.operation == "exchange":
        return shown.get(f": {span.stage.rpartition(': ')[2]}", OTHER_TRAFFIC)
    return shown.get(span.stage, span.stage)


def sorted_rows(names: Iterable[str], data: Literal["graph", "log"]) -> list[str]:
    """Rows from top to bottom: those known, then others by name, and traffic that belongs to no minibatch."""
    places = {name: place for place, name in enumerate(_ROWS[data])}
    last = len(places) + 1
    return sorted(names, key=lambda name: (last if name == OTHER_TRAFFIC else places.get(name, last - 1), name))


_ROWS = {"graph": GRAPH_ROWS, "log": LOG_ROWS}

TICK_NS = 125
"""Times are whole eighths of a microsecond: viewers multiply microseconds by 1000 as binary fractions and cut off the
rest, and with eighths nothing is cut off, so what touches in the file touches on the screen."""

THREADS_PER_RANK = 10_000
"""Distance between the thread numbers of ranks: no number is used twice, and none is that of a rank's process."""


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


_Bar = tuple[int, int, Span]
"""A span and where it is drawn: from one tick to another."""


def events_of(trace: RankTrace, *, origin_ns: int) -> bytes:
    """A rank's events as objects of JSON, one in a line, with commas between; first what names process and threads.

    `origin_ns` is the moment 0 of the timeline, on the clock of rank 0.
    """
    # Not 0: viewers take that for the idle process of a kernel, and hide it.
    process = trace.rank + 1
    first_thread = process * THREADS_PER_RANK
    label = f"clock within {trace.alignment.uncertainty_ns / 1000:.1f} us of rank 0's"
    if trace.dropped:
        label += f"; recording stopped after {len(trace.spans)} spans, {trace.dropped} more are missing"
    lines: list[bytes] = []

    def add(thread: int, event: dict[str, Any]) -> None:
        lines.append(json.dumps({**event, "pid": process, "tid": thread}, separators=(",", ":")).encode())

    def add_name(kind: str, thread: int, **arguments: object) -> None:
        add(thread, {"ph": "M", "name": kind, "args": arguments})

    add_name("process_name", first_thread, name=f"rank {trace.rank} ({trace.host})")
    add_name("process_sort_index", first_thread, sort_index=trace.rank)
    add_name("process_labels", first_thread, labels=label)
    for thread, (name, bars) in enumerate(_threads(trace, origin_ns), first_thread):
        add_name("thread_name", thread, name=name)
        add_name("thread_sort_index", thread, sort_index=thread)
        for bar in bars:
            add(thread, _event(bar))
    return b",\n".join(lines)


def _threads(trace: RankTrace, origin_ns: int) -> list[tuple[str, list[_Bar]]]:
    """Threads from top to bottom: names, and bars from left to right, of which none overlap."""

    def tick(own_ns: int) -> int:
        return (trace.alignment.to_rank_0_ns(own_ns) - origin_ns) // TICK_NS

    rows: defaultdict[str, list[_Bar]] = defaultdict(list)
    for span in trace.spans:
        rows[row_of(span, trace.data)].append((tick(span.begin_ns), tick(span.end_ns), span))
    threads = []
    for row in sorted_rows(rows, trace.data):
        tracks: list[list[_Bar]] = []
        for bar in sorted(rows[row]):
            track = next((track for track in tracks if track[-1][1] <= bar[0]), None)
            if track is None:
                tracks.append(track := [])
            track.append(bar)
        threads += [(row if number == 1 else f"{row} {number}", track) for number, track in enumerate(tracks, 1)]
    return threads


def _event(bar: _Bar) -> dict[str, Any]:
    begin, end, span = bar
    event: dict[str, Any] = {
        "ph": "X",
        "name": span.stage,
        "cat": "work" if span.operation == "work" else "communication",
        "ts": begin * TICK_NS / 1000,
        "dur": (end - begin) * TICK_NS / 1000,
    }
    if span.operation == "exchange":
        event["args"] = {"bytes sent": span.bytes_sent, "bytes received": span.bytes_received}
    elif span.operation == "all_reduce":
        event["args"] = {"bytes reduced": span.bytes_sent}
    return event


EPOCHS = 2
"""Epochs recorded: the first is slower than all others (code is compiled, files are read for the first time), so the
second one shows what training is like; more would only make the file larger."""

SPANS_PER_RUN = 4_000_000
"""Spans of all ranks: about 600 MB of timeline, near the most that the viewer opens."""

VIEWER = "https://ui.perfetto.dev"

STAGE = "trace"


class Timeline:
    """Records the first epochs that this start of a run trains, and writes them to a file. A context manager.

    Entering it is collective, and so is leaving it without an error. An error that ends the block while it records
    leaves no timeline. Rank 0 writes the file, and calls `say` to show a line.
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
        self._epochs = 0
        self._began_ns = 0
        self._epoch_began_ns = 0
        self._first = ClockOffset(at_ns=0, offset_ns=0, uncertainty_ns=0)

    def __enter__(self) -> Self:
        self._first = measure_clock_offset(self._world)
        # Rank 0 answers one rank after another; nobody begins before it is done.
        self._world.barrier(stage=STAGE)
        self._began_ns = self._epoch_began_ns = trace_clock_ns()
        self._world.tracer = self._stopwatch.tracer = self._tracer
        return self

    def epoch_finished(self, epoch: int) -> None:
        """Take note of an epoch, numbered from 1; after the last one to record, write the file. Collective."""
        if self._world.tracer is None:
            return
        now = trace_clock_ns()
        self._tracer.record(f"{EPOCH} {epoch}", self._epoch_began_ns, now)
        self._epoch_began_ns = now
        self._epochs += 1
        if self._epochs == EPOCHS:
            self._finish()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None and self._world.tracer is not None and self._epochs > 0:
            self._finish()
        self._world.tracer = self._stopwatch.tracer = None

    def _finish(self) -> None:
        """Write the spans of all ranks. Collective."""
        self._world.tracer = self._stopwatch.tracer = None
        trace = RankTrace(
            rank=self._world.rank,
            host=os.uname().nodename,
            data=self._data,
            spans=self._tracer.spans,
            dropped=self._tracer.dropped,
            alignment=ClockAlignment(self._first, measure_clock_offset(self._world)),
        )
        origin = torch.tensor([trace.alignment.to_rank_0_ns(self._began_ns)])
        self._world.all_reduce(origin, stage=STAGE, op="min")
        failure = write_together(self._world, self._file, trace, origin_ns=int(origin))
        if self._world.rank == 0:
            epochs = "1 epoch" if self._epochs == 1 else f"{self._epochs} epochs"
            told = f"timeline of {epochs} in {self._file}: open it at {VIEWER}"
            self._say(f"windrow: {f'the timeline could not be written: {failure}' if failure else told}")


def write_together(world: World, path: Path, trace: RankTrace, *, origin_ns: int) -> OSError | None:
    """Write the spans of all ranks to one file of rank 0. Collective; the world's tracer is off by now.

    `origin_ns` is the moment 0 of the timeline on the clock of rank 0, and must agree.

    Returns:
        On rank 0 what went wrong, in which case there is no new file: training need not end for that. Else None.
    """
    described = {
        "rank": trace.rank,
        "host": trace.host,
        "clock_offset_us": trace.alignment.first.offset_ns / 1000,
        "clock_uncertainty_us": trace.alignment.uncertainty_ns / 1000,
        "spans": len(trace.spans),
        "spans_missing": trace.dropped,
    }
    about = {"ranks": world.gather_object(described, root=0, stage=STAGE)}
    # The ranks' events are much alike: compressed, rank 0 has room for those of all.
    packed = world.gather_object(zlib.compress(events_of(trace, origin_ns=origin_ns), level=1), root=0, stage=STAGE)
    if world.rank == 0:
        try:
            with open_atomically(path) as file:
                head = json.dumps({"displayTimeUnit": "ms", "otherData": about}).removesuffix("}")
                file.write(f'{head},\n"traceEvents": [\n'.encode())
                for rank, events in enumerate(packed):
                    file.write((b",\n" if rank else b"") + zlib.decompress(events))
                file.write(b"\n]}\n")
        except OSError as error:
            return error
    return None
