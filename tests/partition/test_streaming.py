"""Streaming: balance, and one pass against a pass that recounts everything for every vertex."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.comm.errors import DataError
from windrow.comm.loopback import Loopback
from windrow.comm.rows import near_equal_split
from windrow.partition.balance_kernels import stream_once
from windrow.partition.constraints import weigh_parts
from windrow.partition.options import PartitionOptions
from windrow.partition.partitioners import _fennel_assignment, partition_on_ranks
from windrow.partition.refine import balance_limits


def options(num_parts, imbalance, passes=5):
    return PartitionOptions(num_parts=num_parts, imbalance=imbalance, stream_passes=passes)


@pytest.mark.parametrize("passes", [1, 4])
@pytest.mark.parametrize("num_parts", [2, 7])
@pytest.mark.parametrize("seed", range(3))
def test_keeps_one_unit_constraint_within_its_limit(random_csc, seed, num_parts, passes):
    indptr, indices = random_csc(seed, 500, 2000)
    weights = np.ones((500, 1), np.int32)
    assignment = _fennel_assignment(indptr, indices, weights, options(num_parts, 0.05, passes), None)
    limit = balance_limits(weights.sum(axis=0), num_parts, 0.05)[0]
    assert np.bincount(assignment, minlength=num_parts).max() <= limit


@pytest.mark.parametrize("seed", range(3))
def test_roles_that_exclude_each_other_are_all_balanced(random_csc, seed):
    indptr, indices = random_csc(seed, 600, 2400)
    roles = np.random.default_rng(seed).integers(0, 3, 600)
    weights = np.stack([roles == role for role in range(3)], axis=1).astype(np.int32)
    assignment = _fennel_assignment(indptr, indices, weights, options(4, 0.03), None)
    limits = balance_limits(weights.sum(axis=0), 4, 0.03)
    for role in range(3):
        assert np.bincount(assignment[roles == role], minlength=4).max() <= limits[role]


def test_restreaming_keeps_cliques_together(ring_of_cliques):
    graph = ring_of_cliques(16, 8)
    weights = np.ones((128, 1), np.int32)
    streamed = _fennel_assignment(graph.indptr, graph.indices, weights, options(2, 0.05), None)
    dealt = (np.arange(128) % 2).astype(np.int32)
    assert graph.cut(streamed) < graph.cut(dealt) / 4


@pytest.mark.parametrize("seed", range(3))
def test_ranks_keep_to_the_limits_together_and_cut_little(spmd, ring_of_cliques, seed):
    graph = ring_of_cliques(32, 16)
    roles = np.random.default_rng(seed).integers(0, 3, 512)
    chosen = PartitionOptions(num_parts=4, method="fennel", imbalance=0.1)

    def body(world):
        bounds = near_equal_split(512, world.size)
        first, stop = bounds[world.rank : world.rank + 2]
        indptr = graph.indptr[first : stop + 1] - graph.indptr[first]
        indices = graph.indices[graph.indptr[first] : graph.indptr[stop]]
        train, validation = (np.flatnonzero(roles[first:stop] == role) for role in (0, 1))
        return partition_on_ranks(world, bounds, indptr, indices, chosen, train_ids=train, validation_ids=validation)

    found = spmd(body)
    for assignment in found:
        assert np.array_equal(assignment, found[0])
    for members in (roles == role for role in range(3)):
        most = np.bincount(found[0][members], minlength=4).max()
        assert most <= balance_limits(members.sum(keepdims=True), 4, 0.1)[0]
    dealt = (np.arange(512) % 4).astype(np.int32)
    assert graph.cut(found[0]) < graph.cut(dealt) / 2


def test_a_part_without_training_vertices_is_refused_on_ranks():
    indptr, indices = csc([(one, other) for one in range(3) for other in range(3) if one != other])
    chosen = PartitionOptions(num_parts=3, method="fennel", balance=("vertices",), imbalance=0.0)
    with pytest.raises(DataError, match="has got no training vertices: use fewer parts"):
        partition_on_ranks(
            Loopback.single(), (0, 9), indptr, indices, chosen, train_ids=np.arange(3), validation_ids=indices[:0]
        )


def test_progress_rises_to_one(random_csc):
    seen = []
    weights, report = np.ones((300, 1), np.int32), lambda *step: seen.append(step)
    _fennel_assignment(*random_csc(0, 300, 600), weights, options(2, 0.05), report)
    shares = [share for _, share in seen]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


NUM_VERTICES = 9

EDGES = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=40)
WEIGHTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=9, max_size=9)
POWERS_OF_TWO = st.sampled_from([1, 2, 4, 8, 16])
"""Limits: shares of them are exact in binary, so that ties are ties in the reference and in the kernel."""


def csc(edges, dtype=np.int32):
    lists = [[source for source, destination in edges if destination == v] for v in range(NUM_VERTICES)]
    indptr = np.concatenate([[0], np.cumsum([len(sources) for sources in lists])]).astype(np.int64)
    return indptr, np.array([source for sources in lists for source in sources], dtype)


def reference(
    edges, weights, given_parts,
    means, limits, num_parts, crowding_cost, start, stop,
):  # fmt: skip
    """The slow, obvious way: every vertex looks at all edges and at all members of all parts."""
    assignment = list(given_parts)
    constraints = range(len(limits))
    for vertex in range(start, stop):
        assignment[vertex] = -1
        weight = weights[vertex]
        held = [
            [sum(weights[v][c] for v in range(NUM_VERTICES) if assignment[v] == part) for c in constraints]
            for part in range(num_parts)
        ]
        weighed = [c for c in constraints if weight[c] > 0]

        def score(part, vertex=vertex, held=held, weighed=weighed):
            neighbours = sum(v == vertex != u and assignment[u] == part for u, v in edges)
            load = 0.0
            for c in weighed:
                load += held[part][c] / means[c]
            return neighbours - crowding_cost * float(np.sqrt(load / max(len(weighed), 1)))

        def excess(target, held=held, weight=weight):
            return sum(
                (
                    Fraction(max(0, held[part][c] + weight[c] * (part == target) - limits[c]), limits[c])
                    for part in range(num_parts)
                    for c in constraints
                ),
                Fraction(0),
            )

        with_room = [p for p in range(num_parts) if all(held[p][c] + weight[c] <= limits[c] for c in weighed)]
        assignment[vertex] = max(with_room, key=score) if with_room else min(range(num_parts), key=excess)
    return assignment


@settings(max_examples=150)
@given(
    EDGES, WEIGHTS, st.lists(st.integers(-1, 2), min_size=9, max_size=9), st.tuples(POWERS_OF_TWO, POWERS_OF_TWO),
    st.sampled_from([0.0, 0.5, 1.7, 20.0]), st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted),
    st.sampled_from([np.int32, np.int64]),
)  # fmt: skip
def test_equals_the_reference(edges, weights, given_parts, limits, crowding_cost, span, dtype):
    indptr, indices = csc(edges, dtype)
    vertex_weights = np.array(weights, np.int32)
    assignment = np.array(given_parts, np.int32)
    placed = assignment >= 0
    part_weights = weigh_parts(vertex_weights[placed], assignment[placed], 3)
    means = np.maximum(vertex_weights.sum(axis=0), 1) / 3
    stream_once(
        indptr, indices, vertex_weights, assignment, part_weights, means, np.array(limits, np.int64),
        crowding_cost, 0, *span,
    )  # fmt: skip
    expected = reference(edges, weights, given_parts, means.tolist(), limits, 3, crowding_cost, *span)
    assert assignment.tolist() == expected
    placed = assignment >= 0
    assert part_weights.tolist() == weigh_parts(vertex_weights[placed], assignment[placed], 3).tolist(), (
        "the sums are kept true"
    )
