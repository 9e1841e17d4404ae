"""The compiled sums against two plain loops."""

import numpy as np
import pytest

from windrow.recsys.tables.table_kernels import add_to_rows, dot_with_rows, sum_rows

TABLE = np.arange(20, dtype=np.float32).reshape(5, 4)
OFFSETS = np.array([1, 3, 3, 4], dtype=np.int64)
NONE = np.empty(0, dtype=np.float32)
WEIGHTS = np.array([9, 2, 3, 0.5, 9], dtype=np.float32)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("weights", [NONE, WEIGHTS])
def test_only_the_bags_values_and_columns_count(dtype, weights):
    values = np.array([0, 4, 4, 1, 2], dtype=dtype)
    factors = weights if len(weights) else np.ones(5, dtype=np.float32)
    pooled = np.full((3, 6), -1, dtype=np.float32)
    sum_rows(TABLE, values, OFFSETS, weights, pooled, 1)
    expected = np.full((3, 6), -1, dtype=np.float32)
    expected[0, 1:5] = factors[1] * TABLE[4] + factors[2] * TABLE[4]
    expected[1, 1:5] = 0
    expected[2, 1:5] = factors[3] * TABLE[1]
    np.testing.assert_array_equal(pooled, expected)

    arriving = np.arange(18, dtype=np.float32).reshape(3, 6)
    gradient = np.zeros_like(TABLE)
    add_to_rows(gradient, values, OFFSETS, weights, arriving, 1)
    expected = np.zeros_like(TABLE)
    expected[4] = (factors[1] + factors[2]) * arriving[0, 1:5]
    expected[1] = factors[3] * arriving[2, 1:5]
    np.testing.assert_array_equal(gradient, expected)

    of_weights = np.zeros(5, dtype=np.float32)
    dot_with_rows(TABLE, values, OFFSETS, of_weights, arriving, 1)
    dots = [TABLE[4] @ arriving[0, 1:5], TABLE[4] @ arriving[0, 1:5], TABLE[1] @ arriving[2, 1:5]]
    np.testing.assert_array_equal(of_weights, np.array([0, *dots, 0], dtype=np.float32))
