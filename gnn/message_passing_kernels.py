"""Compiled loops of `windrow.gnn.message_passing` for arrays in CPU memory."""

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["edge_dot", "segment_softmax", "segment_softmax_backward"]

IntegerArray = NDArray[np.int32] | NDArray[np.int64]
FloatArray = NDArray[np.float32] | NDArray[np.float64]


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
def segment_softmax(indptr: NDArray[np.int64], scores: FloatArray, weights: FloatArray) -> None:
    """Softmax of `scores` [edges, heads] over the edges of each destination, into `weights`."""
    for destination in range(indptr.shape[0] - 1):
        start, stop = indptr[destination], indptr[destination + 1]
        for head in range(scores.shape[1]):
            if start == stop:
                continue
            largest = scores[start, head]
            for edge in range(start + 1, stop):
                largest = max(largest, scores[edge, head])
            total = largest - largest
            for edge in range(start, stop):
                weights[edge, head] = np.exp(scores[edge, head] - largest)
                total += weights[edge, head]
            for edge in range(start, stop):
                weights[edge, head] /= total


@numba.njit(cache=True, nogil=True)
def segment_softmax_backward(
    indptr: NDArray[np.int64], weights: FloatArray, upstream: FloatArray, gradient: FloatArray
) -> None:
    """Gradient of `segment_softmax`: weights * (upstream - sum of weights * upstream), into `gradient`."""
    for destination in range(indptr.shape[0] - 1):
        start, stop = indptr[destination], indptr[destination + 1]
        for head in range(weights.shape[1]):
            total = weights.dtype.type(0)
            for edge in range(start, stop):
                total += weights[edge, head] * upstream[edge, head]
            for edge in range(start, stop):
                gradient[edge, head] = weights[edge, head] * (upstream[edge, head] - total)
