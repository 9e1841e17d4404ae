"""Split a graph: one function for all methods, and the methods random and streaming (Fennel).

Random is the baseline, and the choice for graphs without structure. Streaming is for graphs that METIS cannot hold: it
takes memory of 4 bytes for each vertex and constraint. METIS is in `windrow.partition.metis`.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError
from windrow.comm.random import Stream, hash_ids, stream_key
from windrow.partition.balance_kernels import stream_once
from windrow.partition.constraints import check_members, ensure_members, vertex_roles, vertex_weights
from windrow.partition.metis import metis_search
from windrow.partition.options import PartitionOptions
from windrow.partition.refine import balance_limits, symmetric_adjacency

__all__ = ["partition_graph"]

Progress = Callable[[str, float], None]


def partition_graph(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.integer],
    options: PartitionOptions,
    *,
    train_ids: npt.NDArray[np.integer] | None = None,
    validation_ids: npt.NDArray[np.integer] | None = None,
    progress: Progress | None = None,
) -> npt.NDArray[np.int32]:
    """Split a graph into parts.

    Args:
        indptr: int64 [N + 1] of the graph in CSC form: v's in-neighbours are ``indices[indptr[v]:indptr[v + 1]]``.
        indices: int32 or int64 [E].
        options: how to split; equal arguments and seed give equal parts. `measure_quality` says what was reached.
        train_ids: integer [T]; every part gets at least one of them.
        validation_ids: integer [V].
        progress: called with a stage name and the share done, 0 to 1.

    Returns:
        int32 [N], each vertex's part; no part is empty.

    Raises:
        DataError: fewer vertices or training vertices than parts, broken CSC arrays, ids out of range, no METIS.
    """
    _check_csc(indptr, indices)
    num_vertices, num_parts = len(indptr) - 1, options.num_parts
    weights = vertex_weights(indptr, train_ids=train_ids, validation_ids=validation_ids, balance=options.balance)
    columns = np.stack(list(weights.values()), axis=1)
    check_members(num_vertices, num_parts, train_ids=train_ids)
    if num_parts == 1:
        assignment = np.zeros(num_vertices, np.int32)
    elif options.method == "random":
        roles = vertex_roles(num_vertices, train_ids, validation_ids)
        assignment = _random_assignment(roles, num_parts, seed=options.seed)
    elif options.method == "fennel":
        assignment = _fennel_assignment(indptr, indices, columns, options, progress)
    else:
        assignment = metis_search(symmetric_adjacency(indptr, indices), columns, options, progress)
    return ensure_members(indptr, indices, assignment, num_parts, train_ids=train_ids)


def _check_csc(indptr: npt.NDArray[np.int64], indices: npt.NDArray[np.integer]) -> None:
    if len(indptr) < 2:
        raise DataError("the graph has no vertices: check the file that it was read from")
    if indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        raise DataError(
            f"indptr must rise from 0 to the number of edges, {len(indices)}; it runs from {indptr[0]} to {indptr[-1]}"
            ": build the graph again from its edge list"
        )
    if len(indices) and (indices.min() < 0 or indices.max() >= len(indptr) - 1):
        raise DataError(
            f"neighbour ids run from {indices.min()} to {indices.max()}, expected [0, {len(indptr) - 1}): "
            "build the graph again from its edge list"
        )


def _random_assignment(roles: npt.NDArray[np.integer], num_parts: int, *, seed: int) -> npt.NDArray[np.int32]:
    """Deal vertices out to the parts like cards, role by role, in random order. Cost O(N log N), 25 N bytes."""
    draw = hash_ids(stream_key(seed, Stream.PARTITION), np.arange(len(roles)))
    order = np.lexsort((draw, roles))
    assignment = np.empty(len(roles), np.int32)
    assignment[order] = np.arange(len(roles)) % num_parts
    return assignment


GAMMA = 1.5
REPORTS_PER_PASS = 50
MAX_DOUBLINGS = 64


def _fennel_assignment(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.integer],
    vertex_weights: npt.NDArray[np.int32],
    options: PartitionOptions,
    progress: Progress | None,
) -> npt.NDArray[np.int32]:
    """Fennel with several balance constraints and restreaming.

    Vertices come in the order of their ids; each goes to the part p that maximises

        |N(v) in p| - alpha * gamma * |p| ** (gamma - 1),   alpha = sqrt(P) m / N ** 1.5,   gamma = 1.5

    (Tsourakakis, Gkantsidis, Radunovic, Vojnovic: FENNEL, WSDM 2014). With ``|p| = load * N / P`` the second term is
    ``1.5 * m / N * sqrt(load)``; here load is the mean, over the constraints that v weighs in, of p's weight over the
    mean weight of a part. Parts without room in any of these constraints are left out; if all are, the part with
    the least excess takes v. Passes after the first see every neighbour (Nishimura and Ugander, Restreaming graph
    partitioning, KDD 2013); the tolerance starts at ``imbalance * 2 ** (passes - 1)`` and halves in each, since tight
    limits from the start freeze early choices.

    A directed graph is scored by its in-neighbours; `indices` may be memory-mapped. A pass costs O(E + N P C).
    """
    num_vertices, num_parts, passes = len(indptr) - 1, options.num_parts, options.stream_passes
    assignment = np.full(num_vertices, -1, np.int32)
    means = vertex_weights.sum(axis=0, dtype=np.int64) / num_parts
    part_weights = np.zeros((num_parts, vertex_weights.shape[1]), np.int64)
    crowding_cost = GAMMA * (len(indices) / 2) / max(num_vertices, 1)
    marks = np.linspace(0, num_vertices, REPORTS_PER_PASS + 1).astype(np.int64)
    for number in range(passes):
        # A part holds P times the mean at most; a larger tolerance means the same and would overflow.
        tolerance = min(options.imbalance * 2.0 ** min(passes - 1 - number, MAX_DOUBLINGS), num_parts)
        limits = balance_limits(vertex_weights, num_parts, tolerance)
        for report in range(REPORTS_PER_PASS):
            stream_once(
                indptr, indices, vertex_weights, assignment, part_weights, means, limits, crowding_cost,
                int(marks[report]), int(marks[report + 1]),
            )  # fmt: skip
            if progress is not None:
                progress("streaming vertices", (number + (report + 1) / REPORTS_PER_PASS) / passes)
    return assignment
