"""Compiled part of `windrow.partition.quality`."""

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["count_remote"]

Counts = npt.NDArray[np.int64]


@numba.njit(cache=True)
def count_remote(
    indptr: Counts,
    indices: npt.NDArray[np.integer],
    assignment: npt.NDArray[np.int32],
    by_part: Counts,
    num_parts: int,
) -> tuple[Counts, Counts, Counts]:
    """Count, for each part, its in-neighbours, the remote ones, and the different remote ones.

    Args:
        indptr: int64 [N + 1], CSC.
        indices: int32 or int64 [E].
        assignment: int32 [N].
        by_part: int64 [N], the vertices ordered by part.
        num_parts: number of parts.

    Returns:
        Three int64 [num_parts]: in-neighbour entries, remote entries, halo size. Cost O(N + E), 4 N bytes.
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
