"""Counts of rows in bounded memory, against counts of everything."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.caching.hot_rows import HotRows, most_wanted

batches = st.lists(st.lists(st.integers(0, 30), max_size=12, unique=True), max_size=12)


@given(batches)
def test_counts_are_exact_while_there_is_room(drawn):
    hot, expected = HotRows(31), np.zeros(31, int)
    for batch in drawn:
        hot.count(torch.tensor(batch, dtype=torch.int64))
        expected[batch] += 1
    rows, counts = hot.counts()
    assert rows.tolist() == np.flatnonzero(expected).tolist()
    assert counts.tolist() == expected[expected > 0].tolist()


@given(batches, st.integers(2, 8))
def test_memory_is_bounded_and_no_count_is_too_large(drawn, room):
    hot, expected = HotRows(room), np.zeros(31, int)
    for batch in drawn:
        hot.count(torch.tensor(batch, dtype=torch.int64))
        expected[batch] += 1
    rows, counts = hot.counts()
    assert len(rows) <= room
    assert (np.diff(rows) > 0).all()
    assert (counts <= expected[rows]).all()


def test_a_row_that_is_wanted_all_the_time_is_never_forgotten():
    hot = HotRows(4)
    for step in range(50):
        hot.count(torch.tensor([7, 100 + step]), torch.tensor([3, 1]))
    rows, counts = hot.counts()
    assert dict(zip(rows.tolist(), counts.tolist(), strict=True))[7] == 150


def test_equal_counts_are_taken_in_order_of_rows():
    rows, counts = np.array([2, 5, 9]), np.array([1, 4, 4])
    assert most_wanted(rows, counts, 2).tolist() == [1, 2]
    assert most_wanted(rows, counts, 9).tolist() == [1, 2, 0]
