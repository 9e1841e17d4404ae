"""Compiled part of `windrow.partition.streaming`."""

import numba
import numpy as np
import numpy.typing as npt

from windrow.partition.balance_kernels import excess_change, fits

__all__ = ["stream_once"]

Ids = npt.NDArray[np.int32]
Sums = npt.NDArray[np.int64]


@numba.njit(cache=True)
def stream_once(
    indptr: Sums, indices: npt.NDArray[np.integer], vertex_weights: Ids, assignment: Ids, part_weights: Sums,
    means: npt.NDArray[np.float64], limits: Sums, crowding_cost: float, start: int, stop: int,
) -> None:  # fmt: skip
    """Place vertices one after another; those placed before (-1: not yet) are first taken out of their part.

    Args:
        indptr: int64 [N + 1], CSC.
        indices: int32 or int64 [E].
        vertex_weights: int32 [N, C].
        assignment: int32 [N], changed in [start, stop).
        part_weights: int64 [P, C], kept true.
        means: float64 [C], mean weight of a part.
        limits: int64 [C].
        crowding_cost: neighbours that a part of mean load must have more of to draw level with an empty part.
        start: first vertex.
        stop: one past the last vertex. Cost O(edges read + (stop - start) P C).
    """
    num_parts, num_constraints = part_weights.shape
    neighbours = np.zeros(num_parts, np.int64)
    for vertex in range(start, stop):
        old = assignment[vertex]
        if old >= 0:
            for constraint in range(num_constraints):
                part_weights[old, constraint] -= vertex_weights[vertex, constraint]
        neighbours[:] = 0
        for edge in range(indptr[vertex], indptr[vertex + 1]):
            part = assignment[indices[edge]]
            if part >= 0 and indices[edge] != vertex:
                neighbours[part] += 1
        best, best_score = -1, 0.0
        for part in range(num_parts):
            if not fits(vertex_weights, part_weights, limits, vertex, part):
                continue
            load, weighed = 0.0, 0
            for constraint in range(num_constraints):
                if vertex_weights[vertex, constraint] > 0:
                    load += part_weights[part, constraint] / means[constraint]
                    weighed += 1
            score = neighbours[part] - crowding_cost * np.sqrt(load / max(weighed, 1))
            if best < 0 or score > best_score:
                best, best_score = part, score
        if best < 0:
            best = _least_excess(vertex_weights, part_weights, limits, vertex)
        assignment[vertex] = best
        for constraint in range(num_constraints):
            part_weights[best, constraint] += vertex_weights[vertex, constraint]


@numba.njit(cache=True)
def _least_excess(vertex_weights: Ids, part_weights: Sums, limits: Sums, vertex: int) -> int:
    """The part whose limits suffer least: staying in part 0 costs `stay`, moving on to p changes that by the rest."""
    best, best_change = 0, 0.0
    for constraint in range(len(limits)):
        part_weights[0, constraint] += vertex_weights[vertex, constraint]
    for part in range(1, part_weights.shape[0]):
        change = excess_change(vertex_weights, part_weights, limits, vertex, 0, part)
        if change < best_change:
            best, best_change = part, change
    for constraint in range(len(limits)):
        part_weights[0, constraint] -= vertex_weights[vertex, constraint]
    return best
