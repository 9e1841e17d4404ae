"""The compiled loops on inputs that the functions around them do not make."""

import numpy as np
import pytest

from windrow.recsys.sharded.packing_kernels import count_requests, place_requests, summarise

LIMITS = np.array([10, -1, 5], np.int64)


def look(lengths, ids):
    starts, one_each = np.full(4, -7, np.int64), np.zeros(3, np.bool_)
    lawful = summarise(np.array(lengths, np.int32), np.array(ids, np.int64), LIMITS, starts, one_each)
    return lawful, starts.tolist(), one_each.tolist()


def test_summary():
    assert look([[1, 1], [2, 0], [0, 1]], [9, 0, 77, -5, 4]) == (True, [0, 2, 4, 5], [True, False, False])


@pytest.mark.parametrize(
    ("lengths", "ids"),
    [
        ([[1, 1], [0, 0], [0, 0]], [9, 10]),
        ([[1, 1], [0, 0], [0, 0]], [-1, 0]),
        ([[0, 0], [0, 0], [0, 1]], [5]),
        ([[2, -1], [0, 0], [0, 0]], [5]),
        ([[1, 1], [0, 0], [0, 0]], [5]),
        ([[1, 0], [0, 0], [0, 0]], [5, 5]),
    ],
)
def test_unlawful(lengths, ids):
    assert not look(lengths, ids)[0]


def test_counts_of_a_table_cut_by_rows_are_those_of_its_pieces():
    generator = np.random.default_rng(0)
    lengths = generator.integers(0, 4, (2, 9))
    starts = np.concatenate([[0], lengths.sum(1).cumsum()])
    ids = generator.integers(0, 20, starts[-1])
    requests = np.array([[1, 0, 6, 0], [1, 6, 20, 1], [0, 0, 20, -1]])
    counts, bags = np.empty(3, np.int64), np.empty((2, 9), np.int32)
    count_requests(lengths, ids, starts, requests, counts, bags)
    assert counts.tolist() == [(ids[starts[1] :] < 6).sum(), (ids[starts[1] :] >= 6).sum(), starts[1]]
    assert (bags.sum(0) == lengths[1]).all()
    assert bags.sum(1).tolist() == counts[:2].tolist()


def test_places_without_lengths_are_one_id_each_and_further_bags_are_empty():
    values, offsets = np.zeros(6, np.int32), np.zeros(7, np.int32)
    nothing = np.empty(0, np.float32)
    ids = np.array([8, 9, 7], np.int32)
    lookups = np.array([[1, 2, -1, 2, 3, 3]])
    place_requests(ids, nothing, np.empty(0, np.int32), lookups, 3, values, nothing, offsets)
    assert values.tolist() == [0, 0, 0, 9, 7, 0]
    assert offsets.tolist() == [0, 0, 0, 3, 4, 5, 0]
