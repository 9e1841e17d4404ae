"""Which remote rows a rank keeps, given a ranking of all vertices."""

import math

import numpy as np
import numpy.typing as npt

__all__ = ["cache_capacity", "choose_cached"]


def cache_capacity(alpha: float, num_vertices: int, num_parts: int) -> int:
    """Remote rows that each rank keeps: floor(alpha * N / K), as in SALIENT++ (Kaler et al., MLSys 2023).

    Args:
        alpha: replication factor, from 0.
        num_vertices: N.
        num_parts: K, at least 1.

    Returns:
        At most N: more rows there are not.
    """
    # Decimals such as 0.29 lie a rounding below what was written, and would lose a row where the product is whole.
    exact = alpha * num_vertices / num_parts
    return min(num_vertices, math.floor(exact + 1e-9 * max(1.0, exact)))


def choose_cached(
    scores: npt.NDArray[np.float64], own: tuple[int, int], capacity: int
) -> npt.NDArray[np.int64]:
    """Choose the remote vertices to keep: those with the highest scores.

    Args:
        scores: float64 [N], higher is kept first; vertices with 0 or less are never kept.
        own: first id of the vertices whose rows the rank holds anyway, and the one after its last.
        capacity: the most to keep.

    Returns:
        int64 ids, the best first, of equally good ones the lower id first.

    Cost:
        A sort of the remote vertices with a score, or of `capacity` of them where that is fewer.
    """
    wanted = scores > 0
    wanted[own[0] : own[1]] = False
    candidates = np.flatnonzero(wanted)
    if capacity <= 0:
        return candidates[:0]
    if capacity < len(candidates):
        found = scores[candidates]
        least = np.partition(found, len(found) - capacity)[len(found) - capacity]
        better = candidates[found > least]
        tied = candidates[found == least][: capacity - len(better)]
        candidates = np.sort(np.concatenate([better, tied]))
    return candidates[np.argsort(-scores[candidates], kind="stable")]
