"""Refinement of a given partition: restores balance in several constraints, then lowers the cut.

    refine = repeated V-cycles; one V-cycle:

        graph ──coarsen inside parts──▶ ... ──▶ coarsest
          │                                        │
       improve ◀──── project ──── improve ◀──── improve        improve = rebalance + Fiduccia-Mattheyses passes

Vertices are only merged with vertices of their own part, so the given partition exists on every level, and a move
on a coarse level moves a whole cluster: that is what lifts the result out of the flat method's local minima
(Sanders and Schulz, Engineering multilevel graph partitioning algorithms, ESA 2011: "iterated multilevel").

METIS and the refinement work on the undirected, weighted view of a graph, `Adjacency`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.comm.random import Stream, hash_ids, stream_key
from windrow.partition.balance_kernels import total_excess
from windrow.partition.constraints import weigh_parts
from windrow.partition.graph_kernels import match_inside_parts
from windrow.partition.refine_kernels import State, move_with_hill_climbing, rebalance

__all__ = ["Adjacency", "badness", "balance_limits", "contract", "refine", "start_state", "symmetric_adjacency"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Adjacency:
    """An undirected graph without self-loops: every edge is stored at both of its ends."""

    indptr: npt.NDArray[np.int64]
    """[N + 1]: where each vertex's neighbours start and end."""
    indices: npt.NDArray[np.int32]
    """[E]: the neighbours; twice the number of undirected edges."""
    edge_weights: npt.NDArray[np.int32]
    """[E]: what cutting the edge costs; 1 for a graph that was not coarsened."""

    @property
    def num_vertices(self) -> int:
        """Number of vertices."""
        return len(self.indptr) - 1

    def cut(self, assignment: npt.NDArray[np.int32]) -> int:
        """Total weight of the undirected edges between different parts, each counted once; cost O(E)."""
        own = np.repeat(assignment, np.diff(self.indptr))
        return int(self.edge_weights[own != assignment[self.indices]].sum(dtype=np.int64)) // 2


def symmetric_adjacency(indptr: npt.NDArray[np.int64], indices: npt.NDArray[np.integer]) -> Adjacency:
    """Forget edge directions, repeats and self-loops of a graph in CSC form, int64 [N + 1] and integers [E].

    Each list of the result ascends. Cost O(N + E log(E / N)) time, up to 24 bytes for each edge while it runs.
    """
    matrix = _sparse(np.ones(len(indices), np.bool_), indices, indptr, len(indptr) - 1)
    both = matrix + matrix.T
    both.sum_duplicates()
    return _without_diagonal(both)


def _sparse(values: npt.NDArray[Any], columns: npt.NDArray[Any], indptr: npt.NDArray[np.int64], width: int) -> Any:
    """A scipy matrix, which keeps columns in integers as wide as those of `indptr`: in 4 bytes where they do."""
    from scipy.sparse import csr_array

    starts = indptr.astype(np.int32 if len(columns) < 1 << 31 else np.int64)
    return csr_array((values, columns, starts), shape=(len(indptr) - 1, width))


def _without_diagonal(matrix: Any) -> Adjacency:
    """The graph of a matrix that holds no entry twice."""
    kept = np.repeat(np.arange(matrix.shape[0], dtype=np.int32), np.diff(matrix.indptr)) != matrix.indices
    dropped_before = np.concatenate([[0], np.cumsum(matrix.diagonal() != 0)])
    return Adjacency(
        indptr=matrix.indptr - dropped_before,
        indices=matrix.indices[kept].astype(np.int32, copy=False),
        edge_weights=matrix.data[kept].astype(np.int32, copy=False),
    )


Assignment = npt.NDArray[np.int32]

MAX_PASSES = 8
MAX_FAILURES = 2
REBALANCE_ROUNDS = 10
MIN_PATIENCE = 100
MAX_PATIENCE = 3000
COARSEST_VERTICES_PER_PART = 40
LEAST_SHRINKING = 0.95
MAX_CLUSTER_SHARE = 0.25
EXCHANGE_SLACK = 0.01


def balance_limits(totals: npt.NDArray[np.int64], num_parts: int, imbalance: float) -> npt.NDArray[np.int64]:
    """The most that one part may weigh in each constraint, int64 [C], by what all vertices weigh, int64 [C].

    That is ``max(floor((1 + imbalance) * total / P), ceil(total / P))``, the second because some part must weigh that
    much.
    """
    tolerated = np.floor((1 + imbalance) * totals / num_parts + 1e-9).astype(np.int64)
    return np.asarray(np.maximum(tolerated, -(-totals // num_parts)), np.int64)


def badness(
    graph: Adjacency, vertex_weights: npt.NDArray[np.int32], assignment: Assignment, num_parts: int, imbalance: float
) -> tuple[float, int]:
    """What partitions are ranked by, the least first: (excess, cut).

    The excess is the sum of the shares of the limits by which parts exceed them: 0 where all keep within.
    """
    limits = balance_limits(vertex_weights.sum(axis=0, dtype=np.int64), num_parts, imbalance)
    over = total_excess(weigh_parts(vertex_weights, assignment, num_parts), limits)
    return round(float(over), 9), graph.cut(assignment)


def refine(
    graph: Adjacency,
    assignment: Assignment,
    vertex_weights: npt.NDArray[np.int32],
    num_parts: int,
    *,
    imbalance: float,
    seed: int,
    cycles: int = 3,
    other: Assignment | None = None,
) -> Assignment:
    """Improve a partition of the vertices, which is left as it is: its `badness` never grows.

    `seed` breaks ties; equal seeds give equal results. `cycles` is the largest number of V-cycles: it stops after
    MAX_FAILURES in a row that gain nothing. `other`, int32 [N], is a second partition to combine with: the first
    V-cycle merges only vertices that share a part in both, so that it can swap whole regions on which the two disagree
    (Sanders and Schulz, Distributed evolutionary graph partitioning, ALENEX 2012).

    Memory 4 N P + 25 to 50 E bytes; time a few passes over the edges for each cycle.
    """
    limits = balance_limits(vertex_weights.sum(axis=0, dtype=np.int64), num_parts, imbalance)

    best, best_badness = assignment, badness(graph, vertex_weights, assignment, num_parts, imbalance)
    failures = 0
    for cycle in range(cycles):
        regions = best if other is None or cycle > 0 else best * np.int32(num_parts) + other
        key = stream_key(seed, Stream.PARTITION, cycle)
        candidate = _v_cycle(graph, vertex_weights, regions, best, num_parts, limits, key=key)
        candidate_badness = badness(graph, vertex_weights, candidate, num_parts, imbalance)
        if candidate_badness < best_badness:
            best, best_badness, failures = candidate, candidate_badness, 0
        else:
            failures += 1
        if failures == MAX_FAILURES:
            break
    return best.copy() if best is assignment else best


def _v_cycle(
    graph: Adjacency,
    vertex_weights: npt.NDArray[np.int32],
    regions: npt.NDArray[np.int32],
    assignment: Assignment,
    num_parts: int,
    limits: npt.NDArray[np.int64],
    *,
    key: int,
) -> Assignment:
    """Only vertices of one of the `regions` [N] are merged."""
    num_vertices = graph.num_vertices
    key = stream_key(key, num_vertices)
    if num_vertices > COARSEST_VERTICES_PER_PART * num_parts:
        order = np.argsort(hash_ids(key, np.arange(num_vertices)), kind="stable")
        heaviest = np.maximum((MAX_CLUSTER_SHARE * limits).astype(np.int64), 1)
        coarse, num_coarse = match_inside_parts(
            graph.indptr, graph.indices, graph.edge_weights, vertex_weights, regions, heaviest, order
        )
        if num_coarse < LEAST_SHRINKING * num_vertices:
            weights = weigh_parts(vertex_weights, coarse, num_coarse).astype(np.int32)
            coarse_regions, coarse_assignment = np.empty((2, num_coarse), np.int32)
            coarse_regions[coarse], coarse_assignment[coarse] = regions, assignment
            coarser = contract(graph, coarse, num_coarse)
            improved = _v_cycle(coarser, weights, coarse_regions, coarse_assignment, num_parts, limits, key=key)
            assignment = improved[coarse]
    return _improve(graph, vertex_weights, assignment, num_parts, limits, key)


def contract(graph: Adjacency, coarse: npt.NDArray[np.int32], num_coarse: int) -> Adjacency:
    """Merge the vertices with the same coarse id; parallel edges add up, inner edges vanish."""
    members = _sparse(np.ones(len(coarse), np.int32), coarse, np.arange(len(coarse) + 1), num_coarse).T.tocsr()
    merged = members @ _edges_into(graph, coarse, num_coarse)
    merged.sort_indices()
    return _without_diagonal(merged)


def _edges_into(graph: Adjacency, groups: npt.NDArray[np.int32], num_groups: int) -> Any:
    """Weights of each vertex's edges, in the column of the other end's group: a sparse matrix [N, groups]."""
    return _sparse(graph.edge_weights, groups[graph.indices], graph.indptr, num_groups)


def start_state(
    graph: Adjacency, vertex_weights: npt.NDArray[np.int32], assignment: Assignment, num_parts: int
) -> State:
    """What the loops of refinement change; the assignment itself is among it."""
    return State(
        indptr=graph.indptr,
        indices=graph.indices,
        edge_weights=graph.edge_weights,
        vertex_weights=vertex_weights,
        assignment=assignment,
        connectivity=_edges_into(graph, assignment, num_parts).toarray(),
        part_weights=weigh_parts(vertex_weights, assignment, num_parts),
        part_sizes=np.bincount(assignment, minlength=num_parts).astype(np.int64),
    )


def _improve(
    graph: Adjacency,
    vertex_weights: npt.NDArray[np.int32],
    assignment: Assignment,
    num_parts: int,
    limits: npt.NDArray[np.int64],
    key: int,
) -> Assignment:
    state = start_state(graph, vertex_weights, assignment.copy(), num_parts)
    exchange_limits = limits + np.maximum((EXCHANGE_SLACK * limits).astype(np.int64), 1)
    patience = min(max(graph.num_vertices // 20, MIN_PATIENCE), MAX_PATIENCE)
    for step in range(MAX_PASSES):
        moves = rebalance(state, limits, REBALANCE_ROUNDS)
        ties = np.uint64(stream_key(key, step))
        gained = move_with_hill_climbing(state, limits, limits, ties, patience)
        if gained <= 0 and moves == 0:
            # Between full parts only exchanges are left. A pass that begins with them soon stands above a limit, and
            # is undone.
            gained = move_with_hill_climbing(state, limits, exchange_limits, ties, patience)
            if gained <= 0:
                break
    return state.assignment
