"""Compiled loops of `windrow.gnn.message_passing` for arrays in CPU memory."""

import numba
import numpy as np
from numpy.typing import NDArray

from windrow.comm.inline_kernels import prefetch
from windrow.comm.rows_kernels import AHEAD, CACHE_LINE_BYTES

__all__ = [
    "add_sums",
    "divide_by_sums",
    "edge_dot",
    "join_means",
    "segment_softmax_backward",
    "spread_means",
    "subtract_largest",
]

IntegerArray = NDArray[np.int32] | NDArray[np.int64]
FloatArray = NDArray[np.float32] | NDArray[np.float64]


@numba.njit(cache=True, nogil=True)
def join_means(
    indptr: NDArray[np.int64], indices: IntegerArray, rows: FloatArray, joined: FloatArray, first: int, last: int
) -> None:
    """Write the row of each destination from `first` to before `last`, and beside it the mean over its sources."""
    width, line, end = rows.shape[1], CACHE_LINE_BYTES // rows.itemsize, len(indices) - 1
    flat, one = rows.reshape(-1), rows.dtype.type(1)
    for destination in range(first, last):
        # Slices of one row let the compiler use vector instructions: their indices cannot be negative.
        own, mean, row = joined[destination, :width], joined[destination, width:], rows[destination]
        for column in range(width):
            own[column] = row[column]
            mean[column] = 0
        start, stop = indptr[destination], indptr[destination + 1]
        for edge in range(start, stop):
            coming = np.int64(indices[min(edge + AHEAD, end)]) * width
            for column in range(0, width, line):
                prefetch(flat, coming + column)
            row = rows[indices[edge]]
            for column in range(width):
                mean[column] += row[column]
        share = one / rows.dtype.type(max(1, stop - start))
        for column in range(width):
            mean[column] *= share


@numba.njit(cache=True, nogil=True)
def spread_means(
    indptr: NDArray[np.int64],
    by_source: NDArray[np.int64],
    destinations: IntegerArray,
    joined: FloatArray,
    rows: FloatArray,
    first: int,
    last: int,
) -> None:
    """The transpose of `join_means`: the gradient of each source's row, by edges grouped by source."""
    width, line, end = rows.shape[1], CACHE_LINE_BYTES // rows.itemsize, len(destinations) - 1
    flat, one = joined.reshape(-1), rows.dtype.type(1)
    for source in range(first, last):
        total = rows[source]
        if source < len(joined):
            own = joined[source, :width]
            for column in range(width):
                total[column] = own[column]
        else:
            total[:] = 0
        for edge in range(by_source[source], by_source[source + 1]):
            coming = (2 * np.int64(destinations[min(edge + AHEAD, end)]) + 1) * width
            for column in range(0, width, line):
                prefetch(flat, coming + column)
            destination = destinations[edge]
            share = one / rows.dtype.type(indptr[destination + 1] - indptr[destination])
            mean = joined[destination, width:]
            for column in range(width):
                total[column] += share * mean[column]


@numba.njit(cache=True, nogil=True)
def add_sums(
    indptr: NDArray[np.int64],
    indices: IntegerArray,
    weights: FloatArray,
    rows: FloatArray,
    out: FloatArray,
    places: NDArray[np.int64],
    first: int,
    last: int,
) -> None:
    """Add the rows of each bag from `first` to before `last`, times their weights, if any, to its row of `out`."""
    width, line, end = rows.shape[1], CACHE_LINE_BYTES // rows.itemsize, len(indices) - 1
    flat, weight = rows.reshape(-1), rows.dtype.type(1)
    for bag in range(first, last):
        total = out[places[bag]]
        for entry in range(indptr[bag], indptr[bag + 1]):
            coming = np.int64(indices[min(entry + AHEAD, end)]) * width
            for column in range(0, width, line):
                prefetch(flat, coming + column)
            if len(weights):
                weight = weights[entry]
            row = rows[indices[entry]]
            for column in range(width):
                total[column] += weight * row[column]


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def edge_dot(
    indptr: NDArray[np.int64],
    indices: IntegerArray,
    sources: FloatArray,
    destinations: FloatArray,
    products: FloatArray,
) -> None:
    """Dot product of the two ends [vertices, heads, features] of every edge, head by head, into [edges, heads]."""
    for destination in range(indptr.shape[0] - 1):
        for edge in range(indptr[destination], indptr[destination + 1]):
            for head in range(sources.shape[1]):
                source_row = sources[indices[edge], head]
                destination_row = destinations[destination, head]
                total = source_row[0] * destination_row[0]
                for column in range(1, source_row.shape[0]):
                    total += source_row[column] * destination_row[column]
                products[edge, head] = total


@numba.njit(cache=True, nogil=True)
def subtract_largest(indptr: NDArray[np.int64], scores: FloatArray, out: FloatArray) -> None:
    """Scores [edges, heads] less the largest of their destination, which leaves none above 0, into `out`."""
    heads = scores.shape[1]
    largest = np.empty(heads, scores.dtype)
    for destination in range(indptr.shape[0] - 1):
        start, stop = indptr[destination], indptr[destination + 1]
        largest[:] = -np.inf
        for edge in range(start, stop):
            for head in range(heads):
                largest[head] = max(largest[head], scores[edge, head])
        for edge in range(start, stop):
            for head in range(heads):
                out[edge, head] = scores[edge, head] - largest[head]


@numba.njit(cache=True, nogil=True)
def divide_by_sums(indptr: NDArray[np.int64], weights: FloatArray) -> None:
    """Divide `weights` [edges, heads] by their sum over the edges of each destination, in place."""
    heads = weights.shape[1]
    total = np.empty(heads, weights.dtype)
    for destination in range(indptr.shape[0] - 1):
        start, stop = indptr[destination], indptr[destination + 1]
        total[:] = 0
        for edge in range(start, stop):
            for head in range(heads):
                total[head] += weights[edge, head]
        for edge in range(start, stop):
            for head in range(heads):
                weights[edge, head] /= total[head]


@numba.njit(cache=True, nogil=True)
def segment_softmax_backward(
    indptr: NDArray[np.int64], weights: FloatArray, upstream: FloatArray, gradient: FloatArray
) -> None:
    """Gradient of a softmax over the edges of each destination, into `gradient`.

    It is weights * (upstream - sum of weights * upstream).
    """
    for destination in range(indptr.shape[0] - 1):
        start, stop = indptr[destination], indptr[destination + 1]
        for head in range(weights.shape[1]):
            total = weights.dtype.type(0)
            for edge in range(start, stop):
                total += weights[edge, head] * upstream[edge, head]
            for edge in range(start, stop):
                gradient[edge, head] = weights[edge, head] * (upstream[edge, head] - total)
