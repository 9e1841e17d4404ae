"""The loops alone: what they leave alone, and the order of groups."""

import numpy as np

from windrow.caching.store_kernels import classify, sort_by_source

NO_TABLE = np.empty((0, 2), np.int64)


def test_own_rows_come_from_their_rank_also_where_they_are_cached():
    direct = np.array([0, -1, 1, -1], np.int32)
    ids, source, slots = np.array([0, 1, 2, 3]), np.zeros(4, np.int32), np.zeros(4, np.int32)
    counts = np.zeros(3, np.int64)
    assert classify(ids, np.array([0, 2, 4]), 0, direct, NO_TABLE, source, slots, counts) == -1
    assert source.tolist() == [0, 0, 2, 1]
    assert counts.tolist() == [2, 1, 1]
    assert slots[2] == 1


def test_first_id_that_nobody_owns_is_named():
    ids, nothing = np.array([1, 4, -1]), np.zeros(3, np.int32)
    counts = np.zeros(3, np.int64)
    direct = np.empty(0, np.int32)
    assert classify(ids, np.array([0, 2, 4]), 0, direct, NO_TABLE, nothing, nothing.copy(), counts) == 1


def test_groups_stand_where_their_cursors_say():
    ids, source = np.array([5, 1, 9, 4, 8]), np.array([1, 0, 2, 1, 1], np.int32)
    slots = np.array([-1, -1, 7, -1, -1], np.int32)
    values, places = np.zeros(5, np.int64), np.zeros(5, np.int64)
    sort_by_source(ids, source, slots, 4, 1, np.array([0, 1, 4]), values, places)
    assert values.tolist() == [1, 1, 0, 4, 7]
    assert places.tolist() == [1, 0, 3, 4, 2]
