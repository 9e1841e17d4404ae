"""The compiled dropout against the law, number by number."""

import numpy as np
import pytest

from windrow.comm.random import GOLDEN, hash_ids, mix64
from windrow.training.dropout_kernels import drop_columns

KEY = 0xFEDCBA9876543210


@pytest.mark.parametrize("lowest", [-np.inf, 0, 7])
@pytest.mark.parametrize("columns", [1, 3, 4, 7, 16])
def test_keeps_what_the_law_says(columns: int, lowest: float) -> None:
    row_ids = np.array([5, 0, 2**40, 7], dtype=np.int64)
    x = np.arange(-columns, 3 * columns, dtype=np.float32).reshape(4, columns)
    out = np.empty_like(x)
    threshold = 20_000
    drop_columns(x, row_ids, np.uint64(KEY), np.uint16(threshold), np.float32(2), np.float32(lowest), out)
    row_keys = hash_ids(KEY, row_ids)
    for row in range(4):
        for column in range(columns):
            word = mix64(int(row_keys[row]) ^ mix64(column // 4 + GOLDEN))
            kept = (word >> 16 * (column % 4)) & 0xFFFF >= threshold
            assert out[row, column] == (2 * max(x[row, column], lowest) if kept else 0)
