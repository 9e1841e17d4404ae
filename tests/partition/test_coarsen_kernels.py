import numpy as np
import pytest

from windrow.partition.graph_kernels import contract, match_inside_parts
from windrow.partition.refine import Adjacency


@pytest.mark.parametrize("seed", range(6))
def test_matching_pairs_light_vertices_of_one_part(random_graph, seed):
    graph = random_graph(seed, 60, 150)
    generator = np.random.default_rng(seed)
    weights = generator.integers(1, 4, (60, 2)).astype(np.int32)
    regions = generator.integers(0, 3, 60).astype(np.int32)
    heaviest = np.array([5, 5], np.int64)
    coarse, count = match_inside_parts(
        graph.indptr, graph.indices, graph.edge_weights, weights, regions, heaviest, generator.permutation(60)
    )
    assert sorted(set(coarse.tolist())) == list(range(count))
    for merged in range(count):
        members = np.flatnonzero(coarse == merged)
        assert len(members) <= 2
        assert len(set(regions[members].tolist())) == 1
        assert len(members) == 1 or (weights[members].sum(axis=0) <= heaviest).all()


@pytest.mark.parametrize("seed", range(6))
def test_contraction_keeps_every_cut(random_graph, seed):
    graph = random_graph(seed, 40, 120)
    generator = np.random.default_rng(seed)
    coarse = np.unique(generator.integers(0, 12, 40), return_inverse=True)[1].astype(np.int32)
    count = int(coarse.max()) + 1
    indptr, indices, edge_weights = contract(graph.indptr, graph.indices, graph.edge_weights, coarse, count)
    merged = Adjacency(indptr=indptr, indices=indices, edge_weights=edge_weights)
    dense = np.zeros((count, count), np.int64)
    for vertex in range(40):
        for neighbour in graph.indices[graph.indptr[vertex] : graph.indptr[vertex + 1]]:
            dense[coarse[vertex], coarse[neighbour]] += coarse[vertex] != coarse[neighbour]
    found = np.zeros_like(dense)
    for vertex in range(count):
        found[vertex, indices[indptr[vertex] : indptr[vertex + 1]]] = edge_weights[
            indptr[vertex] : indptr[vertex + 1]
        ]
    assert (found == dense).all()
    assignment = generator.integers(0, 3, count).astype(np.int32)
    assert merged.cut(assignment) == graph.cut(assignment[coarse])
