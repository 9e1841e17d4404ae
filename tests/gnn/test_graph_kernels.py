"""The compiled loop that renumbers neighbours."""

import numpy as np
import pytest

from windrow.gnn.graph_kernels import relabel_neighbours


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_lists_move_with_their_vertex_and_keep_their_order(dtype: type) -> None:
    indptr, indices = np.array([0, 2, 2, 3]), np.array([1, 2, 0], dtype=dtype)
    new_to_old = np.array([2, 0, 1])
    new_indptr, new_indices = np.array([0, 1, 3, 3]), np.empty(3, dtype=dtype)
    relabel_neighbours(indptr, indices, new_to_old, np.argsort(new_to_old), new_indptr, new_indices)
    assert new_indices.tolist() == [1, 2, 0]
