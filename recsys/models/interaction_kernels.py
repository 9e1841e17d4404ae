"""Dot products of every two vectors of a sample, and their gradient, one sample at a time in the first-level cache."""

from typing import Any

import numba as nb
import numpy as np

__all__ = ["multiply_pairs", "multiply_pairs_backward"]

Array = np.ndarray[Any, np.dtype[Any]]


@nb.njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def multiply_pairs(vectors: Array, dots: Array) -> None:
    """Multiply each vector with those before it.

    Args:
        vectors: [B, F, d] float32.
        dots: [B, F (F - 1) / 2] to be filled: ba, ca, cb, da, db, dc.
    """
    samples, count, dim = vectors.shape
    for sample in range(samples):
        own = vectors[sample]
        pair = 0
        for row in range(1, count):
            for column in range(row):
                total = np.float32(0.0)
                for place in range(dim):
                    total += own[row, place] * own[column, place]
                dots[sample, pair] = total
                pair += 1


@nb.njit(nogil=True, cache=True, fastmath={"contract", "reassoc"})
def multiply_pairs_backward(vectors: Array, upstream: Array, gradient: Array) -> None:
    """Add up what each vector's dot products say about it.

    Args:
        vectors: [B, F, d] float32.
        upstream: [B, F (F - 1) / 2] gradient of the dot products.
        gradient: [B, F, d] to be filled.
    """
    samples, count, dim = vectors.shape
    for sample in range(samples):
        own = vectors[sample]
        result = gradient[sample]
        result[:] = np.float32(0.0)
        pair = 0
        for row in range(1, count):
            for column in range(row):
                value = upstream[sample, pair]
                pair += 1
                # Two loops: one that writes both rows is slower, and so is blocking by rows or columns.
                for place in range(dim):
                    result[row, place] += value * own[column, place]
                for place in range(dim):
                    result[column, place] += value * own[row, place]
