"""The loops that read lists the other way round, one by one."""

import numpy as np

from windrow.caching.ranking_kernels import estimate_shared, fingerprints, mark_single_edges, transpose

# 0 lists 1 and 2, 1 lists 0, 2 lists 2 twice.
INDPTR = np.array([0, 2, 3, 5])
INDICES = np.array([1, 2, 0, 2, 2], np.int32)


def transposed():
    indptr, indices = np.zeros_like(INDPTR), np.empty_like(INDICES)
    transpose(INDPTR, INDICES, indptr, indices)
    return indptr, indices


def test_transpose():
    indptr, indices = transposed()
    assert indptr.tolist() == [0, 1, 2, 5]
    assert indices.tolist() == [1, 0, 0, 2, 2]


def test_mark_single_edges():
    indptr, indices = transposed()
    single = np.empty(5, np.bool_)
    mark_single_edges(0, 3, INDPTR, INDICES, indptr, indices, single)
    assert single.tolist() == [False, False, True, False, False]


def test_fingerprints_are_equal_where_every_edge_has_its_reverse():
    forward, backward = fingerprints(INDPTR, INDICES)
    assert forward != backward
    forward, backward = fingerprints(np.array([0, 2, 3, 4]), np.array([1, 2, 0, 0], np.int32))
    assert forward == backward
    # A cycle has as many edges from each vertex as to it, and is not undirected for that.
    forward, backward = fingerprints(np.array([0, 1, 2, 3]), np.array([1, 2, 0], np.int64))
    assert forward != backward


def test_estimate_shared_follows_the_direction_of_edges():
    # 0 lists 1 and 2, 1 lists 2: who lists 1 (that is 0) also lists what 1 lists (that is 2). Nobody lists 0.
    indptr, indices = np.array([0, 2, 3, 3]), np.array([1, 2, 2], np.int32)
    out_indptr, out_indices = np.zeros_like(indptr), np.empty_like(indices)
    transpose(indptr, indices, out_indptr, out_indices)
    shared = np.full(3, np.nan, np.float32)
    estimate_shared(0, 3, 8, np.uint64(5), indptr, indices, out_indptr, out_indices, shared)
    assert shared.tolist() == [0, 1, 0]
