import numpy as np
import pytest

from windrow.partition.balance_kernels import total_excess, weigh_parts
from windrow.partition.refine import symmetric_adjacency
from windrow.partition.refine_kernels import connect_parts, move_vertex, move_with_hill_climbing


def state_of(graph, assignment, num_parts, weights):
    connectivity = connect_parts(graph.indptr, graph.indices, graph.edge_weights, assignment, num_parts)
    sizes = np.bincount(assignment, minlength=num_parts).astype(np.int64)
    arrays = (graph.indptr, graph.indices, graph.edge_weights, weights, assignment, connectivity)
    return arrays, weigh_parts(weights, assignment, num_parts), sizes


def assert_sums_are_true(graph, arrays, part_weights, sizes):
    assignment, connectivity = arrays[4], arrays[5]
    fresh, fresh_weights, fresh_sizes = state_of(graph, assignment, len(sizes), arrays[3])
    assert (connectivity == fresh[5]).all()
    assert (part_weights == fresh_weights).all()
    assert (sizes == fresh_sizes).all()


def test_connectivity_equals_slow_count(random_graph):
    graph = random_graph(1, 20, 60)
    assignment = np.random.default_rng(1).integers(0, 3, 20).astype(np.int32)
    connectivity = connect_parts(graph.indptr, graph.indices, graph.edge_weights, assignment, 3)
    for vertex in range(20):
        neighbours = graph.indices[graph.indptr[vertex] : graph.indptr[vertex + 1]]
        assert connectivity[vertex].tolist() == np.bincount(assignment[neighbours], minlength=3).tolist()


def test_move_vertex_keeps_sums_true(random_graph):
    graph = random_graph(2, 20, 60)
    generator = np.random.default_rng(2)
    assignment = generator.integers(0, 3, 20).astype(np.int32)
    arrays, part_weights, sizes = state_of(
        graph, assignment, 3, generator.integers(0, 3, (20, 2)).astype(np.int32)
    )
    for vertex, target in zip(generator.integers(0, 20, 30), generator.integers(0, 3, 30), strict=True):
        if assignment[vertex] != target:
            move_vertex(*arrays, part_weights, sizes, vertex, target)
    assert_sums_are_true(graph, arrays, part_weights, sizes)


@pytest.mark.parametrize("seed", range(12))
def test_pass_never_worsens_excess_then_cut(random_graph, seed):
    graph = random_graph(seed, 60, 150)
    generator = np.random.default_rng(seed)
    weights = generator.integers(0, 3, (60, 2)).astype(np.int32)
    weights[:, 0] = 1
    assignment = generator.integers(0, 3, 60).astype(np.int32)
    limits = -(-weights.sum(axis=0, dtype=np.int64) // 3) + 1
    arrays, part_weights, sizes = state_of(graph, assignment, 3, weights)
    before, cut_before = total_excess(part_weights, limits), graph.cut(assignment)
    gained = move_with_hill_climbing(*arrays, part_weights, sizes, limits, limits + 1, np.uint64(seed), 50)
    after = total_excess(part_weights, limits)
    assert graph.cut(assignment) == cut_before - gained
    assert after < before - 1e-9 or (after <= before + 1e-9 and gained >= 0)
    assert sizes.min() > 0
    assert_sums_are_true(graph, arrays, part_weights, sizes)


def test_climbs_over_a_hill():
    # Two triangles joined by an edge, one vertex of each on the wrong side: every single move loses or breaks balance.
    edges = [(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5), (2, 3)]
    both = sorted([(b, a) for a, b in edges] + edges)
    indptr = np.searchsorted([a for a, _ in both], np.arange(7)).astype(np.int64)
    graph = symmetric_adjacency(indptr, np.array([b for _, b in both], np.int32))
    assignment = np.array([0, 0, 1, 0, 1, 1], np.int32)
    arrays, part_weights, sizes = state_of(graph, assignment, 2, np.ones((6, 1), np.int32))
    limits = np.array([3], np.int64)
    move_with_hill_climbing(*arrays, part_weights, sizes, limits, limits + 1, np.uint64(1), 50)
    assert graph.cut(assignment) == 1
    assert part_weights.ravel().tolist() == [3, 3]
