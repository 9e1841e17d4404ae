"""The hash table: searches that wrap around its end, and end at the first empty place."""

import numpy as np

from windrow.caching.store_kernels import fill_table, find_slots, home, probe, shift_of


def test_every_capacity_keeps_its_number_of_bits():
    assert [int(shift_of(1 << bits)) for bits in (1, 4, 20)] == [63, 60, 44]


def test_searches_wrap_around_the_end():
    shift = shift_of(8)
    last = [key for key in range(200) if home(key, shift) == 7][:3]
    table = np.full((8, 2), -1, np.int64)
    assert fill_table(np.array(last), table) == -1
    assert table[[7, 0, 1], 0].tolist() == last
    assert [probe(key, table, shift) for key in last] == [0, 1, 2]
    absent = next(key for key in range(200, 400) if home(key, shift) == 7)
    assert probe(absent, table, shift) == -1
    assert fill_table(np.array(last[1:2]), table) == 0, "it is there already"


def test_where_nothing_is_cached_nothing_is_found():
    slots = np.zeros(3, np.int32)
    find_slots(np.array([4, 0, 2]), np.empty(0, np.int32), np.empty((0, 2), np.int64), slots)
    assert slots.tolist() == [-1, -1, -1]
