"""Compiled loops of embedding tables: rows of bags summed, their gradients added up, and first values.

Bag b of a lookup holds ``values[offsets[b] : offsets[b + 1]]``; ``weights`` is empty where every value weighs 1. Row
numbers are not checked.
"""

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.inline_kernels import hash_id, mix64, prefetch
from windrow.comm.random import GOLDEN

__all__ = ["add_to_rows", "fill_uniform", "sum_rows"]

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.integer]
Offsets = npt.NDArray[np.int64]

AHEAD = 8
"""Rows between asking for one and reading it."""

FLOATS_IN_A_CACHE_LINE = 16


@numba.njit(nogil=True, cache=True)
def sum_rows(table: Floats, values: Rows, offsets: Offsets, weights: Floats, pooled: Floats, first_column: int) -> None:
    """Write the weighted sum of each bag's rows into ``pooled[:, first_column:]``, as many columns as rows have."""
    dim = table.shape[1]
    flat = table.reshape(-1)
    last = len(values) - 1
    for bag in range(len(offsets) - 1):
        # Slices of one row let the compiler use vector instructions: their indices cannot be negative.
        total = pooled[bag, first_column : first_column + dim]
        total[:] = 0
        for place in range(offsets[bag], offsets[bag + 1]):
            coming = np.int64(values[min(place + AHEAD, last)]) * dim
            for column in range(0, dim, FLOATS_IN_A_CACHE_LINE):
                prefetch(flat, coming + column)
            weight = weights[place] if len(weights) else np.float32(1)
            row = table[values[place]]
            for column in range(dim):
                total[column] += weight * row[column]


@numba.njit(nogil=True, cache=True)
def add_to_rows(
    gradient: Floats, values: Rows, offsets: Offsets, weights: Floats, pooled_gradient: Floats, first_column: int
) -> None:
    """The transpose of `sum_rows`: add each bag's gradient, weighted, to the gradients of its rows."""
    dim = gradient.shape[1]
    for bag in range(len(offsets) - 1):
        arriving = pooled_gradient[bag, first_column : first_column + dim]
        for place in range(offsets[bag], offsets[bag + 1]):
            weight = weights[place] if len(weights) else np.float32(1)
            row = gradient[values[place]]
            for column in range(dim):
                row[column] += weight * arriving[column]


_GOLDEN = np.uint64(GOLDEN)
_ONE, _BITS_KEPT, _BITS_HALF = np.uint64(1), np.uint64(8), np.uint64(32)
_STEP = np.float32(2.0**-23)


@numba.njit(nogil=True, cache=True)
def fill_uniform(values: Floats, key: np.uint64, first_row: int, first_column: int, scale: np.float32) -> None:
    """Fill a shard of a table with uniform numbers, each a function of key, row and column alone.

    Args:
        values: [rows, columns] float32, written.
        key: of seed and table.
        first_row: of the shard in the whole table.
        first_column: of the shard in the whole table.
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
