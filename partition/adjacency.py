"""The undirected, weighted view of a graph that METIS and the refinement work on."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from windrow.partition.adjacency_kernels import merge_directions, transpose

__all__ = ["Adjacency", "symmetric_adjacency"]


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
        """Total weight of the undirected edges between different parts; cost O(E).

        Args:
            assignment: int32 [N], each vertex's part.

        Returns:
            The cut, each undirected edge counted once.
        """
        own = np.repeat(assignment, np.diff(self.indptr))
        return int(self.edge_weights[own != assignment[self.indices]].sum(dtype=np.int64)) // 2


def symmetric_adjacency(indptr: npt.NDArray[np.int64], indices: npt.NDArray[np.integer]) -> Adjacency:
    """Forget edge directions, repeats and self-loops.

    Args:
        indptr: int64 [N + 1] of the graph in CSC form.
        indices: int32 or int64 [E].

    Returns:
        The undirected graph; each list ascends. Cost O(N + E) time, up to 16 bytes for each edge while it runs.
    """
    turned_indptr, turned = transpose(indptr, indices)
    sorted_indptr, ascending = transpose(turned_indptr, turned)
    merged_indptr, merged = merge_directions(sorted_indptr, ascending, turned_indptr, turned)
    return Adjacency(indptr=merged_indptr, indices=merged, edge_weights=np.ones(len(merged), np.int32))
