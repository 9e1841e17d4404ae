"""Arithmetic of multi-constraint balance for compiled code.

Vertex v weighs ``vertex_weights[v, c]`` in constraint c, part p holds ``part_weights[p, c]`` and may hold
``limits[c]``. The excess of a part is the sum over constraints of ``max(0, part_weights - limits) / limits``.
"""

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["excess_change", "fits", "total_excess", "weigh_parts"]

Weights = npt.NDArray[np.int32]
Sums = npt.NDArray[np.int64]


@numba.njit(cache=True)
def weigh_parts(vertex_weights: Weights, assignment: npt.NDArray[np.int32], num_parts: int) -> Sums:
    """Sum the weights of each part.

    Args:
        vertex_weights: int32 [N, C].
        assignment: int32 [N]; -1 leaves a vertex out.
        num_parts: number of parts.

    Returns:
        int64 [num_parts, C]. Cost O(N C).
    """
    sums = np.zeros((num_parts, vertex_weights.shape[1]), np.int64)
    for vertex in range(len(assignment)):
        if assignment[vertex] >= 0:
            for constraint in range(vertex_weights.shape[1]):
                sums[assignment[vertex], constraint] += vertex_weights[vertex, constraint]
    return sums


@numba.njit(cache=True)
def fits(vertex_weights: Weights, part_weights: Sums, limits: Sums, vertex: int, part: int) -> bool:
    """Whether a part stays within its limits in every constraint that the vertex weighs in.

    Args:
        vertex_weights: int32 [N, C].
        part_weights: int64 [P, C].
        limits: int64 [C].
        vertex: the vertex that would come in.
        part: the part it would come into.

    Returns:
        True when it fits. Cost O(C).
    """
    for constraint in range(len(limits)):
        weight = vertex_weights[vertex, constraint]
        if weight > 0 and part_weights[part, constraint] + weight > limits[constraint]:
            return False
    return True


@numba.njit(cache=True)
def total_excess(part_weights: Sums, limits: Sums) -> float:
    """Sum of all parts' excess: 0 when every part is within every limit.

    Args:
        part_weights: int64 [P, C].
        limits: int64 [C], each above 0.

    Returns:
        The excess, as a share of one part's limit. Cost O(P C).
    """
    excess = 0.0
    for part in range(part_weights.shape[0]):
        for constraint in range(len(limits)):
            excess += max(0, part_weights[part, constraint] - limits[constraint]) / limits[constraint]
    return excess


@numba.njit(cache=True)
def excess_change(
    vertex_weights: Weights, part_weights: Sums, limits: Sums, vertex: int, source: int, target: int
) -> float:
    """How much the total excess would change if a vertex moved.

    Args:
        vertex_weights: int32 [N, C].
        part_weights: int64 [P, C].
        limits: int64 [C], each above 0.
        vertex: the vertex.
        source: its part.
        target: the part it would go to.

    Returns:
        Below 0 when balance would improve. Cost O(C).
    """
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
