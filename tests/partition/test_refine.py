"""Refinement: never worse in excess, then cut; and the loops that it is made of."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.partition.balance_kernels import excess_change, total_excess
from windrow.partition.constraints import weigh_parts
from windrow.partition.graph_kernels import match_inside_parts
from windrow.partition.refine import badness, balance_limits, contract, refine, start_state, symmetric_adjacency
from windrow.partition.refine_kernels import move_with_hill_climbing


@given(st.integers(1, 9), st.floats(0, 1), st.lists(st.integers(0, 9), min_size=1, max_size=20))
def test_limits_can_always_be_met_and_follow_the_tolerance(num_parts, imbalance, column):
    weights = np.array([[1, *pair] for pair in zip(column, strict=True)], np.int32)
    totals = weights.sum(axis=0)
    limits = balance_limits(totals, num_parts, imbalance)
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
        result, again = (
            refine(graph, start, weights, num_parts, imbalance=0.05, seed=seed, other=second) for _ in range(2)
        )
        assert (again == result).all()
        before, after = (badness(graph, weights, parts, num_parts, 0.05) for parts in (start, result))
        assert after <= before
        assert result.dtype == np.int32
    assert (start == kept).all()


def test_finds_good_cuts_of_a_ring_of_cliques(ring_of_cliques):
    graph = ring_of_cliques(16, 8)
    weights = np.ones((128, 1), np.int32)
    cuts = []
    for seed in range(5):
        start = np.random.default_rng(seed).permutation(np.arange(128) % 2).astype(np.int32)
        result = refine(graph, start, weights, 2, imbalance=0.05, seed=seed, cycles=10)
        excess, cut = badness(graph, weights, result, 2, 0.05)
        assert excess == 0
        cuts.append(cut)
    # The best is 2, and the starts cut 230.
    assert min(cuts) <= 6
    assert max(cuts) <= 10
    assert sum(cuts) <= 40


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
    assert badness(graph, weights, result, 2, 0.05)[0] == 0


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
    merged = contract(graph, coarse, count)
    dense = np.zeros((count, count), np.int64)
    for vertex in range(40):
        for neighbour in graph.indices[graph.indptr[vertex] : graph.indptr[vertex + 1]]:
            dense[coarse[vertex], coarse[neighbour]] += coarse[vertex] != coarse[neighbour]
    found = np.zeros_like(dense)
    for vertex in range(count):
        entries = slice(merged.indptr[vertex], merged.indptr[vertex + 1])
        found[vertex, merged.indices[entries]] = merged.edge_weights[entries]
    assert (found == dense).all()
    assignment = generator.integers(0, 3, count).astype(np.int32)
    assert merged.cut(assignment) == graph.cut(assignment[coarse])


def weighed_parts(seed):
    generator = np.random.default_rng(seed)
    weights = generator.integers(0, 4, (20, 3)).astype(np.int32)
    assignment = generator.integers(0, 3, 20).astype(np.int32)
    return weights, assignment, np.array([9, 12, 10], np.int64)


@pytest.mark.parametrize("seed", range(5))
def test_excess_change_is_the_difference_of_totals(seed):
    weights, assignment, limits = weighed_parts(seed)
    before = weigh_parts(weights, assignment, 3)
    for vertex in range(20):
        for target in range(3):
            if target == assignment[vertex]:
                continue
            moved = assignment.copy()
            moved[vertex] = target
            difference = total_excess(weigh_parts(weights, moved, 3), limits) - total_excess(before, limits)
            change = excess_change(weights, before, limits, vertex, assignment[vertex], target)
            assert change == pytest.approx(difference, abs=1e-12)


def assert_sums_are_true(graph, state):
    fresh = start_state(graph, state.vertex_weights, state.assignment, len(state.part_sizes))
    for name in ("connectivity", "part_weights", "part_sizes"):
        assert (getattr(state, name) == getattr(fresh, name)).all()


@pytest.mark.parametrize("seed", range(12))
def test_pass_never_worsens_excess_then_cut(random_graph, seed):
    graph = random_graph(seed, 60, 150)
    generator = np.random.default_rng(seed)
    weights = generator.integers(0, 3, (60, 2)).astype(np.int32)
    weights[:, 0] = 1
    assignment = generator.integers(0, 3, 60).astype(np.int32)
    limits = -(-weights.sum(axis=0, dtype=np.int64) // 3) + 1
    state = start_state(graph, weights, assignment, 3)
    before, cut_before = total_excess(state.part_weights, limits), graph.cut(assignment)
    gained = move_with_hill_climbing(state, limits, limits + 1, np.uint64(seed), 50)
    after = total_excess(state.part_weights, limits)
    assert graph.cut(assignment) == cut_before - gained
    assert after < before - 1e-9 or (after <= before + 1e-9 and gained >= 0)
    assert state.part_sizes.min() > 0
    assert_sums_are_true(graph, state)


def test_climbs_over_a_hill():
    # Two triangles joined by an edge, one vertex of each on the wrong side: every single move loses or breaks balance.
    edges = [(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5), (2, 3)]
    both = sorted([(b, a) for a, b in edges] + edges)
    indptr = np.searchsorted([a for a, _ in both], np.arange(7)).astype(np.int64)
    graph = symmetric_adjacency(indptr, np.array([b for _, b in both], np.int32))
    assignment = np.array([0, 0, 1, 0, 1, 1], np.int32)
    state = start_state(graph, np.ones((6, 1), np.int32), assignment, 2)
    limits = np.array([3], np.int64)
    move_with_hill_climbing(state, limits, limits + 1, np.uint64(1), 50)
    assert graph.cut(assignment) == 1
    assert state.part_weights.ravel().tolist() == [3, 3]
