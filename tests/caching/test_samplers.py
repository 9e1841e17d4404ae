"""Lists read the other way round, against loops in Python."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.caching.vip import find_samplers, in_parallel


def lists_of(edges, num_vertices, dtype=np.int32):
    """CSC of (listed vertex, vertex whose list it is in), lists falling."""
    lists = [[] for _ in range(num_vertices)]
    for source, destination in edges:
        lists[destination].append(source)
    lists = [sorted(one, reverse=True) for one in lists]
    indptr = np.concatenate([[0], np.cumsum([len(one) for one in lists])]).astype(np.int64)
    return indptr, np.array([entry for one in lists for entry in one], dtype)


def complete(num_vertices):
    return [(a, b) for a in range(num_vertices) for b in range(num_vertices) if a != b]


edge_lists = st.integers(1, 9).flatmap(
    lambda n: st.tuples(
        st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=40)
    )
)


@given(edge_lists)
def test_every_entry_is_turned_round(graph):
    num_vertices, edges = graph
    samplers = find_samplers(*lists_of(edges, num_vertices))
    for vertex in range(num_vertices):
        entries = slice(samplers.indptr[vertex], samplers.indptr[vertex + 1])
        found = samplers.indices[entries].tolist()
        assert sorted(found) == sorted(destination for source, destination in edges if source == vertex)
        listed = {source for source, destination in edges if destination == vertex}
        single = [False] * len(found) if samplers.single is None else samplers.single[entries].tolist()
        assert single == [other not in listed for other in found]


@given(edge_lists)
def test_an_undirected_graph_is_not_copied(graph):
    num_vertices, edges = graph
    indptr, indices = lists_of(edges + [(b, a) for a, b in edges if a != b], num_vertices, np.int64)
    samplers = find_samplers(indptr, indices)
    assert samplers.indptr is indptr
    assert samplers.indices is indices
    assert samplers.single is None


def test_one_edge_without_its_reverse_makes_a_graph_directed():
    edges = [edge for edge in complete(6) if edge != (4, 2)]
    samplers = find_samplers(*lists_of(edges, 6))
    assert samplers.single is not None
    assert samplers.single.sum() == 1


def test_in_a_complete_graph_neighbours_share_all():
    assert (find_samplers(*lists_of(complete(8), 8)).shared == 1).all()


def test_in_a_tree_neighbours_share_nothing():
    edges = [(vertex, (vertex - 1) // 2) for vertex in range(1, 40)]
    samplers = find_samplers(*lists_of(edges + [(b, a) for a, b in edges], 40))
    assert (samplers.shared == 0).all()


def test_what_neighbours_share_is_estimated_without_bias():
    generator = np.random.default_rng(0)
    adjacent = np.triu(generator.random((300, 300)) < 0.1, 1)
    adjacent |= adjacent.T
    edges = [(int(a), int(b)) for a, b in np.argwhere(adjacent)]
    samplers = find_samplers(*lists_of(edges, 300))
    degrees = adjacent.sum(1)
    closed = np.einsum("ab,bc,ca->a", adjacent * 1.0, adjacent * 1.0, adjacent * 1.0)
    exact = (closed / (degrees * (degrees - 1))).mean()
    # 300 * 8 draws of probability 0.1: a standard deviation of 0.006.
    assert samplers.shared.mean() == pytest.approx(exact, abs=0.025)


def test_long_lists_are_searched_in_part():
    # 200 entries each, in 64 of which a neighbour is looked for; what is found counts 200 / 64 times.
    samplers = find_samplers(*lists_of(complete(201), 201))
    assert 0.7 < samplers.shared.mean() <= 1


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_vertex_is_done_once_on_any_number_of_threads(threads):
    before = torch.get_num_threads()
    done = np.zeros(50, np.int64)

    def work(first, last):
        done[first:last] += 1

    indptr = np.concatenate([np.zeros(20), np.arange(31) * 100]).astype(np.int64)
    try:
        torch.set_num_threads(threads)
        in_parallel(work, indptr)
    finally:
        torch.set_num_threads(before)
    assert (done == 1).all()


def test_an_error_in_a_thread_is_raised():
    def work(first, last):
        raise ValueError(f"{first} to {last}")

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with pytest.raises(ValueError, match="to"):
            in_parallel(work, np.arange(10))
    finally:
        torch.set_num_threads(before)


def test_a_graph_without_vertices():
    samplers = find_samplers(np.zeros(1, np.int64), np.zeros(0, np.int32))
    assert len(samplers.shared) == 0
