import numpy as np

from windrow.recsys.batches.deduplication.ikjt_kernels import number_by_first


def test_writes_places_and_distinct_numbers():
    places, distinct, renumbered = np.full(6, -1), np.empty(4, np.int64), np.empty(4, np.int64)
    assert number_by_first(np.array([5, 5, 2, 5]), places, distinct, renumbered) == 2
    assert distinct[:2].tolist() == [5, 2]
    assert renumbered.tolist() == [0, 0, 1, 0]
    assert places.tolist() == [-1, -1, 1, -1, -1, 0]
