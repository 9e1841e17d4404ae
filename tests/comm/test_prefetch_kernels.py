"""Prefetching changes nothing that a program can see."""

import numba
import numpy as np
import numpy.typing as npt
import pytest

from windrow.comm.inline_kernels import prefetch


@numba.njit
def _sum_with_prefetch(values: npt.NDArray[np.int64], ahead: int) -> int:
    total = 0
    for position in range(len(values)):
        prefetch(values, position + ahead)
        total += values[position]
    return total


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32])
@pytest.mark.parametrize("ahead", [0, 16, 1 << 40, -(1 << 40)])
def test_prefetch_reads_nothing_even_far_outside_the_array(dtype: type, ahead: int) -> None:
    values = np.arange(100, dtype=dtype)
    assert _sum_with_prefetch(values, ahead) == 4950
    np.testing.assert_array_equal(values, np.arange(100, dtype=dtype))
