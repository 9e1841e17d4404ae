"""The timeline of a run's first epochs: who records, for how long, and the file that Perfetto and Chrome open.

    trace.json      {"displayTimeUnit": "ms",
                     "otherData": {what is known of clocks and of what is missing},
                     "traceEvents": [one line for each event]}

Ranks may be on machines that share no disk: each turns its spans into events, and these travel to rank 0 in pieces.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from windrow.comm.clock import ClockAlignment, ClockOffset, measure_clock_offset
from windrow.comm.meter import SPANS_PER_RANK, Tracer, trace_clock_ns
from windrow.comm.world import World
from windrow.launch.job import TrainingJob
from windrow.launch.trace_events import EPOCH, RankTrace, event_pieces
from windrow.partition.atomic_writes import open_atomically

__all__ = ["EPOCHS", "VIEWER", "Timeline", "write_alone", "write_together"]

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
        job: of this rank.
        file: to be written by rank 0; those that ranks write alone are beside it (``trace-rank-3.json``).
        say: shows a line; called on rank 0.
    """

    def __init__(self, world: World, job: TrainingJob, file: Path, *, say: Callable[[str], None]) -> None:
        self._world = world
        self._job = job
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        self._job.trainer.stopwatch.tracer = tracer

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
            data=self._job.data,
            spans=self._tracer.spans,
            dropped=self._tracer.dropped,
            alignment=ClockAlignment(self._first, last),
        )


FILE_STAGE = "trace"


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
    described = world.gather_object(_describe(trace), root=0, stage=FILE_STAGE)
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
        more = world.all_reduce(torch.tensor([len(piece)]), stage=FILE_STAGE, op="max")
        if int(more) == 0:
            return
        yield from (other for other in world.gather_object(piece, root=0, stage=FILE_STAGE) if other)


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
