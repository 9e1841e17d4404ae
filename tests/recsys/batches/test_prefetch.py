"""windrow.recsys.batches.prefetch: order, errors, ends and deadlines."""

import threading
import time
from collections.abc import Iterator

import pytest

from windrow.comm.errors import DeadlineError
from windrow.recsys.batches.prefetch import prefetch


def prefetch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


@pytest.mark.parametrize("depth", [1, 2, 7])
@pytest.mark.parametrize("count", [0, 1, 5, 100])
def test_all_items_in_order(depth: int, count: int) -> None:
    assert list(prefetch(iter(range(count)), depth=depth)) == list(range(count))
    assert prefetch_threads() == []


def test_errors_arrive_after_the_items_before_them() -> None:
    def broken() -> Iterator[int]:
        yield 1
        yield 2
        raise KeyError("lost")

    items = prefetch(broken())
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(KeyError, match="lost"):
        next(items)
    assert prefetch_threads() == []


def test_a_consumer_that_leaves_ends_the_thread_and_the_iterator() -> None:
    closed = threading.Event()

    def endless() -> Iterator[int]:
        try:
            number = 0
            while True:
                yield number
                number += 1
        finally:
            closed.set()

    items = prefetch(endless(), depth=3)
    assert [next(items) for _ in range(4)] == [0, 1, 2, 3]
    items.close()  # type: ignore[attr-defined]  # a generator
    assert closed.wait(5)
    assert prefetch_threads() == []


def test_no_more_than_depth_items_are_made_ahead() -> None:
    made = []

    def counted() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    items = prefetch(counted(), depth=2)
    next(items)
    time.sleep(0.3)
    # One taken, two in the queue, one in the hand of the producer.
    assert len(made) <= 4
    items.close()  # type: ignore[attr-defined]  # a generator


def test_a_slow_iterator_meets_the_deadline() -> None:
    release = threading.Event()

    def stuck() -> Iterator[int]:
        release.wait(30)
        yield 1

    # By a timer, since the consumer waits for the thread for a moment before it raises.
    timer = threading.Timer(0.5, release.set)
    timer.start()
    items = prefetch(stuck(), deadline_s=0.05)
    with pytest.raises(DeadlineError, match=r"no item was ready after 0\.05 s"):
        next(items)
    timer.join()
