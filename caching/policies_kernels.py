"""The compiled loop of `windrow.caching.policies`."""

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["add_from_samplers"]


@numba.njit(cache=True, nogil=True)
def add_from_samplers(
    first: int,
    last: int,
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.integer],
    values: npt.NDArray[np.float64],
    sums: npt.NDArray[np.float64],
) -> None:
    """Add up, for each vertex, a value of every vertex that lists it.

    Args:
        first: vertex to begin with.
        last: vertex to stop before.
        indptr: int64 [N + 1], in whose lists each vertex stands.
        indices: int32 or int64 [E].
        values: float64 [N].
        sums: float64 [N], written from `first` to `last`.
    """
    for vertex in range(first, last):
        total = 0.0
        for entry in range(indptr[vertex], indptr[vertex + 1]):
            total += values[indices[entry]]
        sums[vertex] = total
