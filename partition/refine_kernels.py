"""The loops of refinement: k-way Fiduccia-Mattheyses moves, rebalancing, and the heap of vertices that both use.

Sources: Fiduccia and Mattheyses, A linear-time heuristic for improving network partitions, DAC 1982 (moves with
negative gain, undone back to the best prefix); Karypis and Kumar, Multilevel algorithms for multi-constraint graph
partitioning, SC 1998 (every move keeps each constraint within its limit). Rebalancing moves vertices out of parts that
are over a limit, at the least loss of cut.

Arrays, of N vertices, E stored edges of an undirected graph, P parts and C constraints::

    indptr [N + 1], indices [E], edge_weights [E], vertex_weights [N, C]      read only
    assignment [N]                                                            changed in place
    connectivity [N, P], part_weights [P, C], part_sizes [P]                  sums that are kept true
    limits [C]                                                                the most that a part may weigh, above 0

``connectivity[v, p]`` is the total weight of v's edges into part p, so the gain of moving v from part s to t is
``connectivity[v, t] - connectivity[v, s]``. No part is emptied.

The heap is a binary max-heap whose priorities can change. Its length lives in the caller; `_push_or_update` and
`_remove` return the new one, in O(log length)::

    heap      [v3, v1, v7, ...]   vertices; the parent of slot i is slot (i - 1) // 2
    position  position[v] = slot of v, or -1 while v is outside
    priority  priority[v], int64; larger comes out first
"""

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.inline_kernels import hash_id
from windrow.partition.balance_kernels import excess_change, fits, total_excess

__all__ = ["connect_parts", "move_with_hill_climbing", "rebalance"]

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

_TIE_BITS = 16
_TIE_MASK = np.uint64((1 << _TIE_BITS) - 1)
_NO_TARGET = -(1 << 40)
_EXCESS_TOLERANCE = 1e-9


@numba.njit(cache=True)
def connect_parts(indptr: Longs, indices: Ints, edge_weights: Ints, assignment: Ints, num_parts: int) -> Ints:
    """Weight of each vertex's edges into each part, int32 [N, P]. Cost O(N P + E)."""
    connectivity = np.zeros((len(assignment), num_parts), np.int32)
    for vertex in range(len(assignment)):
        for edge in range(indptr[vertex], indptr[vertex + 1]):
            connectivity[vertex, assignment[indices[edge]]] += edge_weights[edge]
    return connectivity


@numba.njit(cache=True)
def _move_vertex(
    indptr: Longs, indices: Ints, edge_weights: Ints, vertex_weights: Ints, assignment: Ints, connectivity: Ints,
    part_weights: Longs, part_sizes: Longs, vertex: int, target: int,
) -> None:  # fmt: skip
    """Move one vertex and keep all sums true. Cost O(degree + C)."""
    source = assignment[vertex]
    assignment[vertex] = target
    part_sizes[source] -= 1
    part_sizes[target] += 1
    for constraint in range(vertex_weights.shape[1]):
        part_weights[source, constraint] -= vertex_weights[vertex, constraint]
        part_weights[target, constraint] += vertex_weights[vertex, constraint]
    for edge in range(indptr[vertex], indptr[vertex + 1]):
        connectivity[indices[edge], source] -= edge_weights[edge]
        connectivity[indices[edge], target] += edge_weights[edge]


@numba.njit(cache=True)
def _best_target(
    vertex_weights: Ints, assignment: Ints, connectivity: Ints, part_weights: Longs, limits: Longs, vertex: int
) -> tuple[int, int]:
    """Best adjacent part that the vertex fits into and the gain, or (-1, _NO_TARGET)."""
    source = assignment[vertex]
    best, best_gain = -1, _NO_TARGET
    for part in range(connectivity.shape[1]):
        if part == source or connectivity[vertex, part] == 0:
            continue
        gain = connectivity[vertex, part] - connectivity[vertex, source]
        lighter = best >= 0 and gain == best_gain and part_weights[part, 0] < part_weights[best, 0]
        if (gain > best_gain or lighter) and fits(vertex_weights, part_weights, limits, vertex, part):
            best, best_gain = part, gain
    return best, best_gain


@numba.njit(cache=True)
def _rank(key: np.uint64, vertex: int, gain: int) -> np.int64:
    """Priority in the heap: the gain first, then a random number."""
    return (np.int64(gain) << _TIE_BITS) + np.int64(hash_id(key, np.uint64(vertex)) & _TIE_MASK)


@numba.njit(cache=True)
def move_with_hill_climbing(
    indptr: Longs, indices: Ints, edge_weights: Ints, vertex_weights: Ints, assignment: Ints, connectivity: Ints,
    part_weights: Longs, part_sizes: Longs, limits: Longs, move_limits: Longs, key: np.uint64, patience: int,
) -> int:  # fmt: skip
    """One Fiduccia-Mattheyses pass over the boundary, in place.

    The vertex of highest gain moves first, also when the gain is negative; each vertex moves once at most; the
    moves after the best prefix are undone. The pair (total excess, cut) never gets worse in lexicographic order.

    The result is judged by `limits`; single moves keep `move_limits`, a little above, so that exchanges can happen.
    `key` breaks ties between equal gains. After `patience` moves without a new best prefix the pass ends.

    Returns:
        By how much the cut fell (negative where the cut paid for balance).
        Cost O(E + sum over moves of degree * (P + log N)).
    """
    num_vertices = len(assignment)
    heap = np.empty(num_vertices, np.int32)
    position = np.full(num_vertices, -1, np.int32)
    priority = np.zeros(num_vertices, np.int64)
    locked = np.zeros(num_vertices, np.bool_)
    moved = np.empty(num_vertices, np.int32)
    moved_from = np.empty(num_vertices, np.int32)
    length = 0
    for vertex in range(num_vertices):
        target, gain = _best_target(vertex_weights, assignment, connectivity, part_weights, move_limits, vertex)
        if target >= 0:
            length = _push_or_update(heap, position, priority, length, vertex, _rank(key, vertex, gain))

    gained, best_gained, count, best_count = 0, 0, 0, 0
    excess = total_excess(part_weights, limits)
    best_excess = excess
    while length > 0 and count - best_count < patience:
        vertex = heap[0]
        target, gain = _best_target(vertex_weights, assignment, connectivity, part_weights, move_limits, vertex)
        source = assignment[vertex]
        if target < 0 or part_sizes[source] == 1:
            length = _remove(heap, position, priority, length, vertex)
            continue
        if gain < priority[vertex] >> _TIE_BITS:
            length = _push_or_update(heap, position, priority, length, vertex, _rank(key, vertex, gain))
            continue
        length = _remove(heap, position, priority, length, vertex)
        excess += excess_change(vertex_weights, part_weights, limits, vertex, source, target)
        _move_vertex(indptr, indices, edge_weights, vertex_weights, assignment, connectivity, part_weights, part_sizes,
              vertex, target)  # fmt: skip
        locked[vertex] = True
        moved[count], moved_from[count] = vertex, source
        count += 1
        gained += gain
        if excess < best_excess - _EXCESS_TOLERANCE or (
            excess <= best_excess + _EXCESS_TOLERANCE and gained > best_gained
        ):
            best_excess, best_gained, best_count = min(excess, best_excess), gained, count
        for edge in range(indptr[vertex], indptr[vertex + 1]):
            neighbour = indices[edge]
            if locked[neighbour]:
                continue
            target, gain = _best_target(vertex_weights, assignment, connectivity, part_weights, move_limits, neighbour)
            if target >= 0:
                length = _push_or_update(heap, position, priority, length, neighbour, _rank(key, neighbour, gain))
            elif position[neighbour] >= 0:
                length = _remove(heap, position, priority, length, neighbour)

    for step in range(count - 1, best_count - 1, -1):
        _move_vertex(indptr, indices, edge_weights, vertex_weights, assignment, connectivity, part_weights, part_sizes,
              moved[step], moved_from[step])  # fmt: skip
    return best_gained


_PRIORITY_SCALE = 1000.0
_LEAST_IMPROVEMENT = 1e-12


@numba.njit(cache=True)
def _is_over(part_weights: Longs, limits: Longs, part: int) -> bool:
    for constraint in range(len(limits)):
        if part_weights[part, constraint] > limits[constraint]:
            return True
    return False


@numba.njit(cache=True)
def _cheapest_relief(
    vertex_weights: Ints, assignment: Ints, connectivity: Ints, part_weights: Longs, limits: Longs, vertex: int
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
    indptr: Longs, indices: Ints, edge_weights: Ints, vertex_weights: Ints,
    assignment: Ints, connectivity: Ints,
    part_weights: Longs, part_sizes: Longs, limits: Longs, max_rounds: int,
) -> int:  # fmt: skip
    """Move vertices out of overweight parts until every limit holds or no single move helps.

    Every move lowers the total excess; the cut may rise. All vertices are looked at again `max_rounds` times at most.

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
                part, rate = _cheapest_relief(vertex_weights, assignment, connectivity, part_weights, limits, vertex)
                if part >= 0:
                    length = _push_or_update(heap, position, priority, length, vertex, rate)
        while length > 0:
            vertex = heap[0]
            source = assignment[vertex]
            part, rate = _cheapest_relief(vertex_weights, assignment, connectivity, part_weights, limits, vertex)
            if part >= 0 and rate < priority[vertex]:
                length = _push_or_update(heap, position, priority, length, vertex, rate)
                continue
            length = _remove(heap, position, priority, length, vertex)
            if part >= 0 and part_sizes[source] > 1:
                _move_vertex(indptr, indices, edge_weights, vertex_weights, assignment, connectivity, part_weights,
                            part_sizes, vertex, part)  # fmt: skip
                moves += 1
        if moves == moves_before:
            break
    return moves


@numba.njit(cache=True)
def _sift_up(heap: Ints, position: Ints, priority: Longs, slot: int) -> int:
    vertex = heap[slot]
    while slot > 0:
        parent = (slot - 1) // 2
        if priority[heap[parent]] >= priority[vertex]:
            break
        heap[slot] = heap[parent]
        position[heap[slot]] = slot
        slot = parent
    heap[slot] = vertex
    position[vertex] = slot
    return slot


@numba.njit(cache=True)
def _sift_down(heap: Ints, position: Ints, priority: Longs, length: int, slot: int) -> None:
    vertex = heap[slot]
    while True:
        child = 2 * slot + 1
        if child >= length:
            break
        if child + 1 < length and priority[heap[child + 1]] > priority[heap[child]]:
            child += 1
        if priority[heap[child]] <= priority[vertex]:
            break
        heap[slot] = heap[child]
        position[heap[slot]] = slot
        slot = child
    heap[slot] = vertex
    position[vertex] = slot


@numba.njit(cache=True)
def _push_or_update(
    heap: Ints, position: Ints, priority: Longs, length: int, vertex: int, new_priority: np.int64
) -> int:
    """Insert a vertex or change its priority."""
    priority[vertex] = new_priority
    if position[vertex] < 0:
        heap[length] = vertex
        position[vertex] = length
        length += 1
    slot = _sift_up(heap, position, priority, position[vertex])
    _sift_down(heap, position, priority, length, slot)
    return length


@numba.njit(cache=True)
def _remove(heap: Ints, position: Ints, priority: Longs, length: int, vertex: int) -> int:
    """Take a vertex that is inside out of the heap."""
    slot = position[vertex]
    position[vertex] = -1
    length -= 1
    if slot != length:
        heap[slot] = heap[length]
        position[heap[slot]] = slot
        slot = _sift_up(heap, position, priority, slot)
        _sift_down(heap, position, priority, length, slot)
    return length
