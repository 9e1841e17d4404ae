"""The compiled first values against plain integers."""

import numpy as np

from windrow.comm.random import GOLDEN, MASK, hash_ids, mix64
from windrow.recsys.tables.table_kernels import fill_uniform


def reference(key: int, row: int, column: int, scale: float) -> np.float32:
    start = int(hash_ids(key, np.array([row]))[0])
    number = mix64((start + (column // 2) * GOLDEN) & MASK)
    half = number >> 32 if column % 2 else number & 0xFFFFFFFF
    return (np.float32(half >> 8) * np.float32(2.0**-23) - np.float32(1)) * np.float32(scale)


def test_equals_plain_integers():
    values = np.empty((7, 9), dtype=np.float32)
    fill_uniform(values, np.uint64(123456789), 1000, 3, np.float32(0.25))
    for row in range(7):
        for column in range(9):
            assert values[row, column] == reference(123456789, 1000 + row, 3 + column, 0.25)


def test_writes_through_a_strided_view():
    table = np.zeros((6, 8), dtype=np.float32)
    fill_uniform(table[:, 2:6], np.uint64(1), 0, 0, np.float32(1))
    assert not table[:, :2].any()
    assert not table[:, 6:].any()
    assert table[:, 2:6].all()
