"""The timeline of a run's first epochs: who records, for how long, and what is written when."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from windrow.comm.clock import ClockAlignment, ClockOffset, measure_clock_offset
from windrow.comm.trace import SPANS_PER_RANK, Tracer, trace_clock_ns
from windrow.comm.world import World
from windrow.launch.job import TrainingJob
from windrow.launch.trace_events import RankTrace
from windrow.launch.trace_file import write_alone, write_together
from windrow.launch.trace_rows import EPOCH

__all__ = ["EPOCHS", "VIEWER", "Timeline"]

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
        """Take note; after the last epoch to record, write the file. Collective.

        Args:
            epoch: its number, from 1.
        """
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
        self._job.stopwatch.tracer = tracer

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
