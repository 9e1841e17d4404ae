"""The loops on the edge of what they prefetch: fewer rows than they look ahead."""

import numpy as np
import pytest

from windrow.comm.rows_kernels import AHEAD, move, narrow, widen

ALL = np.empty(0, np.int64)


@pytest.mark.parametrize("count", [1, AHEAD - 1, AHEAD, AHEAD + 1, 3 * AHEAD])
def test_few_rows(count):
    rows = np.arange(5 * count, dtype=np.int32).reshape(count, 5)
    backwards = np.arange(count)[::-1].copy()
    out = np.zeros_like(rows)
    move(rows, backwards, out, ALL)
    assert np.array_equal(out, rows[::-1])
    back = np.zeros_like(rows)
    move(out, ALL, back, backwards)
    assert np.array_equal(back, rows)
    move(rows, backwards, back, backwards)
    assert np.array_equal(back, rows)


@pytest.mark.parametrize("count", [1, AHEAD + 1])
def test_few_rows_that_are_converted(count):
    rows = np.arange(3 * count, dtype=np.float32).reshape(count, 3)
    backwards = np.arange(count)[::-1].copy()
    for is_bfloat16 in (False, True):
        bits, back = np.zeros((count, 3), np.uint16), np.zeros_like(rows)
        narrow(rows, backwards, bits, ALL, is_bfloat16)
        widen(bits, ALL, back, backwards, is_bfloat16)
        assert np.array_equal(back, rows)
        assert bits[-1, 1] == (0x3F80 if is_bfloat16 else 0x3C00)
