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

Rows of two minibatches are on the wire, so that it does not fall idle between them. They give way to sums of
gradients, which minibatch i waits for. A depth of 3 has rows of one minibatch on the wire, of 2 sends ids and rows in
one go, of 1 counts too; beyond 4 rows are longer on their way. With 0, all stages of a minibatch follow one another.

A thread samples a whole minibatch and works out where each row will come from; it holds the interpreter lock only
between its compiled loops. At most `threads + 1` minibatches are under way or waiting, so memory is bounded.

On a GPU the copy of minibatch i + 1 runs beside the computing of i, on a stream of its own, so all but computing are a
minibatch further on. The stream that computes waits for the copies, and the allocator for that stream.
"""

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from windrow.caching.cached_store import CachedStore, RowGather
from windrow.caching.request import RowRequest
from windrow.comm.errors import DeadlineError, RecipeError
from windrow.comm.meter import Stopwatch
from windrow.comm.options import NonNegativeInt, PositiveInt, checked_dataclass
from windrow.comm.world import World
from windrow.gnn.message_passing import Minibatch
from windrow.gnn.sampler import NeighborSampler
from windrow.gnn.types import GraphTypes
from windrow.training.embedding import EmbeddingModule, RowLookup

__all__ = ["LoadedMinibatch", "MinibatchPipeline", "PipelineOptions", "SeedTask"]


@checked_dataclass
class PipelineOptions:
    """How minibatches are made while one is trained on. The answer does not depend on it, bit for bit."""

    depth: NonNegativeInt = 4
    """Minibatches whose rows are being asked for ahead of the one in training; 0 does all stages of a minibatch one
    after another (no pipeline)."""

    sampler_threads: PositiveInt = 1
    """Threads of each rank that sample, each a whole minibatch at a time, ahead of the exchange."""

    topology: Literal["replicated", "partitioned"] = "replicated"
    """Which neighbour lists a rank samples from: "replicated", from all; "partitioned", from those of its own part, and
    of the others ranks send what they draw for it. That divides the memory for edges by the number of ranks."""

    def __post_init__(self) -> None:
        """Check what does not go together."""
        if self.topology == "partitioned" and self.sampler_threads > 1:
            raise RecipeError(
                f'pipeline.sampler_threads = {self.sampler_threads} with pipeline.topology = "partitioned": ranks '
                "sample together then, in the same order, so in one thread each; leave it out"
            )

    def check_types(self, types: GraphTypes | None) -> None:
        """Refuse a topology that a graph with types cannot have: RecipeError."""
        if self.topology == "partitioned" and types is not None:
            raise RecipeError(
                'pipeline.topology = "partitioned": where edges have types every rank reads all lists; choose '
                '"replicated"'
            )

    def sampling_world(self, world: World) -> World | None:
        """The world whose ranks sample together; None: each samples alone."""
        return world if self.topology == "partitioned" else None


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class SeedTask:
    """A minibatch to be made: seeds, and the counters of its randomness."""

    seeds: Tensor
    """int64 [b], ids of the partition; b may be 0."""
    epoch: int
    """Of the training run; 0 where it is nothing else."""
    step: int
    """Of the epoch."""
    exclude: Tensor | None = None
    """int64 [2, n], edges that no message goes along, ids of the partition: source, destination."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class _PlannedMinibatch:
    """A sampled minibatch, on the CPU, whose rows are not there yet."""

    task: SeedTask
    minibatch: Minibatch
    request: RowRequest
    """Where the rows of its input vertices will come from."""


@dataclass(eq=False)
class _MinibatchLoader:
    """Samples minibatches in threads, and gives them out in the order of their tasks.

    With 0 threads the caller's own does each minibatch when it is asked for. The stage "sample" counts seconds of all
    threads together.
    """

    sampler: NeighborSampler
    plan: Callable[[Tensor], RowRequest]
    """Tells where the rows of some vertices will come from; called in the thread that samples."""
    threads: int
    deadline_s: float
    stopwatch: Stopwatch

    def __post_init__(self) -> None:
        self._has_failed = False
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="sampler") if self.threads else None

    def run(self, tasks: Iterable[SeedTask]) -> Iterator[_PlannedMinibatch]:
        """Make one minibatch for each task, in their order; tasks are drawn in the caller's thread, not far ahead.

        What a thread raised is raised when its minibatch is due, `DeadlineError` where that took too long.
        """
        if self._pool is None:
            yield from map(self._make, tasks)
            return
        remaining = iter(tasks)
        waiting: deque[tuple[SeedTask, Future[_PlannedMinibatch]]] = deque()
        try:
            while True:
                for task in itertools.islice(remaining, 1 + self.threads - len(waiting)):
                    waiting.append((task, self._pool.submit(self._make, task)))
                if not waiting:
                    return
                yield self._result(*waiting.popleft())
        finally:
            # Where the caller stops early, nobody wants what is not begun; but other ranks may have begun it.
            if self.sampler.remote is None:
                for _, future in waiting:
                    future.cancel()

    def close(self) -> None:
        """End the threads, once they are done with what they have begun.

        Where ranks sample together that is all that was asked for, on every rank as much; unless sampling failed here:
        then others wait for this rank, which must not wait for them.
        """
        if self._pool is not None:
            together = self.sampler.remote is not None
            self._pool.shutdown(
                wait=not (together and self._has_failed), cancel_futures=not together or self._has_failed
            )

    def _result(self, task: SeedTask, future: Future[_PlannedMinibatch]) -> _PlannedMinibatch:
        try:
            found = future.result(timeout=self.deadline_s)
        except TimeoutError:
            self._has_failed = True
            if future.done():  # It is the thread's own error.
                raise
            raise DeadlineError(
                f"the minibatch of epoch {task.epoch}, step {task.step} was not sampled after {self.deadline_s:g} s: "
                "give sampling more threads or smaller fanouts, or raise deadline_s"
            ) from None
        except BaseException:
            self._has_failed = True
            raise
        return found

    def _make(self, task: SeedTask) -> _PlannedMinibatch:
        with self.stopwatch.measure("sample"):
            minibatch = self.sampler.sample(task.seeds, epoch=task.epoch, step=task.step)
            if task.exclude is not None:
                minibatch = minibatch.without(task.exclude)
            if self.sampler.splits_by_type:
                minibatch.split_by_type()
            return _PlannedMinibatch(task=task, minibatch=minibatch, request=self.plan(minibatch.input_ids))


class _DeviceCopy:
    """Where minibatches are copied to a device, which the copies may read; on a CPU nothing needs to be done."""

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream | None = None
        self.overlaps = device.type == "cuda"
        """Whether copies run beside computing, so that it pays to begin them a minibatch ahead."""
        if self.overlaps:
            self._stream = torch.cuda.Stream(device)
            self._stream.wait_stream(torch.cuda.current_stream(device))

    def queue(self) -> AbstractContextManager[object]:
        """While the ``with`` block runs, what this thread queues on the device goes to the stream of the copies."""
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def mark(self) -> torch.cuda.Event | None:
        """A moment: when all copies that were queued until now are done."""
        return None if self._stream is None else self._stream.record_event()

    def hand_over(self, done: torch.cuda.Event | None, tensors: Iterable[Tensor]) -> None:
        """Let the caller's stream use tensors that copies before the mark made; the caller itself waits for nothing."""
        if self._stream is None or done is None:
            return
        current = torch.cuda.current_stream(self._stream.device)
        current.wait_event(done)
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(current)


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
    lookup: RowLookup | None = None
    """Of rows of the inputs that are learnt."""
    copied: torch.cuda.Event | None = None
    """When all of it is on the device; what computes with it has been told to wait. None on a CPU."""

    def inputs(self) -> Tensor:
        """Rows, and behind their columns those that are learnt; then every rank calls it, once."""
        if self.lookup is None:
            return self.rows
        learnt = self.lookup.finish().to(self.rows.device)
        return torch.cat([self.rows, learnt], 1) if self.rows.shape[1] else learnt

    def no_loss(self) -> Tensor | None:
        """What a rank without seeds gives for a loss: a zero where others wait for gradients of learnt rows."""
        return None if self.lookup is None else self.lookup.finish().sum() * 0

    def tensors(self) -> Iterator[Tensor]:
        """All that is on the device."""
        yield from (self.rows, self.minibatch.seeds, self.minibatch.input_ids)
        for block in self.minibatch.blocks:
            yield from block.arrays().values()
            if "typed" in block.__dict__:
                yield from block.typed.tensors()


_Flight = tuple[_PlannedMinibatch, RowGather, RowLookup | None]
"""A minibatch on its way through the exchanges of features, and of rows that are learnt."""


class MinibatchPipeline:
    """Samples minibatches and fetches their rows, ahead of whoever computes with them.

    Args:
        world: all its ranks make the same pipeline.
        sampler: of this rank.
        store: where the rows are; all ranks' stores belong together.
        options: how far ahead; must agree.
        device: where minibatches are computed.
        stopwatch: gets the stages "sample" (threads), "wait for samples" and "fetch" (main thread).
        embedding: where rows are that are learnt; their ids travel ahead, and they themselves when the minibatch is
            computed. None for none.
        window: minibatches that are sampled further ahead, so that the store's cache may change with them.
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
        embedding: EmbeddingModule | None = None,
        window: int = 0,
    ) -> None:
        self._store = store
        self._window = store.window(window)
        self._embedding = embedding
        self._depth = options.depth
        self._rows_ahead = max(1, options.depth - 2)
        self._ids_ahead = max(self._rows_ahead, options.depth - 1)
        self._device = device
        self._stopwatch = stopwatch
        self._combined = torch.empty((0, *store.row_shape))
        self._copies = _DeviceCopy(device if options.depth else torch.device("cpu"))
        # Where a caller stopped early.
        self._given_up: list[RowLookup] = []
        self._loader = _MinibatchLoader(
            sampler,
            store.plan if self._window is None else store.plan_uncached,
            threads=options.sampler_threads if options.depth else 0,
            deadline_s=world.deadline_s,
            stopwatch=stopwatch,
        )

    def run(self, tasks: Iterable[SeedTask]) -> Generator[LoadedMinibatch, None, None]:
        """Make a minibatch for each task and fetch its rows, in their order. Collective: every rank takes as many.

        Tasks are drawn ahead of time; the next minibatch is asked for when this one is computed, and the caller may
        call other collectives in between. Who stops before the last, and closes the generator, leaves exchanges under
        way; they are ended by `settle`, or when a pipeline runs on this store again, which none may before.

        Raises:
            DataError: a seed or a row is not there.
            DeadlineError: a rank did not come in time.
        """
        self.settle()
        planned = self._planned(self._loader.run(tasks))
        if self._depth == 0:
            for one in planned:
                with self._stopwatch.measure("fetch"):
                    loaded = self._load(*self._start(one))
                yield loaded
        else:
            with contextlib.closing(self._fetched(planned)) as fetched:
                yield from self._copied(fetched)

    def settle(self) -> None:
        """End the exchanges of minibatches that nobody will ask for. Collective; no run may be open."""
        if self._device.type == "cuda":
            # Rows and cache were written on other streams.
            torch.cuda.synchronize(self._device)
        self._store.settle()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        for lookup in self._given_up:
            lookup.drop()
        self._given_up.clear()

    def rest(self) -> None:
        """Let others have the memory of the last minibatch's rows, until the next one is asked for."""
        self._combined = self._combined.new_empty((0, *self._store.row_shape))

    def close(self) -> None:
        """End the threads that sample."""
        self._loader.close()

    def _planned(self, sampled: Iterator[_PlannedMinibatch]) -> Iterator[_PlannedMinibatch]:
        """Where the cache changes from minibatch to minibatch, plan each when those that follow it are known."""
        if self._window is None:
            yield from sampled
            return
        sampled, ahead = itertools.tee(sampled)
        for one, request in zip(sampled, self._window.planned(each.request for each in ahead), strict=True):
            yield replace(one, request=request)

    def _copied(self, fetched: Iterator[LoadedMinibatch]) -> Iterator[LoadedMinibatch]:
        """Hand minibatches over, each when the copy of the next has begun where that runs beside computing."""
        ready: deque[LoadedMinibatch] = deque()
        for loaded in fetched:
            ready.append(loaded)
            if len(ready) > self._copies.overlaps:
                yield self._hand_over(ready.popleft())
        yield from map(self._hand_over, ready)

    def _hand_over(self, loaded: LoadedMinibatch) -> LoadedMinibatch:
        self._copies.hand_over(loaded.copied, loaded.tensors())
        return loaded

    def _fetched(self, planned: Iterator[_PlannedMinibatch]) -> Generator[LoadedMinibatch, None, None]:
        flights: deque[_Flight] = deque()
        try:
            self._move_on(flights, planned)
            while flights:
                with self._stopwatch.measure("fetch"):
                    loaded = self._load(*flights.popleft())
                self._move_on(flights, planned)
                yield loaded
        finally:
            self._given_up += [lookup for _, _, lookup in flights if lookup is not None]

    def _move_on(self, flights: deque[_Flight], planned: Iterator[_PlannedMinibatch]) -> None:
        """Begin new exchanges until there are enough, and bring every exchange to the stage of its place."""
        while len(flights) < self._depth:
            with self._stopwatch.measure("wait for samples"):
                one = next(planned, None)
            if one is None:
                break
            with self._stopwatch.measure("fetch"), self._copies.queue():
                flights.append(self._start(one))
        with self._stopwatch.measure("fetch"), self._copies.queue():
            for ahead, (_, gather, lookup) in enumerate(flights, start=1):
                if ahead <= self._rows_ahead:
                    gather.send_rows()
                elif ahead <= self._ids_ahead:
                    gather.send_ids()
                if lookup is not None and ahead <= self._ids_ahead:
                    lookup.start_ids()

    def _start(self, planned: _PlannedMinibatch) -> _Flight:
        """Send the counts of a minibatch."""
        gather, lookup = self._store.start(planned.request), None
        if self._embedding is not None:
            lookup = self._embedding.start_rows(planned.minibatch.input_ids)
        return planned, gather, lookup

    def _load(self, planned: _PlannedMinibatch, gather: RowGather, lookup: RowLookup | None) -> LoadedMinibatch:
        with self._copies.queue():
            # Before the rows: a copy from memory that is not page-locked waits for those queued before it.
            minibatch = planned.minibatch.to(self._device, non_blocking=True)
            rows = gather.finish(self._room(planned.request.num_rows))
            rows = rows.to(self._device, torch.float32, non_blocking=True)
            copied = self._copies.mark()
        return LoadedMinibatch(
            task=planned.task,
            input_ids=planned.minibatch.input_ids,
            minibatch=minibatch,
            rows=rows,
            lookup=lookup,
            copied=copied,
        )

    def _room(self, num_rows: int) -> Tensor | None:
        """Memory that grows with the largest minibatch: filling new memory costs twice. None on a GPU."""
        if self._device.type != "cpu":
            return None
        if num_rows > len(self._combined):
            self._combined = self._combined.new_empty((num_rows + num_rows // 8, *self._store.row_shape))
        return self._combined[:num_rows]
