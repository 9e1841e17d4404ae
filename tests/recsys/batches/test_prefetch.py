"""windrow.recsys.batches.prefetch: order, errors, ends and deadlines."""

import itertools
import threading
import time
from collections.abc import Iterator

import pytest

from windrow.comm.errors import DeadlineError
from windrow.recsys.batches.prefetch import ordered_map, prefetch


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


def own_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ordered map")]


@pytest.mark.parametrize("workers", [1, 2, 99])
def test_results_are_in_the_order_of_the_items(workers: int) -> None:
    def slowly(number: int) -> int:
        time.sleep(0.002 * (number % 3))
        return number * number

    assert list(ordered_map(slowly, range(30), workers=workers)) == [number**2 for number in range(30)]
    assert list(ordered_map(slowly, [], workers=workers)) == []
    assert own_threads() == []


def test_errors_come_after_the_results_before_them() -> None:
    results = ordered_map(lambda number: 6 // number, [1, 2, 3, 0, 1], workers=2)
    assert [next(results) for _ in range(3)] == [6, 3, 2]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert own_threads() == []


def test_few_items_are_taken_ahead() -> None:
    numbers = itertools.count()
    results = ordered_map(lambda number: number, numbers, workers=2)
    next(results)
    assert next(numbers) == 3
    results.close()  # type: ignore[attr-defined]  # a generator
    assert own_threads() == []
