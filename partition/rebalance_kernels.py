"""Compiled rebalancing: moves vertices out of parts that are over a limit, at the least loss of cut."""

import numba
import numpy as np
import numpy.typing as npt

from windrow.partition.balance_kernels import excess_change
from windrow.partition.heap_kernels import push_or_update, remove
from windrow.partition.refine_kernels import move_vertex

__all__ = ["rebalance"]

Ids = npt.NDArray[np.int32]
Sums = npt.NDArray[np.int64]

_PRIORITY_SCALE = 1000.0
_LEAST_IMPROVEMENT = 1e-12


@numba.njit(cache=True)
def _is_over(part_weights: Sums, limits: Sums, part: int) -> bool:
    for constraint in range(len(limits)):
        if part_weights[part, constraint] > limits[constraint]:
            return True
    return False


@numba.njit(cache=True)
def _cheapest_relief(
    vertex_weights: Ids, assignment: Ids, connectivity: Ids, part_weights: Sums, limits: Sums, vertex: int
) -> tuple[int, np.int64]:
    """Part that takes the vertex with the least loss for each unit of excess removed, and the priority; or -1."""
    source = assignment[vertex]
    best, best_priority = -1, np.int64(0)
    for part in range(connectivity.shape[1]):
        if part == source:
            continue
        relief = -excess_change(vertex_weights, part_weights, limits, vertex, source, part)
        if relief <= _LEAST_IMPROVEMENT:
            continue
        gain = connectivity[vertex, part] - connectivity[vertex, source]
        rate = gain / relief if gain < 0 else gain * relief
        priority = np.int64(rate * _PRIORITY_SCALE)
        if best < 0 or priority > best_priority:
            best, best_priority = part, priority
    return best, best_priority


@numba.njit(cache=True)
def rebalance(
    indptr: Sums, indices: Ids, edge_weights: Ids, vertex_weights: Ids, assignment: Ids, connectivity: Ids,
    part_weights: Sums, part_sizes: Sums, limits: Sums, max_rounds: int,
) -> int:  # fmt: skip
    """Move vertices out of overweight parts until every limit holds or no single move helps.

    Every move lowers the total excess; the cut may rise. No part is emptied.

    Args:
        indptr: int64 [N + 1] of an undirected graph.
        indices: int32 [E].
        edge_weights: int32 [E].
        vertex_weights: int32 [N, C].
        assignment: int32 [N], changed.
        connectivity: int32 [N, P], kept true.
        part_weights: int64 [P, C], kept true.
        part_sizes: int64 [P], kept true.
        limits: int64 [C], each above 0.
        max_rounds: how often to look at all vertices again.

    Returns:
        Number of moves. Cost O(rounds * N P C + moves * (degree + log N)).
    """
    num_vertices = len(assignment)
    heap = np.empty(num_vertices, np.int32)
    position = np.full(num_vertices, -1, np.int32)
    priority = np.zeros(num_vertices, np.int64)
    moves = 0
    for _ in range(max_rounds):
        length, moves_before = 0, moves
        for vertex in range(num_vertices):
            if _is_over(part_weights, limits, assignment[vertex]):
                part, rate = _cheapest_relief(
                    vertex_weights, assignment, connectivity, part_weights, limits, vertex
                )
                if part >= 0:
                    length = push_or_update(heap, position, priority, length, vertex, rate)
        while length > 0:
            vertex = heap[0]
            source = assignment[vertex]
            part, rate = _cheapest_relief(
                vertex_weights, assignment, connectivity, part_weights, limits, vertex
            )
            if part >= 0 and rate < priority[vertex]:
                length = push_or_update(heap, position, priority, length, vertex, rate)
                continue
            length = remove(heap, position, priority, length, vertex)
            if part >= 0 and part_sizes[source] > 1:
                move_vertex(indptr, indices, edge_weights, vertex_weights, assignment, connectivity, part_weights,
                            part_sizes, vertex, part)  # fmt: skip
                moves += 1
        if moves == moves_before:
            break
    return moves
