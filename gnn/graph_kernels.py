"""Compiled loops of `windrow.gnn.graph`."""

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["relabel_neighbours"]


@numba.njit(cache=True, nogil=True)
def relabel_neighbours(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.integer],
    new_to_old: npt.NDArray[np.int64],
    old_to_new: npt.NDArray[np.int64],
    new_indptr: npt.NDArray[np.int64],
    new_indices: npt.NDArray[np.integer],
) -> None:
    """Copy each neighbour list to its vertex's new place, with its entries renumbered and their order kept.

    Args:
        indptr: int64 [N + 1] of the old numbering.
        indices: int32 or int64 [E] of the old numbering.
        new_to_old: int64 [N].
        old_to_new: int64 [N].
        new_indptr: int64 [N + 1] of the new numbering.
        new_indices: [E] with the dtype of `indices`; written.
    """
    for vertex in range(new_to_old.size):
        old = new_to_old[vertex]
        start = new_indptr[vertex] - indptr[old]
        for edge in range(indptr[old], indptr[old + 1]):
            new_indices[start + edge] = old_to_new[indices[edge]]
