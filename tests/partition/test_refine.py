import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.partition.refine import balance_limits, excess, refine


@settings(deadline=None)
@given(st.integers(1, 9), st.floats(0, 1), st.lists(st.integers(0, 9), min_size=1, max_size=20))
def test_limits_can_always_be_met_and_follow_the_tolerance(num_parts, imbalance, column):
    weights = np.array([[1, *pair] for pair in zip(column, strict=True)], np.int32)
    totals = weights.sum(axis=0)
    limits = balance_limits(weights, num_parts, imbalance)
    assert (limits * num_parts >= totals).all()
    assert (limits <= np.maximum((1 + imbalance) * totals / num_parts + 1e-6, totals // num_parts + 1)).all()


@pytest.mark.parametrize("num_parts", [2, 5])
@pytest.mark.parametrize("seed", range(5))
def test_never_worse_in_excess_then_cut(random_graph, seed, num_parts):
    graph = random_graph(seed, 300, 900)
    generator = np.random.default_rng(seed)
    weights = generator.integers(0, 3, (300, 3)).astype(np.int32)
    start = generator.integers(0, num_parts, 300).astype(np.int32)
    other = generator.integers(0, num_parts, 300).astype(np.int32)
    kept = start.copy()
    for second in (None, other):
        result = refine(graph, start, weights, num_parts, imbalance=0.05, seed=seed, other=second)
        before = (round(excess(weights, start, num_parts, 0.05), 9), graph.cut(start))
        after = (round(excess(weights, result, num_parts, 0.05), 9), graph.cut(result))
        assert after <= before
        assert result.dtype == np.int32
    assert (start == kept).all()


def test_equal_seeds_give_equal_parts(random_graph):
    graph = random_graph(1, 300, 900)
    start = np.arange(300, dtype=np.int32) % 3
    weights = np.ones((300, 1), np.int32)
    one, two = (refine(graph, start, weights, 3, imbalance=0.03, seed=7) for _ in range(2))
    assert (one == two).all()


def test_finds_the_best_cut_of_a_ring_of_cliques(ring_of_cliques):
    graph = ring_of_cliques(16, 8)
    start = np.random.default_rng(0).permutation(np.arange(128) % 2).astype(np.int32)
    result = refine(graph, start, np.ones((128, 1), np.int32), 2, imbalance=0.05, seed=0, cycles=10)
    assert graph.cut(result) <= 6
    assert excess(np.ones((128, 1), np.int32), result, 2, 0.05) == 0


def test_combining_is_better_than_both(ring_of_cliques):
    graph = ring_of_cliques(8, 8)
    weights = np.ones((64, 1), np.int32)
    halves = (np.arange(64) // 32).astype(np.int32)
    spoilt_here, spoilt_there = halves.copy(), halves.copy()
    spoilt_here[[2, 34]] = [1, 0]
    spoilt_there[[12, 50]] = [1, 0]
    result = refine(graph, spoilt_here, weights, 2, imbalance=0.0, seed=0, other=spoilt_there)
    assert graph.cut(result) == 2


def test_restores_balance_in_four_constraints(random_graph):
    graph = random_graph(4, 400, 1600)
    generator = np.random.default_rng(4)
    roles = generator.integers(0, 3, 400)
    weights = np.stack([roles == 0, roles == 1, roles == 2, np.diff(graph.indptr)], axis=1).astype(np.int32)
    start = (generator.random(400) < 0.3).astype(np.int32)
    result = refine(graph, start, weights, 2, imbalance=0.05, seed=0)
    assert excess(weights, result, 2, 0.05) == 0
