"""Arithmetic of multi-constraint balance for compiled code, and the loop of streaming partitioning that keeps it.

Vertex v weighs ``vertex_weights[v, c]`` in constraint c, part p holds ``part_weights[p, c]`` and may hold
``limits[c]``. The excess of a part is the sum over constraints of ``max(0, part_weights - limits) / limits``.
"""

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["excess_change", "fits", "stream_once", "total_excess"]

Ints = npt.NDArray[np.int32]
Weights = npt.NDArray[np.integer]
Longs = npt.NDArray[np.int64]


@numba.njit(cache=True)
def fits(vertex_weights: Weights, part_weights: Longs, limits: Longs, vertex: int, part: int) -> bool:
    """Whether a part with one more vertex stays within its limits in every constraint that the vertex weighs in."""
    for constraint in range(len(limits)):
        weight = vertex_weights[vertex, constraint]
        if weight > 0 and part_weights[part, constraint] + weight > limits[constraint]:
            return False
    return True


@numba.njit(cache=True)
def total_excess(part_weights: Longs, limits: Longs) -> float:
    """Sum of all parts' excess, as a share of one part's limit: 0 when every part is within every limit."""
    excess = 0.0
    for part in range(part_weights.shape[0]):
        for constraint in range(len(limits)):
            excess += max(0, part_weights[part, constraint] - limits[constraint]) / limits[constraint]
    return excess


@numba.njit(cache=True)
def excess_change(
    vertex_weights: Weights, part_weights: Longs, limits: Longs, vertex: int, source: int, target: int
) -> float:
    """How much the total excess would change if a vertex moved: below 0 when balance would improve. Cost O(C)."""
    change = 0.0
    for constraint in range(len(limits)):
        weight = vertex_weights[vertex, constraint]
        if weight > 0:
            limit = limits[constraint]
            over_source = part_weights[source, constraint] - limit
            over_target = part_weights[target, constraint] - limit
            before = max(0, over_source) + max(0, over_target)
            after = max(0, over_source - weight) + max(0, over_target + weight)
            change += (after - before) / limit
    return change


@numba.njit(cache=True)
def stream_once(
    indptr: Longs, indices: npt.NDArray[np.integer], vertex_weights: Weights, assignment: Ints,
    part_weights: Longs, means: npt.NDArray[np.float64], limits: Longs, crowding_cost: float,
    first: int, start: int, stop: int,
) -> None:  # fmt: skip
    """Place vertices start..stop - 1 in turn; those placed before (-1: not yet) are first taken out of their part.

    Lists and weights are of vertices `first`, `first` + 1, ..., which start and stop count from; neighbours, and
    `assignment` int32 [N], which is changed, of the whole graph. `part_weights` [P, C] is kept true, below 0 where more
    is taken out than there was; `means` [C] is the mean weight of a part, and
    `crowding_cost` the neighbours that a part of mean load must have more of to draw level with an empty part.
    Cost O(edges read + (stop - start) P C).
    """
    num_parts, num_constraints = part_weights.shape
    neighbours = np.zeros(num_parts, np.int64)
    for vertex in range(start, stop):
        old = assignment[first + vertex]
        if old >= 0:
            for constraint in range(num_constraints):
                part_weights[old, constraint] -= vertex_weights[vertex, constraint]
        neighbours[:] = 0
        for edge in range(indptr[vertex], indptr[vertex + 1]):
            part = assignment[indices[edge]]
            if part >= 0 and indices[edge] != first + vertex:
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
            score = neighbours[part] - crowding_cost * np.sqrt(max(load, 0.0) / max(weighed, 1))
            if best < 0 or score > best_score:
                best, best_score = part, score
        if best < 0:
            best = _least_excess(vertex_weights, part_weights, limits, vertex)
        assignment[first + vertex] = best
        for constraint in range(num_constraints):
            part_weights[best, constraint] += vertex_weights[vertex, constraint]


@numba.njit(cache=True)
def _least_excess(vertex_weights: Weights, part_weights: Longs, limits: Longs, vertex: int) -> int:
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
