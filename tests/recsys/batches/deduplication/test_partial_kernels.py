import numpy as np

from windrow.recsys.batches.deduplication.ikjt_kernels import pack_lists


def test_the_longest_overlap_is_found_where_a_shorter_one_fails():
    # The end of the first list is also twice the beginning of the second, which then goes on differently.
    lists = [[1, 1, 2, 1, 1], [1, 1, 2, 1, 1, 1]]
    values = np.array(lists[0] + lists[1])
    packed, starts, failures = np.empty(11, np.int64), np.empty(2, np.int64), np.empty(6, np.int64)
    total = pack_lists(np.array([0, 5, 11]), values, 1, failures, packed, starts)
    assert packed[:total].tolist() == [1, 1, 2, 1, 1, 1]
    assert starts.tolist() == [0, 0]
    assert failures.tolist() == [0, 1, 0, 1, 2, 2]
