"""Copies of rows and of lists of rows to the samples that share them, and the sums on the way back.

Samples are taken in order, so gradients of duplicates are added up in one order, whatever runs beside.
"""

from typing import Any

import numba
import numpy as np

__all__ = ["copy_columns", "copy_lists", "sum_columns", "sum_lists"]

Array = np.ndarray[Any, np.dtype[Any]]

_FROM, _TO, _WIDTH = 0, 1, 2


@numba.njit(nogil=True, cache=True)
def copy_columns(rows: Array, inverse: Array, runs: Array, out: Array) -> None:
    """Copy runs of columns of each sample's row into the sample's row of the result.

    Args:
        rows: [U, width] floating, contiguous.
        inverse: [B] int64 row of each sample, not checked.
        runs: [k, 3] int64: first column in `rows`, first column in `out`, number of columns.
        out: [B, columns] to be filled there, contiguous.
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
    """The transpose of `copy_columns`: add each sample's columns to those of its row.

    Args:
        upstream: [B, columns] floating, contiguous.
        inverse: [B] int64 row of each sample, not checked.
        runs: as in `copy_columns`.
        gradient: [U, width] zeros, to be added to; contiguous.
    """
    for sample in range(len(inverse)):
        row = gradient[inverse[sample]]
        for run in range(len(runs)):
            width = runs[run, _WIDTH]
            target = row[runs[run, _FROM] : runs[run, _FROM] + width]
            source = upstream[sample, runs[run, _TO] : runs[run, _TO] + width]
            for column in range(width):
                target[column] += source[column]


@numba.njit(nogil=True, cache=True)
def copy_lists(items: Array, offsets: Array, inverse: Array, out: Array) -> None:
    """Write the list of each sample behind that of the sample before.

    Args:
        items: [n, d] floating, list after list, contiguous.
        offsets: [U + 1] int64 where lists begin.
        inverse: [B] int64 list of each sample, not checked.
        out: [m, d] to be filled, m the sum of the samples' lengths; contiguous.
    """
    width = items.shape[1]
    source, target = items.reshape(-1), out.reshape(-1)
    place = 0
    for sample in range(len(inverse)):
        first = offsets[inverse[sample]] * width
        size = offsets[inverse[sample] + 1] * width - first
        own = source[first : first + size]
        copy = target[place : place + size]
        for index in range(size):
            copy[index] = own[index]
        place += size


@numba.njit(nogil=True, cache=True)
def sum_lists(upstream: Array, offsets: Array, inverse: Array, gradient: Array) -> None:
    """The transpose of `copy_lists`: add each sample's items to those of its list.

    Args:
        upstream: [m, d] floating, contiguous.
        offsets: [U + 1] int64 where lists begin.
        inverse: [B] int64 list of each sample, not checked.
        gradient: [n, d] zeros, to be added to; contiguous.
    """
    width = gradient.shape[1]
    source, target = upstream.reshape(-1), gradient.reshape(-1)
    place = 0
    for sample in range(len(inverse)):
        first = offsets[inverse[sample]] * width
        size = offsets[inverse[sample] + 1] * width - first
        arriving = source[place : place + size]
        total = target[first : first + size]
        for index in range(size):
            total[index] += arriving[index]
        place += size
