"""The loops on the edge of what they prefetch: fewer rows than they look ahead."""

import numpy as np
import pytest

from windrow.comm.rows_kernels import AHEAD, gather, scatter


@pytest.mark.parametrize("count", [1, AHEAD - 1, AHEAD, AHEAD + 1, 3 * AHEAD])
def test_few_rows(count):
    rows = np.arange(5 * count, dtype=np.int32).reshape(count, 5)
    positions = np.arange(count)[::-1].copy()
    out = np.zeros_like(rows)
    gather(rows, positions, out)
    assert np.array_equal(out, rows[::-1])
    back = np.zeros_like(rows)
    scatter(out, positions, back)
    assert np.array_equal(back, rows)
