import numpy as np
import pytest

from windrow.partition.graph_kernels import merge_directions, relabel, transpose


def pairs(indptr, indices):
    return [(int(u), v) for v in range(len(indptr) - 1) for u in indices[indptr[v] : indptr[v + 1]]]


@pytest.mark.parametrize("seed", range(5))
def test_transpose_turns_every_edge_and_sorts(random_csc, seed):
    indptr, indices = random_csc(seed, 20, 60)
    turned = transpose(indptr, indices)
    assert sorted(pairs(*turned)) == sorted((v, u) for u, v in pairs(indptr, indices))
    assert all((np.diff(turned[1][a:b]) >= 0).all() for a, b in zip(turned[0], turned[0][1:], strict=False))


@pytest.mark.parametrize("seed", range(5))
def test_merge_is_the_union_without_loops(random_csc, seed):
    first = transpose(*random_csc(seed, 15, 40))
    second = transpose(*random_csc(seed + 100, 15, 40))
    expected = sorted({(u, v) for u, v in pairs(*first) + pairs(*second) if u != v})
    assert sorted(pairs(*merge_directions(*first, *second))) == expected


@pytest.mark.parametrize("seed", range(3))
def test_relabel_names_the_same_edges(random_csc, seed):
    indptr, indices = random_csc(seed, 15, 40)
    order = np.random.default_rng(seed).permutation(15)
    place = np.argsort(order)
    expected = sorted((int(place[u]), int(place[v])) for u, v in pairs(indptr, indices))
    assert sorted(pairs(*relabel(indptr, indices, order, place))) == expected
