"""Copies of rows to the samples that share them, and the sums on the way back.

Samples are taken in order, so gradients of duplicates are added up in one order, whatever runs beside.
"""

from typing import Any

import numba
import numpy as np

__all__ = ["copy_columns", "sum_columns"]

Array = np.ndarray[Any, np.dtype[Any]]

_FROM, _TO, _WIDTH = 0, 1, 2


@numba.njit(nogil=True, cache=True)
def copy_columns(rows: Array, inverse: Array, runs: Array, out: Array) -> None:
    """Copy runs of columns of each sample's row [U, width] into the sample's row of `out` [B, columns].

    `inverse` [B] is not checked; `runs` [k, 3] int64: first column of the row, of `out`, number of columns.
    """
    for sample in range(len(inverse)):
        row = rows[inverse[sample]]
        for run in range(len(runs)):
            width = runs[run, _WIDTH]
            # Slices let the compiler use vector instructions: their indices cannot be negative.
            source = row[runs[run, _FROM] : runs[run, _FROM] + width]
            target = out[sample, runs[run, _TO] : runs[run, _TO] + width]
            for column in range(width):
                target[column] = source[column]


@numba.njit(nogil=True, cache=True)
def sum_columns(upstream: Array, inverse: Array, runs: Array, gradient: Array) -> None:
    """The transpose of `copy_columns`: add each sample's columns to those of its row of `gradient`, zeros."""
    for sample in range(len(inverse)):
        row = gradient[inverse[sample]]
        for run in range(len(runs)):
            width = runs[run, _WIDTH]
            target = row[runs[run, _FROM] : runs[run, _FROM] + width]
            source = upstream[sample, runs[run, _TO] : runs[run, _TO] + width]
            for column in range(width):
                target[column] += source[column]
