"""Compiled loops of `windrow.caching.samplers`."""

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.random import GOLDEN
from windrow.comm.random_kernels import hash_id, mix64

__all__ = ["estimate_shared", "fingerprints", "mark_single_edges", "transpose"]

_GOLDEN = np.uint64(GOLDEN)
_32 = np.uint64(32)
_LOW_HALF = np.uint64(0xFFFFFFFF)
_WINDOW = 64
"""Entries of a list that are searched: the lists of two hubs would take long."""


@numba.njit(cache=True, nogil=True)
def fingerprints(
    indptr: npt.NDArray[np.int64], indices: npt.NDArray[np.integer]
) -> tuple[np.uint64, np.uint64]:
    """Sum the hashes of all edges as they are, and turned round: equal where the graph is undirected.

    Args:
        indptr: int64 [N + 1].
        indices: int32 or int64 [E].

    Returns:
        Both sums, modulo 2**64.
    """
    forward = np.uint64(0)
    backward = np.uint64(0)
    for vertex in range(len(indptr) - 1):
        mixed = mix64(np.uint64(vertex) + _GOLDEN)
        for edge in range(indptr[vertex], indptr[vertex + 1]):
            other = np.uint64(indices[edge])
            forward += mix64(mixed ^ other)
            backward += mix64(mix64(other + _GOLDEN) ^ np.uint64(vertex))
    return forward, backward


@numba.njit(cache=True, nogil=True)
def transpose(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.integer],
    out_indptr: npt.NDArray[np.int64],
    out_indices: npt.NDArray[np.integer],
) -> None:
    """List, for each vertex, in whose lists it stands.

    Args:
        indptr: int64 [N + 1].
        indices: int32 or int64 [E].
        out_indptr: int64 [N + 1] of zeros, receives where each vertex's new list starts.
        out_indices: [E], receives the new lists, ascending.
    """
    num_vertices = len(indptr) - 1
    for edge in range(len(indices)):
        out_indptr[indices[edge] + 1] += 1
    for vertex in range(num_vertices):
        out_indptr[vertex + 1] += out_indptr[vertex]
    for vertex in range(num_vertices):
        for edge in range(indptr[vertex], indptr[vertex + 1]):
            other = indices[edge]
            out_indices[out_indptr[other]] = vertex
            out_indptr[other] += 1
    # Filling has moved every start to the next one's.
    for vertex in range(num_vertices, 0, -1):
        out_indptr[vertex] = out_indptr[vertex - 1]
    out_indptr[0] = 0


@numba.njit(cache=True, nogil=True)
def mark_single_edges(
    first: int,
    last: int,
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.integer],
    out_indptr: npt.NDArray[np.int64],
    out_indices: npt.NDArray[np.integer],
    single: npt.NDArray[np.bool_],
) -> None:
    """Note which of the vertices that list a vertex are not listed by it: nothing comes back from it to them.

    Args:
        first: vertex to begin with.
        last: vertex to stop before.
        indptr: int64 [N + 1], the lists.
        indices: int32 or int64 [E].
        out_indptr: int64 [N + 1], in whose lists each vertex stands.
        out_indices: int32 or int64 [E].
        single: bool [E], beside `out_indices`; written.
    """
    listed_by = np.full(len(indptr) - 1, -1, np.int64)
    for vertex in range(first, last):
        for edge in range(indptr[vertex], indptr[vertex + 1]):
            listed_by[indices[edge]] = vertex
        for edge in range(out_indptr[vertex], out_indptr[vertex + 1]):
            single[edge] = listed_by[out_indices[edge]] != vertex


@numba.njit(cache=True, nogil=True)
def estimate_shared(
    first: int,
    last: int,
    num_draws: int,
    key: np.uint64,
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.integer],
    out_indptr: npt.NDArray[np.int64],
    out_indices: npt.NDArray[np.integer],
    shared: npt.NDArray[np.float32],
) -> None:
    """Estimate how often who lists a vertex also lists one of those that it lists.

    Args:
        first: vertex to begin with.
        last: vertex to stop before.
        num_draws: pairs to draw for each vertex.
        key: of the draws; those of a vertex depend on it and the vertex alone.
        indptr: int64 [N + 1], the lists.
        indices: int32 or int64 [E].
        out_indptr: int64 [N + 1], in whose lists each vertex stands.
        out_indices: int32 or int64 [E].
        shared: float32 [N], written from `first` to `last`: share of the pairs of different vertices, one that lists
            this one and one that it lists, where the first lists the second.
    """
    for vertex in range(first, last):
        degree = indptr[vertex + 1] - indptr[vertex]
        listed = out_indptr[vertex + 1] - out_indptr[vertex]
        shared[vertex] = 0
        if degree == 0 or listed == 0:
            continue
        word = hash_id(key, np.uint64(vertex))
        pairs = 0
        found = 0.0
        for _ in range(num_draws):
            word += _GOLDEN
            draw = mix64(word)
            target = indices[indptr[vertex] + np.int64(((draw >> _32) * np.uint64(degree)) >> _32)]
            source = out_indices[
                out_indptr[vertex] + np.int64(((draw & _LOW_HALF) * np.uint64(listed)) >> _32)
            ]
            if target == source:
                continue
            if source == vertex:
                continue
            if target == vertex:
                continue
            pairs += 1
            # Whichever list is shorter.
            if indptr[source + 1] - indptr[source] <= out_indptr[target + 1] - out_indptr[target]:
                found += _expect_hit(indices, indptr[source], indptr[source + 1], target, draw)
            else:
                found += _expect_hit(out_indices, out_indptr[target], out_indptr[target + 1], source, draw)
        if pairs:
            shared[vertex] = min(1.0, found / pairs)


@numba.njit(cache=True, nogil=True)
def _expect_hit(
    values: npt.NDArray[np.integer], start: int, stop: int, wanted: int, draw: np.uint64
) -> float:
    """Whether a value is in a list; of a long list a window is searched, and a hit weighs as much more."""
    length = stop - start
    offset = np.int64(0)
    if length > _WINDOW:
        offset = np.int64(mix64(draw) % np.uint64(length))
    for step in range(min(length, _WINDOW)):
        position = offset + step
        if position >= length:
            position -= length
        if values[start + position] == wanted:
            return max(1.0, length / _WINDOW)
    return 0.0
