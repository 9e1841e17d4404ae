"""The loops over neighbour lists: another order of the vertices, heavy-edge matching, and counts of remote neighbours.

A graph is `indptr` int64 [N + 1] and `indices` [E], with `edge_weights` int32 [E] where they count; every loop costs
O(N + E).
"""

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["count_remote", "match_inside_parts", "relabel"]

Entries = npt.NDArray[np.integer]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]


@numba.njit(cache=True)
def relabel(indptr: Entries, indices: Entries, order: Entries, place: Entries) -> tuple[Longs, Entries]:
    """Write the lists of some vertices down, or of all in another order; each list keeps its own order.

    ``order[i]``, int64, is the vertex that becomes vertex i; ``place[v]`` is what a neighbour v becomes. Dtypes stay.
    """
    new_indptr = np.zeros(len(order) + 1, np.int64)
    for new in range(len(order)):
        new_indptr[new + 1] = new_indptr[new] + indptr[order[new] + 1] - indptr[order[new]]
    new_indices = np.empty(new_indptr[-1], indices.dtype)
    filled = 0
    for new in range(len(order)):
        for edge in range(indptr[order[new]], indptr[order[new] + 1]):
            new_indices[filled] = place[indices[edge]]
            filled += 1
    return new_indptr, new_indices


@numba.njit(cache=True)
def match_inside_parts(
    indptr: Longs,
    indices: Ints,
    edge_weights: Ints,
    vertex_weights: Ints,
    assignment: Ints,
    heaviest: Longs,
    order: Longs,
) -> tuple[Ints, int]:
    """Pair each vertex with the free neighbour of the same part that it shares the heaviest edge with.

    Vertices that find no neighbour are paired two by two with another that shares a neighbour with them, so that
    stars shrink too. Vertices choose in the given order, and no pair weighs more than `heaviest` [C] in any constraint.

    Returns:
        int32 [N], each vertex's id in the coarse graph, and the number of coarse vertices.
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
def _light_enough(vertex_weights: Ints, heaviest: Longs, one: int, other: int) -> bool:
    for constraint in range(vertex_weights.shape[1]):
        if vertex_weights[one, constraint] + vertex_weights[other, constraint] > heaviest[constraint]:
            return False
    return True


@numba.njit(cache=True)
def count_remote(
    indptr: Longs, indices: Entries, assignment: Ints, by_part: Longs, num_parts: int
) -> tuple[Longs, Longs, Longs]:
    """Count, for each part, its in-neighbours, the remote ones, and the different remote ones (its halo).

    `by_part` int64 [N] are the vertices ordered by part. Memory: 4 N bytes.
    """
    entries = np.zeros(num_parts, np.int64)
    remote = np.zeros(num_parts, np.int64)
    halo = np.zeros(num_parts, np.int64)
    last_seen_by = np.full(len(assignment), -1, np.int32)
    for vertex in by_part:
        part = assignment[vertex]
        entries[part] += indptr[vertex + 1] - indptr[vertex]
        for edge in range(indptr[vertex], indptr[vertex + 1]):
            neighbour = indices[edge]
            if assignment[neighbour] != part:
                remote[part] += 1
                if last_seen_by[neighbour] != part:
                    last_seen_by[neighbour] = part
                    halo[part] += 1
    return entries, remote, halo
