"""The loops behind `windrow.recsys.tables.pooling`.

Bag b of a lookup holds ``values[offsets[b] : offsets[b + 1]]``; ``weights`` is empty where every value weighs 1. Row
numbers are not checked.
"""

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.prefetch_kernels import prefetch

__all__ = ["add_to_rows", "dot_with_rows", "sum_rows"]

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.integer]
Offsets = npt.NDArray[np.int64]

AHEAD = 8
"""Rows between asking for one and reading it."""

FLOATS_IN_A_CACHE_LINE = 16


@numba.njit(nogil=True, cache=True)
def sum_rows(
    table: Floats, values: Rows, offsets: Offsets, weights: Floats, pooled: Floats, first_column: int
) -> None:
    """Write the weighted sum of each bag's rows into ``pooled[:, first_column:]``, as many columns as rows have."""
    dim = table.shape[1]
    flat = table.reshape(-1)
    last = len(values) - 1
    for bag in range(len(offsets) - 1):
        for column in range(dim):
            pooled[bag, first_column + column] = 0
        for place in range(offsets[bag], offsets[bag + 1]):
            coming = np.int64(values[min(place + AHEAD, last)]) * dim
            for column in range(0, dim, FLOATS_IN_A_CACHE_LINE):
                prefetch(flat, coming + column)
            weight = weights[place] if len(weights) else np.float32(1)
            row = values[place]
            for column in range(dim):
                pooled[bag, first_column + column] += weight * table[row, column]


@numba.njit(nogil=True, cache=True)
def add_to_rows(
    gradient: Floats,
    values: Rows,
    offsets: Offsets,
    weights: Floats,
    pooled_gradient: Floats,
    first_column: int,
) -> None:
    """The transpose of `sum_rows`: add each bag's gradient, weighted, to the gradients of its rows."""
    dim = gradient.shape[1]
    for bag in range(len(offsets) - 1):
        for place in range(offsets[bag], offsets[bag + 1]):
            weight = weights[place] if len(weights) else np.float32(1)
            row = values[place]
            for column in range(dim):
                gradient[row, column] += weight * pooled_gradient[bag, first_column + column]


@numba.njit(nogil=True, cache=True)
def dot_with_rows(
    table: Floats,
    values: Rows,
    offsets: Offsets,
    weights_gradient: Floats,
    pooled_gradient: Floats,
    first_column: int,
) -> None:
    """Write the gradient of each value's weight: its row times the gradient of its bag."""
    dim = table.shape[1]
    for bag in range(len(offsets) - 1):
        for place in range(offsets[bag], offsets[bag + 1]):
            row = values[place]
            total = np.float32(0)
            for column in range(dim):
                total += table[row, column] * pooled_gradient[bag, first_column + column]
            weights_gradient[place] = total
