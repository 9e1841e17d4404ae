"""Iterators that work ahead in background threads.

producer thread:   next(items) -> [ queue of at most `depth` items ] -> consumer
"""

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from windrow.comm.errors import DeadlineError

__all__ = ["ordered_map", "prefetch"]

Item = TypeVar("Item")
Result = TypeVar("Result")

POLL_S = 0.1
"""How often a producer that finds the queue full looks whether its consumer has gone."""


@dataclass(frozen=True)
class _End:
    """No more items come, because of an error or without."""

    error: BaseException | None = None


def prefetch(items: Iterable[Item], *, depth: int = 2, deadline_s: float = 600.0) -> Generator[Item, None, None]:
    """Take items from an iterator in a thread of its own, up to `depth` ahead of their consumer.

    The order stays the same. What the iterator raises is raised here, after the items before it. The thread
    starts with the first item asked for and ends when the items do or when the consumer closes this generator
    or drops it; the iterator is closed with it, in the same thread.

    Args:
        items: used by the thread alone from now on. It gains where it waits for a disk or computes in code that
            lets other threads run (Arrow, zlib, compiled loops).
        depth: items held ready, at least 1, beside the one in the making.
        deadline_s: seconds to wait for one item.

    Yields:
        The items.

    Raises:
        DeadlineError: an item took longer than the deadline.
    """
    ready: queue.Queue[Item | _End] = queue.Queue(depth)
    stop = threading.Event()
    producer = threading.Thread(target=_produce, args=(items, ready, stop), name="prefetch", daemon=True)
    producer.start()
    try:
        while True:
            try:
                item = ready.get(timeout=deadline_s)
            except queue.Empty:
                raise DeadlineError(
                    f"no item was ready after {deadline_s:g} s of waiting for the reader: is the disk gone?"
                ) from None
            if not isinstance(item, _End):
                yield item
            elif item.error is None:
                return
            else:
                raise item.error
    finally:
        stop.set()
        # An idle producer is gone within the poll; one that hangs in its iterator must not hold up the consumer.
        producer.join(timeout=10 * POLL_S)


def _produce(items: Iterable[Item], ready: "queue.Queue[Item | _End]", stop: threading.Event) -> None:
    iterator, end = iter(items), _End()
    try:
        for item in iterator:
            if not _put(item, ready, stop):
                return
    except BaseException as error:  # noqa: BLE001 - whatever it is, the consumer has to see it
        end = _End(error)
    finally:
        if isinstance(iterator, Generator):
            iterator.close()
    _put(end, ready, stop)


def _put(item: "Item | _End", ready: "queue.Queue[Item | _End]", stop: threading.Event) -> bool:
    """Whether the item found a place before the consumer went."""
    while not stop.is_set():
        with contextlib.suppress(queue.Full):
            ready.put(item, timeout=POLL_S)
            return True
    return False


def ordered_map(function: Callable[[Item], Result], items: Iterable[Item], *, workers: int) -> Iterator[Result]:
    """Apply a function to items in threads of its own; results in the order of items.

    What the function or the iterator raises is raised here, after the results before it. The threads end with the
    items, or when the consumer closes this generator or drops it. Items are taken in the consumer's thread, one more
    than there are threads at a time.

    Args:
        function: called in several threads at once.
        items: what it is called with, one after the other.
        workers: threads.
    """
    pending: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="ordered map")
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
