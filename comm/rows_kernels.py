"""The loops behind `windrow.comm.rows`."""

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.prefetch_kernels import prefetch

__all__ = ["Words", "gather", "scatter"]

Words = npt.NDArray[np.integer]
Positions = npt.NDArray[np.int64]

AHEAD = 8
"""Rows between asking for one and copying it."""

CACHE_LINE_BYTES = 64


@numba.njit(nogil=True, cache=True)
def gather(rows: Words, positions: Positions, out: Words) -> None:
    """Copy ``rows[positions[i]]`` to ``out[i]``; both are contiguous matrices of one type."""
    count, width = out.shape
    line = CACHE_LINE_BYTES // rows.itemsize
    flat = rows.reshape(-1)
    for i in range(count):
        coming = positions[min(i + AHEAD, count - 1)] * width
        for column in range(0, width, line):
            prefetch(flat, coming + column)
        position = positions[i]
        for column in range(width):
            out[i, column] = rows[position, column]


@numba.njit(nogil=True, cache=True)
def scatter(rows: Words, positions: Positions, out: Words) -> None:
    """Copy ``rows[i]`` to ``out[positions[i]]``; both are contiguous matrices of one type."""
    count, width = rows.shape
    line = CACHE_LINE_BYTES // rows.itemsize
    flat = out.reshape(-1)
    for i in range(count):
        coming = positions[min(i + AHEAD, count - 1)] * width
        for column in range(0, width, line):
            prefetch(flat, coming + column)
        position = positions[i]
        for column in range(width):
            out[position, column] = rows[i, column]
