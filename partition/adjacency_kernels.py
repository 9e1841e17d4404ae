"""Compiled parts of `windrow.partition.adjacency`."""

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["merge_directions", "relabel", "transpose"]

Ids = npt.NDArray[np.integer]


@numba.njit(cache=True)
def transpose(indptr: Ids, indices: Ids) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Turn every edge round; each list of the result ascends. Cost O(N + E).

    Args:
        indptr: int64 [N + 1].
        indices: integer [E], each in [0, N).

    Returns:
        The transposed graph: int64 [N + 1] and int32 [E].
    """
    num_vertices = len(indptr) - 1
    start = np.zeros(num_vertices + 1, np.int64)
    for edge in range(len(indices)):
        start[indices[edge] + 1] += 1
    for vertex in range(num_vertices):
        start[vertex + 1] += start[vertex]
    cursor = start[:-1].copy()
    turned = np.empty(len(indices), np.int32)
    for vertex in range(num_vertices):
        for edge in range(indptr[vertex], indptr[vertex + 1]):
            neighbour = indices[edge]
            turned[cursor[neighbour]] = vertex
            cursor[neighbour] += 1
    return start, turned


@numba.njit(cache=True)
def merge_directions(
    first_indptr: Ids, first_indices: Ids, second_indptr: Ids, second_indices: Ids
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Unite two graphs with ascending lists, leaving out self-loops and repeats. Cost O(N + E).

    Args:
        first_indptr: int64 [N + 1].
        first_indices: int32 [E], ascending inside each list.
        second_indptr: int64 [N + 1].
        second_indices: int32 [E], ascending inside each list.

    Returns:
        The united graph: int64 [N + 1] and int32 [edges].
    """
    num_vertices = len(first_indptr) - 1
    merged_indptr = np.zeros(num_vertices + 1, np.int64)
    merged = np.empty(len(first_indices) + len(second_indices), np.int32)
    filled = 0
    for vertex in range(num_vertices):
        one, one_end = first_indptr[vertex], first_indptr[vertex + 1]
        two, two_end = second_indptr[vertex], second_indptr[vertex + 1]
        last = -1
        while one < one_end or two < two_end:
            if two >= two_end or (one < one_end and first_indices[one] <= second_indices[two]):
                neighbour = first_indices[one]
                one += 1
            else:
                neighbour = second_indices[two]
                two += 1
            if neighbour != last and neighbour != vertex:
                merged[filled] = neighbour
                filled += 1
            last = neighbour
        merged_indptr[vertex + 1] = filled
    return merged_indptr, merged[:filled].copy()


@numba.njit(cache=True)
def relabel(
    indptr: Ids, indices: Ids, order: Ids, place: Ids
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Write a graph down in another vertex order. Cost O(N + E).

    Args:
        indptr: int64 [N + 1].
        indices: int32 [E].
        order: int64 [N]: ``order[i]`` is the vertex that becomes vertex i.
        place: int64 [N]: the inverse of `order`.

    Returns:
        int64 [N + 1] and int32 [E].
    """
    new_indptr = np.zeros(len(indptr), np.int64)
    new_indices = np.empty(len(indices), np.int32)
    filled = 0
    for new in range(len(order)):
        for edge in range(indptr[order[new]], indptr[order[new] + 1]):
            new_indices[filled] = place[indices[edge]]
            filled += 1
        new_indptr[new + 1] = filled
    return new_indptr, new_indices
