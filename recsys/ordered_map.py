"""A function applied by several threads, results in the order of the items."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["default_workers", "ordered_map"]

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_WORKERS = 4
"""More threads than these parse faster than a disk or a decompressor delivers."""


def default_workers() -> int:
    """Threads that this process may well use: one for each of its cores, up to `MOST_WORKERS`."""
    return min(len(os.sched_getaffinity(0)), MOST_WORKERS)


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], *, workers: int | None = None
) -> Iterator[Result]:
    """Apply a function to items in threads of its own, some items ahead of the consumer.

    What the function or the iterator raises is raised here, after the results before it. The threads end with the
    items, or when the consumer closes this generator or drops it.

    Args:
        function: gains where it computes in code that lets other threads run (compiled loops, Arrow).
        items: taken in the consumer's thread.
        workers: threads; `default_workers` by default. One more item than these is held at a time.

    Yields:
        ``function(item)`` of each item, in their order.
    """
    count = default_workers() if workers is None else workers
    pending: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(count, thread_name_prefix="ordered map")
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > count:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
