import numpy as np

from windrow.recsys.batches.deduplication.ikjt_kernels import copy_lists, selected_lengths

OFFSETS = np.array([0, 2, 2, 3, 6], np.int32)
"""Two features of two rows: [0 1] [] and [2] [3 4 5]."""


def test_copies_lists_of_chosen_features_and_rows():
    features, rows = np.array([1, 0]), np.array([1, 0, 1])
    lengths = np.empty(6, np.int32)
    assert selected_lengths(OFFSETS, 2, features, rows, lengths) == 9
    assert lengths.tolist() == [3, 1, 3, 0, 2, 0]
    out = np.empty(9, np.float32)
    copy_lists(OFFSETS, np.arange(6, dtype=np.float32), 2, features, rows, out)
    assert out.tolist() == [3, 4, 5, 2, 3, 4, 5, 0, 1]


def test_no_rows_are_no_lengths():
    none = np.zeros(0, np.int64)
    assert selected_lengths(OFFSETS, 2, np.array([0]), none, none) == 0
    copy_lists(OFFSETS, np.arange(6), 2, np.array([0]), none, none)
