"""Ranges of things on several threads."""

import numpy as np
import pytest

from windrow.comm.threads import in_parallel


@pytest.mark.parametrize("at_once", [1, 7, 4000])
@pytest.mark.parametrize("items", [50, np.concatenate([np.zeros(20), np.arange(31) * 100]).astype(np.int64)])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_every_item_is_done_once_on_any_number_of_threads(threads, number, items, at_once):
    done = np.zeros(50, np.int64)

    def work(first, last):
        done[first:last] += 1

    threads(number)
    in_parallel(work, items, at_once=at_once)
    assert (done == 1).all()


def test_an_error_in_a_thread_is_raised(threads):
    def work(first, last):
        raise ValueError(f"{first} to {last}")

    threads(2)
    with pytest.raises(ValueError, match="to"):
        in_parallel(work, np.arange(10))


@pytest.mark.parametrize("items", [0, np.zeros(1, np.int64)])
def test_nothing_is_an_empty_range(threads, items):
    threads(2)
    ranges = []
    in_parallel(lambda *one: ranges.append(one), items)
    assert ranges == [(0, 0)]
