"""One pass of streaming, against a pass that recounts everything for every vertex."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.partition.balance_kernels import stream_once, weigh_parts

NUM_VERTICES = 9

EDGES = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=40)
WEIGHTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=9, max_size=9)
POWERS_OF_TWO = st.sampled_from([1, 2, 4, 8, 16])
"""Limits: shares of them are exact in binary, so that ties are ties in the reference and in the kernel."""


def csc(edges: Sequence[tuple[int, int]], dtype: type = np.int32) -> tuple[np.ndarray, np.ndarray]:
    lists = [[source for source, destination in edges if destination == v] for v in range(NUM_VERTICES)]
    indptr = np.concatenate([[0], np.cumsum([len(sources) for sources in lists])]).astype(np.int64)
    return indptr, np.array([source for sources in lists for source in sources], dtype)


def reference(
    edges: Sequence[tuple[int, int]], weights: Sequence[Sequence[int]], given_parts: Sequence[int],
    means: Sequence[float], limits: Sequence[int], num_parts: int, crowding_cost: float, start: int, stop: int,
) -> list[int]:  # fmt: skip
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

        def score(part: int, vertex: int = vertex, held: list = held, weighed: list = weighed) -> float:
            neighbours = sum(v == vertex != u and assignment[u] == part for u, v in edges)
            load = 0.0
            for c in weighed:
                load += held[part][c] / means[c]
            return neighbours - crowding_cost * float(np.sqrt(load / max(len(weighed), 1)))

        def excess(target: int, held: list = held, weight: Sequence[int] = weight) -> Fraction:
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


@settings(deadline=None, max_examples=150)
@given(
    EDGES, WEIGHTS, st.lists(st.integers(-1, 2), min_size=9, max_size=9), st.tuples(POWERS_OF_TWO, POWERS_OF_TWO),
    st.sampled_from([0.0, 0.5, 1.7, 20.0]), st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted),
    st.sampled_from([np.int32, np.int64]),
)  # fmt: skip
def test_equals_the_reference(
    edges: list,
    weights: list,
    given_parts: list,
    limits: tuple,
    crowding_cost: float,
    span: list,
    dtype: type,
) -> None:
    indptr, indices = csc(edges, dtype)
    vertex_weights = np.array(weights, np.int32)
    assignment = np.array(given_parts, np.int32)
    part_weights = weigh_parts(vertex_weights, assignment, 3)
    means = np.maximum(vertex_weights.sum(axis=0), 1) / 3
    stream_once(
        indptr, indices, vertex_weights, assignment, part_weights, means, np.array(limits, np.int64),
        crowding_cost, *span,
    )  # fmt: skip
    expected = reference(edges, weights, given_parts, means.tolist(), limits, 3, crowding_cost, *span)
    assert assignment.tolist() == expected
    assert part_weights.tolist() == weigh_parts(vertex_weights, assignment, 3).tolist(), (
        "the sums are kept true"
    )


@pytest.mark.parametrize("cut_at", [0, 1, 4, 9])
def test_a_pass_may_be_cut_in_two(cut_at: int) -> None:
    edges = [(v, (v * 4 + 1) % 9) for v in range(9)] + [(v, (v + 3) % 9) for v in range(9)]
    indptr, indices = csc(edges)
    weights = np.ones((9, 1), np.int32)
    results = []
    for cuts in ([0, 9], [0, cut_at, 9]):
        assignment, sums = np.full(9, -1, np.int32), np.zeros((3, 1), np.int64)
        for start, stop in pairwise(cuts):
            stream_once(
                indptr, indices, weights, assignment, sums, np.array([3.0]), np.array([3]), 1.0, start, stop
            )
        results.append(assignment.tolist())
    assert results[0] == results[1]


def test_without_room_the_part_that_suffers_least_takes_the_vertex() -> None:
    indptr, indices = csc([])
    weights = np.full((9, 1), 4, np.int32)
    assignment = np.array([-1, 0, 0, 1, 2, 2, 2, -1, -1], np.int32)
    sums = weigh_parts(weights, assignment, 3)
    stream_once(indptr, indices, weights, assignment, sums, np.array([12.0]), np.array([6]), 1.0, 0, 1)
    assert assignment[0] == 1
    assert sums.ravel().tolist() == [8, 8, 12]


def test_a_self_loop_counts_for_no_part() -> None:
    indptr, indices = csc([(0, 0)] * 5)
    weights = np.ones((9, 1), np.int32)
    assignment = np.array([0] + [-1] * 8, np.int32)
    sums = np.array([[1], [0]], np.int64)
    sums[0] = 5
    stream_once(indptr, indices, weights, assignment, sums, np.array([4.5]), np.array([9]), 1.0, 0, 1)
    assert assignment[0] == 1
