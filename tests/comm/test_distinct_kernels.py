"""The hash table when it is as full as it may be, with ids that meet in one slot."""

import numpy as np

from windrow.comm.random import hash_ids, mix64
from windrow.comm.rows_kernels import find_distinct


def test_ids_that_meet_in_one_slot_are_told_apart():
    slots = 16
    colliding = [number for number in range(2000) if mix64(number) % slots == 3][: slots // 2]
    ids = np.array(colliding + colliding[::-1], np.int64)
    table = np.full(2 * slots, -1, np.int32)
    found, positions = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
    count = find_distinct(ids, table, found, positions)
    assert found[:count].tolist() == colliding
    assert np.array_equal(found[positions], ids)


def test_many_random_ids():
    ids = (hash_ids(1, np.arange(10_000)) % np.uint64(3000)).astype(np.int64)
    table = np.full(1 << 15, -1, np.int32)
    found, positions = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
    count = find_distinct(ids, table, found, positions)
    assert sorted(found[:count].tolist()) == np.unique(ids).tolist()
    assert np.array_equal(found[positions], ids)
