"""Make minibatches ahead of time: threads sample, and work out where each row will come from.

    task 7   task 6   task 5   |  task 4   task 3  |  task 2
    not yet drawn              |  being sampled    |  taken by the caller, in order

A thread does a whole minibatch from end to end and holds the interpreter lock only between its compiled loops. At
most `threads + 1` minibatches are under way or waiting, so memory is bounded and nobody samples far ahead of training.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from torch import Tensor

from windrow.caching.request import RowRequest
from windrow.comm.errors import DeadlineError
from windrow.comm.meter import Stopwatch
from windrow.gnn.block import Minibatch
from windrow.gnn.sampler import NeighborSampler

__all__ = ["MinibatchLoader", "PlannedMinibatch", "SeedTask"]


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class SeedTask:
    """A minibatch to be made: seeds, and the counters of its randomness."""

    seeds: Tensor
    """int64 [b], ids of the partition; b may be 0."""
    epoch: int
    """Of the training run; 0 where it is nothing else."""
    step: int
    """Of the epoch."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class PlannedMinibatch:
    """A sampled minibatch whose rows are not there yet."""

    task: SeedTask
    """What it was made from."""
    minibatch: Minibatch
    """On the CPU."""
    request: RowRequest
    """Where the rows of its input vertices will come from."""


class MinibatchLoader:
    """Samples minibatches in threads, and gives them out in the order of their tasks.

    Args:
        sampler: samples.
        plan: tells where the rows of some vertices will come from; called in the same thread as the sampler.
        threads: that sample; 0 for none: the caller's own thread does each minibatch when it is asked for.
        deadline_s: seconds to wait for one minibatch.
        stopwatch: gets the stage "sample", seconds of all threads together.
    """

    def __init__(
        self,
        sampler: NeighborSampler,
        plan: Callable[[Tensor], RowRequest],
        *,
        threads: int,
        deadline_s: float,
        stopwatch: Stopwatch,
    ) -> None:
        self._sampler = sampler
        self._plan = plan
        self._threads = threads
        self._deadline_s = deadline_s
        self._stopwatch = stopwatch
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="sampler") if threads else None

    def run(self, tasks: Iterable[SeedTask]) -> Iterator[PlannedMinibatch]:
        """Make minibatches.

        Args:
            tasks: drawn in the caller's thread, at most ``threads + 1`` ahead.

        Yields:
            One for each task, in their order.

        Raises:
            BaseException: whatever a thread raised, when its minibatch is due.
            DeadlineError: a minibatch was not there within the deadline; names it.
        """
        if self._pool is None:
            yield from map(self._make, tasks)
            return
        remaining = iter(tasks)
        waiting: deque[tuple[SeedTask, Future[PlannedMinibatch]]] = deque()
        try:
            while True:
                for task in remaining:
                    waiting.append((task, self._pool.submit(self._make, task)))
                    if len(waiting) > self._threads:
                        break
                if not waiting:
                    return
                yield self._result(*waiting.popleft())
        finally:
            # Where the caller stops early, nobody wants what is not begun.
            for _, future in waiting:
                future.cancel()

    def close(self) -> None:
        """End the threads, once they are done with what they have begun."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _result(self, task: SeedTask, future: Future[PlannedMinibatch]) -> PlannedMinibatch:
        try:
            return future.result(timeout=self._deadline_s)
        except TimeoutError:
            if future.done():  # It is the thread's own error.
                raise
            raise DeadlineError(
                f"the minibatch of epoch {task.epoch}, step {task.step} was not sampled after {self._deadline_s:g} s: "
                "give sampling more threads or smaller fanouts, or raise deadline_s"
            ) from None

    def _make(self, task: SeedTask) -> PlannedMinibatch:
        with self._stopwatch.measure("sample"):
            minibatch = self._sampler.sample(task.seeds, epoch=task.epoch, step=task.step)
            return PlannedMinibatch(task=task, minibatch=minibatch, request=self._plan(minibatch.input_ids))
