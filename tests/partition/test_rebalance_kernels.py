import numpy as np
import pytest

from windrow.partition.balance_kernels import total_excess, weigh_parts
from windrow.partition.refine_kernels import connect_parts, rebalance


def run(graph, assignment, weights, limits, num_parts):
    connectivity = connect_parts(graph.indptr, graph.indices, graph.edge_weights, assignment, num_parts)
    part_weights = weigh_parts(weights, assignment, num_parts)
    sizes = np.bincount(assignment, minlength=num_parts).astype(np.int64)
    arrays = (graph.indptr, graph.indices, graph.edge_weights, weights, assignment, connectivity)
    moves = rebalance(*arrays, part_weights, sizes, limits, 10)
    assert (part_weights == weigh_parts(weights, assignment, num_parts)).all()
    assert (sizes == np.bincount(assignment, minlength=num_parts)).all()
    return moves, part_weights


@pytest.mark.parametrize("seed", range(8))
def test_reaches_the_limits_of_one_constraint(random_graph, seed):
    graph = random_graph(seed, 50, 120)
    assignment = (np.random.default_rng(seed).random(50) < 0.2).astype(np.int32)
    _, part_weights = run(graph, assignment, np.ones((50, 1), np.int32), np.array([26], np.int64), 2)
    assert part_weights.max() <= 26


@pytest.mark.parametrize("seed", range(8))
def test_never_raises_the_excess_of_several(random_graph, seed):
    graph = random_graph(seed, 50, 120)
    generator = np.random.default_rng(seed)
    weights = generator.integers(0, 5, (50, 3)).astype(np.int32)
    assignment = generator.integers(0, 4, 50).astype(np.int32)
    limits = -(-weights.sum(axis=0, dtype=np.int64) // 4)
    before = total_excess(weigh_parts(weights, assignment, 4), limits)
    moves, part_weights = run(graph, assignment, weights, limits, 4)
    assert total_excess(part_weights, limits) < before or moves == 0


def test_leaves_a_balanced_partition_alone(random_graph):
    graph = random_graph(0, 10, 20)
    assignment = np.array([0, 1] * 5, np.int32)
    moves, _ = run(graph, assignment, np.ones((10, 1), np.int32), np.array([5], np.int64), 2)
    assert moves == 0
    assert assignment.tolist() == [0, 1] * 5
