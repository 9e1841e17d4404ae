"""Compiled first values of embedding tables; see `windrow.recsys.tables.initialise`."""

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.random import GOLDEN
from windrow.comm.random_kernels import hash_id, mix64

__all__ = ["fill_uniform"]

_GOLDEN = np.uint64(GOLDEN)
_ONE, _BITS_KEPT, _BITS_HALF = np.uint64(1), np.uint64(8), np.uint64(32)
_STEP = np.float32(2.0**-23)


@numba.njit(nogil=True, cache=True)
def fill_uniform(
    values: npt.NDArray[np.float32], key: np.uint64, first_row: int, first_column: int, scale: np.float32
) -> None:
    """Fill a rectangle of a table with uniform numbers, each a function of key, row and column alone.

    Args:
        values: [rows, columns] float32, written.
        key: of seed and table.
        first_row: of the rectangle in the whole table.
        first_column: of the rectangle in the whole table.
        scale: numbers are in [-scale, scale), multiples of scale / 2**23.
    """
    rows, columns = values.shape
    for row in range(rows):
        # SplitMix64 from a start of the row's own: one number of 64 bits for two neighbouring columns.
        start = hash_id(key, np.uint64(first_row + row))
        for column in range(columns):
            place = np.uint64(first_column + column)
            number = mix64(start + (place >> _ONE) * _GOLDEN) >> ((place & _ONE) * _BITS_HALF)
            bits = np.uint32(number) >> np.uint32(_BITS_KEPT)
            values[row, column] = (np.float32(bits) * _STEP - np.float32(1)) * scale
