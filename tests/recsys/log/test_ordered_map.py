"""windrow.recsys.log.raw_blocks: order, errors, and threads that end."""

import threading
import time
from collections.abc import Iterator

import pytest

from windrow.recsys.log.raw_blocks import default_workers, ordered_map


def own_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ordered map")]


@pytest.mark.parametrize("workers", [1, 2, 5, None])
def test_results_are_in_the_order_of_the_items(workers: int | None) -> None:
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
    taken = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    results = ordered_map(lambda number: number, items(), workers=2)
    next(results)
    assert len(taken) == 3
    results.close()  # type: ignore[attr-defined]  # a generator
    assert own_threads() == []


def test_there_is_a_worker_at_least() -> None:
    assert 1 <= default_workers() <= 4
