import numpy as np
import pytest

from windrow.partition.refine import symmetric_adjacency


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("seed", range(4))
def test_equals_the_set_of_undirected_edges(random_csc, seed, dtype):
    indptr, indices = random_csc(seed, 25, 70)
    graph = symmetric_adjacency(indptr, indices.astype(dtype))
    expected = set()
    for vertex in range(25):
        for neighbour in indices[indptr[vertex] : indptr[vertex + 1]].tolist():
            if neighbour != vertex:
                expected |= {(vertex, neighbour), (neighbour, vertex)}
    found = [(v, int(u)) for v in range(25) for u in graph.indices[graph.indptr[v] : graph.indptr[v + 1]]]
    assert found == sorted(expected)
    assert (graph.edge_weights == 1).all()


def test_cut_counts_each_undirected_edge_once(random_graph):
    graph = random_graph(3, 30, 90)
    assignment = np.random.default_rng(0).integers(0, 3, 30).astype(np.int32)
    slow = sum(
        assignment[v] != assignment[u]
        for v in range(30)
        for u in graph.indices[graph.indptr[v] : graph.indptr[v + 1]]
        if u < v
    )
    assert graph.cut(assignment) == slow


def test_graph_without_edges():
    graph = symmetric_adjacency(np.zeros(4, np.int64), np.empty(0, np.int32))
    assert graph.num_vertices == 3
    assert graph.cut(np.array([0, 1, 0], np.int32)) == 0
