"""Streaming partitioning, for graphs that METIS cannot hold: memory of 4 bytes for each vertex and constraint."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from windrow.partition.refine import balance_limits
from windrow.partition.streaming_kernels import stream_once

__all__ = ["fennel_assignment"]

GAMMA = 1.5
REPORTS_PER_PASS = 50
MAX_DOUBLINGS = 64


def fennel_assignment(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.integer],
    vertex_weights: npt.NDArray[np.int32],
    num_parts: int,
    *,
    imbalance: float,
    passes: int = 5,
    progress: Callable[[str, float], None] | None = None,
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

    Args:
        indptr: int64 [N + 1], CSC; a directed graph is scored by its in-neighbours.
        indices: int32 or int64 [E]; may be memory-mapped.
        vertex_weights: int32 [N, C].
        num_parts: number of parts P.
        imbalance: tolerated excess over the mean weight of a part, 0.05 for 5 %.
        passes: 1 for plain streaming.
        progress: called with a stage name and the share done, 0 to 1.

    Returns:
        int32 [N]. Cost per pass O(E + N P C) time; memory beyond the arguments 4 N + 8 P C bytes.
    """
    num_vertices = len(indptr) - 1
    assignment = np.full(num_vertices, -1, np.int32)
    means = vertex_weights.sum(axis=0, dtype=np.int64) / num_parts
    part_weights = np.zeros((num_parts, vertex_weights.shape[1]), np.int64)
    crowding_cost = GAMMA * (len(indices) / 2) / max(num_vertices, 1)
    marks = np.linspace(0, num_vertices, REPORTS_PER_PASS + 1).astype(np.int64)
    for number in range(passes):
        # A part holds P times the mean at most; a larger tolerance means the same and would overflow.
        tolerance = min(imbalance * 2.0 ** min(passes - 1 - number, MAX_DOUBLINGS), num_parts)
        limits = balance_limits(vertex_weights, num_parts, tolerance)
        for report in range(REPORTS_PER_PASS):
            stream_once(
                indptr, indices, vertex_weights, assignment, part_weights, means, limits, crowding_cost,
                int(marks[report]), int(marks[report + 1]),
            )  # fmt: skip
            if progress is not None:
                progress("streaming vertices", (number + (report + 1) / REPORTS_PER_PASS) / passes)
    return assignment
