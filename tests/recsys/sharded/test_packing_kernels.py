"""The compiled loops on inputs that the functions around them do not make."""

import numpy as np
import pytest

from windrow.recsys.sharded.packing_kernels import place_requests, summarise

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


def test_places_without_lengths_are_one_id_each_and_further_bags_are_empty():
    values, offsets = np.zeros(6, np.int32), np.zeros(7, np.int32)
    nothing = np.empty(0, np.float32)
    ids = np.array([8, 9, 7], np.int32)
    lookups = np.array([[1, 2, -1, 2, 3, 3]])
    place_requests(ids, nothing, np.empty(0, np.int32), lookups, 3, values, nothing, offsets)
    assert values.tolist() == [0, 0, 0, 9, 7, 0]
    assert offsets.tolist() == [0, 0, 0, 3, 4, 5, 0]
