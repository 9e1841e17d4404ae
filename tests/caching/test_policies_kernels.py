"""The sum over those that list a vertex."""

import numpy as np

from windrow.caching.ranking_kernels import add_from_samplers


def test_values_of_those_that_list_a_vertex_are_added_up():
    sums = np.full(4, -1.0)
    values = np.array([1.0, 10, 100, 1000])
    add_from_samplers(0, 3, np.array([0, 2, 2, 5, 6]), np.array([1, 3, 0, 0, 2, 1]), values, sums)
    assert sums.tolist() == [1010, 0, 102, -1]
