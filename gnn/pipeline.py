"""The deep pipeline of SALIENT++: several minibatches under way, each in another stage.

    stage             in            a depth of 4 while minibatch i is in training
    sample, plan      threads       i + 5, i + 6
    counts            main thread   i + 4, on the wire
    ids               main thread   i + 3, on the wire
    slice, rows       main thread   i + 1 and i + 2, on the wire
    combine, copy     main thread   i
    compute           the caller    i

Before each minibatch is handed over, every other one moves on by a stage, the oldest first; whatever that posts
travels while the caller computes. The queue of a stage therefore holds what its place in this list says, never more,
and all ranks issue the same exchanges in the same order, whatever the timing (Kaler et al., Communication-Efficient
Graph Neural Networks with Probabilistic Neighborhood Expansion Analysis and Caching, MLSys 2023, section 5).

On a GPU the copy of minibatch i + 1 runs beside the computing of i, so all but computing are a minibatch further on.

Rows of two minibatches are on the wire, so that it does not fall idle while those that have come are put in their
places and those for the next are gathered. They give way to sums of gradients, which minibatch i waits for.

A depth of 3 has rows of one minibatch on the wire, of 2 sends ids and rows in one go, of 1 counts too. Beyond 4 the
rows are the longer on their way. With 0, all stages of a minibatch follow one another, and sampling too: what the
pipeline is measured against.
"""

import contextlib
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from windrow.caching.cached_store import CachedStore, RowGather
from windrow.comm.meter import Stopwatch
from windrow.comm.world import World
from windrow.gnn.block import Minibatch
from windrow.gnn.device_copy import DeviceCopy
from windrow.gnn.loader import MinibatchLoader, PlannedMinibatch, SeedTask
from windrow.gnn.pipeline_options import PipelineOptions
from windrow.gnn.sampler import NeighborSampler

__all__ = ["LoadedMinibatch", "MinibatchPipeline"]


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class LoadedMinibatch:
    """A minibatch that is ready to be computed."""

    task: SeedTask
    """What it was made from."""
    input_ids: Tensor
    """int64 [inputs], ids of the rows, on the CPU."""
    minibatch: Minibatch
    """On the device."""
    rows: Tensor
    """float32 [inputs, ...] on the device; on a CPU the next minibatch overwrites them."""
    copied: torch.cuda.Event | None = None
    """When all of it is on the device; what computes with it has been told to wait. None on a CPU."""

    def tensors(self) -> Iterator[Tensor]:
        """All that is on the device."""
        yield from (self.rows, self.minibatch.seeds, self.minibatch.input_ids)
        for block in self.minibatch.blocks:
            yield from (block.indptr, block.indices)
            if block.source_degrees is not None:
                yield block.source_degrees


class _Flight:
    """One minibatch on its way through the exchange."""

    def __init__(self, planned: PlannedMinibatch, gather: RowGather) -> None:
        self.planned = planned
        self._gather = gather
        self._ids_sent = False
        self._rows_sent = False

    def send_ids(self) -> None:
        if not self._ids_sent:
            self._gather.send_ids()
            self._ids_sent = True

    def send_rows(self) -> None:
        if not self._rows_sent:
            self.send_ids()
            self._gather.send_rows()
            self._rows_sent = True

    def finish(self, out: Tensor | None) -> Tensor:
        self.send_rows()
        return self._gather.finish(out)


class MinibatchPipeline:
    """Samples minibatches and fetches their rows, ahead of whoever computes with them.

    Args:
        world: all its ranks make the same pipeline.
        sampler: of this rank.
        store: where the rows are; all ranks' stores belong together.
        options: how far ahead; must agree.
        device: where minibatches are computed.
        stopwatch: gets the stages "sample" (threads), "wait for samples" and "fetch" (main thread).
    """

    def __init__(
        self,
        world: World,
        sampler: NeighborSampler,
        store: CachedStore,
        options: PipelineOptions,
        *,
        device: torch.device,
        stopwatch: Stopwatch,
    ) -> None:
        self._world = world
        self._store = store
        self._depth = options.depth
        self._rows_ahead = max(1, options.depth - 2)
        self._ids_ahead = max(self._rows_ahead, options.depth - 1)
        self._device = device
        self._stopwatch = stopwatch
        self._combined = torch.empty((0, *store.row_shape))
        self._copies = DeviceCopy(device if options.depth else torch.device("cpu"))
        # Where a caller stopped early: their messages are on their way to memory that must stay.
        self._given_up: list[_Flight] = []
        self._loader = MinibatchLoader(
            sampler,
            store.plan,
            threads=options.sampler_threads if options.depth else 0,
            deadline_s=world.deadline_s,
            stopwatch=stopwatch,
        )

    def run(self, tasks: Iterable[SeedTask]) -> Iterator[LoadedMinibatch]:
        """Make minibatches and fetch their rows. Collective: every rank takes as many.

        Who stops before the last leaves exchanges under way; they are ended when the pipeline runs again.

        Args:
            tasks: as many on every rank; drawn ahead of time.

        Yields:
            One for each task, in their order; the next is asked for when this one is computed. The caller may
            call other collectives in between.

        Raises:
            DataError: a seed or a row is not there.
            DeadlineError: a rank did not come in time.
        """
        planned = self._loader.run(tasks)
        try:
            if self._depth == 0:
                yield from self._one_by_one(planned)
            else:
                with contextlib.closing(self._fetched(planned)) as fetched:
                    yield from self._copied(fetched)
        finally:
            # Until the next run the memory is for others.
            self._combined = self._combined.new_empty((0, *self._store.row_shape))

    def close(self) -> None:
        """End the threads that sample."""
        self._loader.close()

    def _one_by_one(self, planned: Iterator[PlannedMinibatch]) -> Iterator[LoadedMinibatch]:
        for one in planned:
            with self._stopwatch.measure("fetch"):
                flight = _Flight(one, self._store.start(one.request))
                loaded = self._load(flight)
            yield loaded

    def _copied(self, fetched: Iterator[LoadedMinibatch]) -> Iterator[LoadedMinibatch]:
        """Hand minibatches over, each when the copy of the next has begun where that runs beside computing."""
        ready: deque[LoadedMinibatch] = deque()
        for loaded in fetched:
            ready.append(loaded)
            if len(ready) > self._copies.overlaps:
                yield self._hand_over(ready.popleft())
        for loaded in ready:
            yield self._hand_over(loaded)

    def _hand_over(self, loaded: LoadedMinibatch) -> LoadedMinibatch:
        self._copies.hand_over(loaded.copied, loaded.tensors())
        return loaded

    def _fetched(self, planned: Iterator[PlannedMinibatch]) -> Generator[LoadedMinibatch, None, None]:
        flights: deque[_Flight] = deque()
        with self._world.background_progress():
            self._end_given_up()
            try:
                self._move_on(flights, planned)
                while flights:
                    current = flights.popleft()
                    with self._stopwatch.measure("fetch"):
                        loaded = self._load(current)
                    self._move_on(flights, planned)
                    yield loaded
            finally:
                self._given_up.extend(flights)

    def _end_given_up(self) -> None:
        for flight in self._given_up:
            flight.finish(None)
        self._given_up.clear()

    def _move_on(self, flights: deque[_Flight], planned: Iterator[PlannedMinibatch]) -> None:
        """Begin new exchanges until there are enough, and bring every exchange to the stage of its place."""
        while len(flights) < self._depth:
            with self._stopwatch.measure("wait for samples"):
                one = next(planned, None)
            if one is None:
                break
            with self._stopwatch.measure("fetch"), self._copies.queue():
                flights.append(_Flight(one, self._store.start(one.request)))
        with self._stopwatch.measure("fetch"), self._copies.queue():
            for ahead, flight in enumerate(flights, start=1):
                if ahead <= self._rows_ahead:
                    flight.send_rows()
                elif ahead <= self._ids_ahead:
                    flight.send_ids()

    def _load(self, flight: _Flight) -> LoadedMinibatch:
        planned = flight.planned
        with self._copies.queue():
            # Before the rows: a copy from memory that is not page-locked waits for those queued before it.
            minibatch = planned.minibatch.to(self._device, non_blocking=True)
            rows = flight.finish(self._room(planned.request.num_rows))
            rows = rows.to(self._device, torch.float32, non_blocking=True)
            copied = self._copies.mark()
        return LoadedMinibatch(
            task=planned.task,
            input_ids=planned.minibatch.input_ids,
            minibatch=minibatch,
            rows=rows,
            copied=copied,
        )

    def _room(self, num_rows: int) -> Tensor | None:
        """Memory that grows with the largest minibatch: filling new memory costs twice. None on a GPU."""
        if self._device.type != "cpu":
            return None
        if num_rows > len(self._combined):
            self._combined = self._combined.new_empty((num_rows + num_rows // 8, *self._store.row_shape))
        return self._combined[:num_rows]
