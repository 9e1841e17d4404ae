"""Compiled coarsening: heavy-edge matching inside parts, and contraction of the matched pairs."""

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["contract", "match_inside_parts"]

Ids = npt.NDArray[np.int32]
Sums = npt.NDArray[np.int64]


@numba.njit(cache=True)
def match_inside_parts(
    indptr: Sums,
    indices: Ids,
    edge_weights: Ids,
    vertex_weights: Ids,
    assignment: Ids,
    heaviest: Sums,
    order: Sums,
) -> tuple[Ids, int]:
    """Pair each vertex with the free neighbour of the same part that it shares the heaviest edge with.

    Vertices that find no neighbour are paired two by two with another that shares a neighbour with them, so that
    stars shrink too.

    Args:
        indptr: int64 [N + 1] of an undirected graph.
        indices: int32 [E].
        edge_weights: int32 [E].
        vertex_weights: int32 [N, C].
        assignment: int32 [N]; only vertices of one part are paired.
        heaviest: int64 [C]: no pair weighs more than this in any constraint.
        order: int64 [N]: in which order vertices choose.

    Returns:
        int32 [N], each vertex's id in the coarse graph, and the number of coarse vertices. Cost O(N + E).
    """
    num_vertices = len(assignment)
    coarse = np.full(num_vertices, -1, np.int32)
    waiting = np.full(num_vertices, -1, np.int32)
    count = 0
    for vertex in order:
        if coarse[vertex] >= 0:
            continue
        best, best_weight = -1, 0
        for edge in range(indptr[vertex], indptr[vertex + 1]):
            neighbour = indices[edge]
            if (
                coarse[neighbour] < 0
                and edge_weights[edge] > best_weight
                and assignment[neighbour] == assignment[vertex]
                and _light_enough(vertex_weights, heaviest, vertex, neighbour)
            ):
                best, best_weight = neighbour, edge_weights[edge]
        if best >= 0:
            coarse[vertex], coarse[best] = count, count
            count += 1
    for vertex in order:
        if coarse[vertex] >= 0:
            continue
        for edge in range(indptr[vertex], indptr[vertex + 1]):
            hub = indices[edge]
            other = waiting[hub]
            if (
                other >= 0
                and coarse[other] < 0
                and assignment[other] == assignment[vertex]
                and _light_enough(vertex_weights, heaviest, vertex, other)
            ):
                coarse[vertex], coarse[other] = count, count
                count += 1
                waiting[hub] = -1
                break
            waiting[hub] = vertex
    for vertex in order:
        if coarse[vertex] < 0:
            coarse[vertex] = count
            count += 1
    return coarse, count


@numba.njit(cache=True)
def _light_enough(vertex_weights: Ids, heaviest: Sums, one: int, other: int) -> bool:
    for constraint in range(vertex_weights.shape[1]):
        if vertex_weights[one, constraint] + vertex_weights[other, constraint] > heaviest[constraint]:
            return False
    return True


@numba.njit(cache=True)
def contract(
    indptr: Sums, indices: Ids, edge_weights: Ids, coarse: Ids, num_coarse: int
) -> tuple[Sums, Ids, Ids]:
    """Merge the vertices with the same coarse id; parallel edges add up, inner edges vanish.

    Args:
        indptr: int64 [N + 1] of an undirected graph.
        indices: int32 [E].
        edge_weights: int32 [E].
        coarse: int32 [N], each vertex's coarse id.
        num_coarse: number of coarse vertices.

    Returns:
        The coarse graph: int64 [num_coarse + 1], int32 [edges], int32 [edges] of edge weights. Cost O(N + E).
    """
    members, member_start = _members(coarse, num_coarse)
    coarse_indptr = np.zeros(num_coarse + 1, np.int64)
    coarse_indices = np.empty(len(indices), np.int32)
    weights = np.empty(len(indices), np.int32)
    slot = np.full(num_coarse, -1, np.int64)
    filled = 0
    for merged in range(num_coarse):
        first = filled
        for member in range(member_start[merged], member_start[merged + 1]):
            vertex = members[member]
            for edge in range(indptr[vertex], indptr[vertex + 1]):
                neighbour = coarse[indices[edge]]
                if neighbour == merged:
                    continue
                if slot[neighbour] < first:
                    slot[neighbour] = filled
                    coarse_indices[filled] = neighbour
                    weights[filled] = edge_weights[edge]
                    filled += 1
                else:
                    weights[slot[neighbour]] += edge_weights[edge]
        coarse_indptr[merged + 1] = filled
    return coarse_indptr, coarse_indices[:filled].copy(), weights[:filled].copy()


@numba.njit(cache=True)
def _members(coarse: Ids, num_coarse: int) -> tuple[Ids, Sums]:
    start = np.zeros(num_coarse + 1, np.int64)
    for vertex in range(len(coarse)):
        start[coarse[vertex] + 1] += 1
    for merged in range(num_coarse):
        start[merged + 1] += start[merged]
    cursor = start[:-1].copy()
    members = np.empty(len(coarse), np.int32)
    for vertex in range(len(coarse)):
        members[cursor[coarse[vertex]]] = vertex
        cursor[coarse[vertex]] += 1
    return members, start
