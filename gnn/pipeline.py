"""The deep pipeline of SALIENT++: several minibatches under way, each in another stage.

    stage             in            a depth of 3 while minibatch i is in training
    sample, plan      threads       i + 4, i + 5
    counts            main thread   i + 3, on the wire
    ids               main thread   i + 2, on the wire
    slice, rows       main thread   i + 1, on the wire
    combine, copy     main thread   i
    compute           the caller    i

Before each minibatch is handed over, every other one moves on by a stage, the oldest first; whatever that posts
travels while the caller computes. The queue of a stage therefore holds what its place in this list says, never more,
and all ranks issue the same exchanges in the same order, whatever the timing (Kaler et al., Communication-Efficient
Graph Neural Networks with Probabilistic Neighborhood Expansion Analysis and Caching, MLSys 2023, section 5).

A depth of 2 sends ids and rows of a minibatch in one go, of 1 counts too. Beyond 3 the rows are the longer on their
way. With 0, all stages of a minibatch follow one another, and sampling too: what the pipeline is measured against.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from windrow.caching.cached_store import CachedStore, RowGather
from windrow.comm.meter import Stopwatch
from windrow.comm.world import World
from windrow.gnn.block import Minibatch
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
        self._loader = MinibatchLoader(
            sampler,
            store.plan,
            threads=options.sampler_threads if options.depth else 0,
            deadline_s=world.deadline_s,
            stopwatch=stopwatch,
        )

    def run(self, tasks: Iterable[SeedTask]) -> Iterator[LoadedMinibatch]:
        """Make minibatches and fetch their rows. Collective: every rank takes as many, to the last.

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
        if self._depth == 0:
            for one in planned:
                with self._stopwatch.measure("fetch"):
                    flight = _Flight(one, self._store.start(one.request))
                    loaded = self._load(flight)
                yield loaded
            return
        flights: deque[_Flight] = deque()
        with self._world.background_progress():
            self._move_on(flights, planned)
            while flights:
                current = flights.popleft()
                with self._stopwatch.measure("fetch"):
                    loaded = self._load(current)
                self._move_on(flights, planned)
                yield loaded

    def close(self) -> None:
        """End the threads that sample."""
        self._loader.close()

    def _move_on(self, flights: deque[_Flight], planned: Iterator[PlannedMinibatch]) -> None:
        """Begin new exchanges until there are enough, and bring every exchange to the stage of its place."""
        while len(flights) < self._depth:
            with self._stopwatch.measure("wait for samples"):
                one = next(planned, None)
            if one is None:
                break
            with self._stopwatch.measure("fetch"):
                flights.append(_Flight(one, self._store.start(one.request)))
        with self._stopwatch.measure("fetch"):
            for ahead, flight in enumerate(flights, start=1):
                if ahead <= self._rows_ahead:
                    flight.send_rows()
                elif ahead <= self._ids_ahead:
                    flight.send_ids()

    def _load(self, flight: _Flight) -> LoadedMinibatch:
        planned = flight.planned
        rows = flight.finish(self._room(planned.request.num_rows))
        return LoadedMinibatch(
            task=planned.task,
            input_ids=planned.minibatch.input_ids,
            minibatch=planned.minibatch.to(self._device, non_blocking=True),
            rows=rows.to(self._device, torch.float32, non_blocking=True),
        )

    def _room(self, num_rows: int) -> Tensor | None:
        """Memory that grows with the largest minibatch: filling new memory costs twice. None on a GPU."""
        if self._device.type != "cpu":
            return None
        if num_rows > len(self._combined):
            self._combined = self._combined.new_empty((num_rows + num_rows // 8, *self._store.row_shape))
        return self._combined[:num_rows]
