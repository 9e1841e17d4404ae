"""The loops of refinement: k-way Fiduccia-Mattheyses moves, and rebalancing.

Sources: Fiduccia and Mattheyses, A linear-time heuristic for improving network partitions, DAC 1982 (moves with
negative gain, undone back to the best prefix); Karypis and Kumar, Multilevel algorithms for multi-constraint graph
partitioning, SC 1998 (every move keeps each constraint within its limit). Rebalancing moves vertices out of parts that
are over a limit, at the least loss of cut.

Both take the vertices from a heap of (-priority, vertex); no part is emptied. `limits` [C] is the most that a part may
weigh in each constraint, above 0.
"""

from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.inline_kernels import hash_id
from windrow.partition.balance_kernels import excess_change, fits, total_excess

__all__ = ["State", "move_with_hill_climbing", "rebalance"]

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

_TIE_BITS = 16
_TIE_MASK = np.uint64((1 << _TIE_BITS) - 1)
_NO_TARGET = -(1 << 40)
_EXCESS_TOLERANCE = 1e-9


class State(NamedTuple):
    """An undirected graph of N vertices and E stored edges, and its P parts; what is below `assignment` follows it."""

    indptr: Longs
    """[N + 1]."""
    indices: Ints
    """[E]."""
    edge_weights: Ints
    """[E]."""
    vertex_weights: Ints
    """[N, C]."""
    assignment: Ints
    """[N], changed in place."""
    connectivity: Ints
    """[N, P]: total weight of v's edges into part p. Moving v from s to t gains connectivity[v, t] less that of s."""
    part_weights: Longs
    """[P, C]."""
    part_sizes: Longs
    """[P], vertices."""


@numba.njit(cache=True)
def _move_vertex(state: State, vertex: int, target: int) -> None:
    """Move one vertex and keep all sums true. Cost O(degree + C)."""
    source = state.assignment[vertex]
    state.assignment[vertex] = target
    state.part_sizes[source] -= 1
    state.part_sizes[target] += 1
    for constraint in range(state.vertex_weights.shape[1]):
        state.part_weights[source, constraint] -= state.vertex_weights[vertex, constraint]
        state.part_weights[target, constraint] += state.vertex_weights[vertex, constraint]
    for edge in range(state.indptr[vertex], state.indptr[vertex + 1]):
        state.connectivity[state.indices[edge], source] -= state.edge_weights[edge]
        state.connectivity[state.indices[edge], target] += state.edge_weights[edge]


@numba.njit(cache=True)
def _best_target(state: State, limits: Longs, vertex: int) -> tuple[int, int]:
    """Best adjacent part that the vertex fits into and the gain, or (-1, _NO_TARGET)."""
    source, connectivity, part_weights = state.assignment[vertex], state.connectivity, state.part_weights
    best, best_gain = -1, _NO_TARGET
    for part in range(connectivity.shape[1]):
        if part == source or connectivity[vertex, part] == 0:
            continue
        gain = connectivity[vertex, part] - connectivity[vertex, source]
        lighter = best >= 0 and gain == best_gain and part_weights[part, 0] < part_weights[best, 0]
        if (gain > best_gain or lighter) and fits(state.vertex_weights, part_weights, limits, vertex, part):
            best, best_gain = part, gain
    return best, best_gain


@numba.njit(cache=True)
def _rank(key: np.uint64, vertex: int, gain: int) -> np.int64:
    """Priority in the heap: the gain first, then a random number."""
    return (np.int64(gain) << _TIE_BITS) + np.int64(hash_id(key, np.uint64(vertex)) & _TIE_MASK)


@numba.njit(cache=True)
def move_with_hill_climbing(state: State, limits: Longs, move_limits: Longs, key: np.uint64, patience: int) -> int:
    """One Fiduccia-Mattheyses pass over the boundary, in place.

    The vertex of highest gain moves first, also when the gain is negative; each vertex moves once at most; the
    moves after the best prefix are undone. The pair (total excess, cut) never gets worse in lexicographic order.

    The result is judged by `limits`; single moves keep `move_limits`: the same, or a little above, so that exchanges
    can happen. `key` breaks ties between equal gains. After `patience` moves without a new best prefix the pass ends.

    Returns:
        By how much the cut fell (negative where the cut paid for balance).
        Cost O(E + sum over moves of degree * (P + log N)).
    """
    num_vertices = len(state.assignment)
    # Of an entry of the heap that says something else than `ranks` there is a newer one, or none is wanted.
    ranks = np.full(num_vertices, _NO_TARGET << _TIE_BITS, np.int64)
    locked = np.zeros(num_vertices, np.bool_)
    moved = np.empty(num_vertices, np.int32)
    moved_from = np.empty(num_vertices, np.int32)
    heap = []
    for vertex in range(num_vertices):
        target, gain = _best_target(state, move_limits, vertex)
        if target >= 0:
            ranks[vertex] = _rank(key, vertex, gain)
            heap.append((-ranks[vertex], vertex))
    heapify(heap)

    gained, best_gained, count, best_count = 0, 0, 0, 0
    excess = total_excess(state.part_weights, limits)
    best_excess = excess
    while len(heap) > 0 and count - best_count < patience:
        entry, vertex = heappop(heap)
        if locked[vertex] or -entry != ranks[vertex]:
            continue
        target, gain = _best_target(state, move_limits, vertex)
        source = state.assignment[vertex]
        if target < 0 or state.part_sizes[source] == 1:
            ranks[vertex] = _NO_TARGET << _TIE_BITS
            continue
        if gain < ranks[vertex] >> _TIE_BITS:
            ranks[vertex] = _rank(key, vertex, gain)
            heappush(heap, (-ranks[vertex], vertex))
            continue
        excess += excess_change(state.vertex_weights, state.part_weights, limits, vertex, source, target)
        _move_vertex(state, vertex, target)
        locked[vertex] = True
        moved[count], moved_from[count] = vertex, source
        count += 1
        gained += gain
        if excess < best_excess - _EXCESS_TOLERANCE or (
            excess <= best_excess + _EXCESS_TOLERANCE and gained > best_gained
        ):
            best_excess, best_gained, best_count = min(excess, best_excess), gained, count
        for edge in range(state.indptr[vertex], state.indptr[vertex + 1]):
            neighbour: Any = np.int64(state.indices[edge])  # As in other entries of the heap.
            if locked[neighbour]:
                continue
            target, gain = _best_target(state, move_limits, neighbour)
            rank = _rank(key, neighbour, gain) if target >= 0 else _NO_TARGET << _TIE_BITS
            if target >= 0 and rank != ranks[neighbour]:
                heappush(heap, (-rank, neighbour))
            ranks[neighbour] = rank

    for step in range(count - 1, best_count - 1, -1):
        _move_vertex(state, moved[step], moved_from[step])
    return best_gained


_PRIORITY_SCALE = 1000.0
_LEAST_IMPROVEMENT = 1e-12


@numba.njit(cache=True)
def _cheapest_relief(state: State, limits: Longs, vertex: int) -> tuple[int, np.int64]:
    """Part that takes the vertex with the least loss for each unit of excess removed, and the priority; or -1."""
    source, connectivity = state.assignment[vertex], state.connectivity
    best, best_priority = -1, np.int64(0)
    for part in range(connectivity.shape[1]):
        if part == source:
            continue
        relief = -excess_change(state.vertex_weights, state.part_weights, limits, vertex, source, part)
        if relief <= _LEAST_IMPROVEMENT:
            continue
        gain = connectivity[vertex, part] - connectivity[vertex, source]
        rate = gain / relief if gain < 0 else gain * relief
        priority = np.int64(rate * _PRIORITY_SCALE)
        if best < 0 or priority > best_priority:
            best, best_priority = part, priority
    return best, best_priority


@numba.njit(cache=True)
def rebalance(state: State, limits: Longs, max_rounds: int) -> int:
    """Move vertices out of overweight parts until every limit holds or no single move helps.

    Every move lowers the total excess; the cut may rise. All vertices are looked at again `max_rounds` times at most.

    Returns:
        Number of moves. Cost O(rounds * N P C + moves * (degree + log N)).
    """
    moves = 0
    for _ in range(max_rounds):
        heap = []
        moves_before = moves
        is_over = np.zeros(len(state.part_weights), np.bool_)
        for part in range(len(is_over)):
            is_over[part] = (state.part_weights[part] > limits).any()
        for vertex in range(len(state.assignment)):
            if is_over[state.assignment[vertex]]:
                part, rate = _cheapest_relief(state, limits, vertex)
                if part >= 0:
                    heap.append((-rate, vertex))
        heapify(heap)
        while len(heap) > 0:
            entry, vertex = heappop(heap)
            part, rate = _cheapest_relief(state, limits, vertex)
            if part >= 0 and rate < -entry:
                heappush(heap, (-rate, vertex))
            elif part >= 0 and state.part_sizes[state.assignment[vertex]] > 1:
                _move_vertex(state, vertex, part)
                moves += 1
        if moves == moves_before:
            break
    return moves
