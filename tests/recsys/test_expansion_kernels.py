import numpy as np

from windrow.recsys.embeddings_kernels import copy_columns, copy_lists, sum_columns, sum_lists


def test_columns_go_where_runs_say_and_come_back_summed():
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    inverse = np.array([1, 0, 1])
    runs = np.array([[2, 0, 2], [0, 3, 1]])
    out = np.full((3, 5), -1, dtype=np.float32)
    copy_columns(rows, inverse, runs, out)
    assert out.tolist() == [[6, 7, -1, 4, -1], [2, 3, -1, 0, -1], [6, 7, -1, 4, -1]]

    upstream = np.arange(15, dtype=np.float32).reshape(3, 5)
    gradient = np.zeros_like(rows)
    sum_columns(upstream, inverse, runs, gradient)
    assert gradient.tolist() == [[8, 0, 5, 6], [16, 0, 10, 12]]


def test_lists_are_copied_and_come_back_summed():
    items = np.array([[1, 2], [3, 4], [5, 6]], dtype=np.float32)
    offsets = np.array([0, 2, 2, 3])
    inverse = np.array([2, 1, 0, 2])
    out = np.empty((4, 2), dtype=np.float32)
    copy_lists(items, offsets, inverse, out)
    assert out.tolist() == [[5, 6], [1, 2], [3, 4], [5, 6]]

    gradient = np.zeros_like(items)
    sum_lists(out, offsets, inverse, gradient)
    assert gradient.tolist() == [[1, 2], [3, 4], [10, 12]]
