import numpy as np

from windrow.recsys.batches.deduplication.distinct_lists_kernels import (
    find_leaders,
    mark_other_lengths,
    mark_other_values,
    mark_unequal,
    mix_lists,
    number_runs,
    starts_of_runs,
)

OFFSETS = np.array([1, 3, 5, 6, 6, 8])
VALUES = np.array([9, 4, 5, 4, 5, 4, 4, 5])
"""[4 5] [4 5] [4] [] [4 5], behind a value that belongs to no list."""


def test_a_sample_begins_a_run_where_any_feature_differs():
    begins = np.array([True, False, False, False, False])
    mark_other_lengths(OFFSETS, begins)
    assert begins.tolist() == [True, False, True, True, True]
    starts = np.empty(6, np.int64)
    assert starts_of_runs(begins, starts) == 4
    assert starts[:5].tolist() == [0, 2, 3, 4, 5]
    other = np.array([9, 4, 5, 4, 6, 4, 4, 5])
    mark_other_values(OFFSETS, VALUES, starts[:5], begins)
    assert not begins[1]
    mark_other_values(OFFSETS, other, starts[:5], begins)
    assert begins[1]


def test_equal_lists_have_equal_hashes_and_other_lists_others():
    hashes = np.zeros(4, np.uint64)
    mix_lists(OFFSETS, VALUES, np.array([0, 2, 3, 4]), hashes)
    assert hashes[0] == hashes[3]
    assert len(set(hashes.tolist())) == 3


def test_the_first_of_each_hash_leads_also_where_slots_are_shared():
    # All of the lowest slot; the last two wrap around.
    hashes = np.array([7, 15, 7, 23, 15], np.uint64)
    leaders = np.empty(5, np.int64)
    find_leaders(hashes, np.full(8, -1), leaders)
    assert leaders.tolist() == [0, 1, 0, 3, 1]


def test_marks_samples_that_are_not_their_leader():
    unequal = np.array([False, False, False, True])
    mark_unequal(OFFSETS, VALUES, np.array([0, 2, 3, 4]), np.array([0, 0, 3, 0]), unequal)
    assert unequal.tolist() == [False, True, False, True]


def test_numbers_runs_by_their_leaders():
    numbers, representatives, inverse = np.empty(4, np.int64), np.empty(5, np.int64), np.empty(7, np.int64)
    starts, leaders = np.array([0, 2, 3, 6]), np.array([0, 1, 0, 3])
    begins, hashes = (
        np.array([True, False, True, True, False, False, True]),
        np.array([5, 6, 5, 7], np.uint64),
    )
    assert number_runs(starts, leaders, begins, numbers, representatives, hashes, inverse) == 3
    assert representatives[:3].tolist() == [0, 2, 6]
    assert hashes[:3].tolist() == [5, 6, 7]
    assert inverse.tolist() == [0, 0, 1, 0, 0, 0, 2]
