import numpy as np
import pytest

from windrow.partition.graph_kernels import count_remote


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("seed", range(5))
def test_equals_sets(random_csc, seed, dtype):
    indptr, indices = random_csc(seed, 40, 150)
    assignment = np.random.default_rng(seed).integers(0, 4, 40).astype(np.int32)
    by_part = np.argsort(assignment, kind="stable")
    entries, remote, halo = count_remote(indptr, indices.astype(dtype), assignment, by_part, 4)
    for part in range(4):
        neighbours = [
            u for v in np.flatnonzero(assignment == part) for u in indices[indptr[v] : indptr[v + 1]].tolist()
        ]
        far = [u for u in neighbours if assignment[u] != part]
        assert (entries[part], remote[part], halo[part]) == (len(neighbours), len(far), len(set(far)))
