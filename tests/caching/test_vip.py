"""Lists read the other way round; inclusion probabilities: closed forms, reachability, the formula as loops."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.caching.vip import CERTAIN, COMMON_SHARE, Demand, find_samplers, inclusion_probabilities


def csc(lists, dtype=np.int32):
    indptr = np.concatenate([[0], np.cumsum([len(one) for one in lists])]).astype(np.int64)
    return indptr, np.array([entry for one in lists for entry in one], dtype)


def lists_of(edges, num_vertices, dtype=np.int32):
    """CSC of (listed vertex, vertex whose list it is in), lists falling."""
    lists = [[] for _ in range(num_vertices)]
    for source, destination in edges:
        lists[destination].append(source)
    return csc([sorted(one, reverse=True) for one in lists], dtype)


def complete(num_vertices):
    return [(a, b) for a in range(num_vertices) for b in range(num_vertices) if a != b]


edge_lists = st.integers(1, 9).flatmap(
    lambda n: st.tuples(st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=40))
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


def test_what_neighbours_share_by_example():
    assert (find_samplers(*lists_of(complete(8), 8)).shared == 1).all()
    tree = [(vertex, (vertex - 1) // 2) for vertex in range(1, 40)]
    assert (find_samplers(*lists_of(tree + [(b, a) for a, b in tree], 40)).shared == 0).all()
    # 0 lists 1 and 2, 1 lists 2: who lists 1 (that is 0) also lists what 1 lists (that is 2). Nobody lists 0.
    assert find_samplers(*lists_of([(1, 0), (2, 0), (2, 1)], 3)).shared.tolist() == [0, 1, 0]
    # One edge lacks its reverse, so this is a directed graph.
    assert find_samplers(*lists_of([edge for edge in complete(6) if edge != (4, 2)], 6)).single.sum() == 1
    assert len(find_samplers(np.zeros(1, np.int64), np.zeros(0, np.int32)).shared) == 0


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


def demand_for(lists, seeds, *, steps, fanouts, dtype=np.int32):
    indptr, indices = csc(lists, dtype)
    seeds = np.array(seeds, np.int64)
    return Demand(indptr=indptr, indices=indices, own=(0, 0), seeds=seeds, steps=steps, fanouts=fanouts)


def both_ways(num_vertices, pairs):
    lists = [[] for _ in range(num_vertices)]
    for a, b in pairs:
        lists[a].append(b)
        lists[b].append(a)
    return lists


def star(leaves):
    """Vertex 0 is the hub."""
    return both_ways(leaves + 1, [(0, leaf) for leaf in range(1, leaves + 1)])


def complete_lists(num_vertices):
    return [[other for other in range(num_vertices) if other != vertex] for vertex in range(num_vertices)]


def total(lists, seeds, *, steps, fanouts):
    return inclusion_probabilities(demand_for(lists, seeds, steps=steps, fanouts=fanouts))[-1]


def distances(lists, seed):
    """Hops from a seed to each vertex that it reaches."""
    found, frontier, hop = {seed: 0}, [seed], 0
    while frontier:
        hop += 1
        frontier = [entry for vertex in frontier for entry in lists[vertex]]
        frontier = [entry for entry in dict.fromkeys(frontier) if entry not in found]
        found |= dict.fromkeys(frontier, hop)
    return found


# ---- closed forms


def test_stars_and_complete_graphs():
    found = total(star(5), range(1, 6), steps=4, fanouts=(1,))
    assert found[0] == pytest.approx(1 - 0.75**5)
    assert found[1:] == pytest.approx(0.25)
    assert total(star(5), [0], steps=4, fanouts=(2,))[1:] == pytest.approx(0.25 * 2 / 5)
    # Drawn anew at the second hop, by the same seed.
    assert total(star(5), [0], steps=4, fanouts=(2, 3))[1:] == pytest.approx(0.25 * (1 - 3 / 5 * 2 / 5))
    assert total(complete_lists(6), range(6), steps=5, fanouts=(-1,)) == pytest.approx(1 - 0.8**6)
    found = total(complete_lists(6), range(6), steps=5, fanouts=(2,))
    assert found == pytest.approx(1 - 0.8 * (1 - 0.2 * 2 / 5) ** 5)


def test_a_seed_does_not_find_itself():
    hops = inclusion_probabilities(demand_for(star(5), [1], steps=4, fanouts=(1, 2, 2)))
    for hop in hops:
        assert hop[1] == pytest.approx(0.25)
    assert hops[1][0] == pytest.approx(0.25)
    assert hops[2][2:] == pytest.approx(0.25 * 2 / 5)


def test_a_path_is_walked_one_vertex_per_hop():
    path = both_ways(6, [(vertex, vertex + 1) for vertex in range(5)])
    for fanouts in ((-1,), (-1, 2), (2, 3, -1), (2, 2, 2, 2)):
        expected = [1 / 3] * (len(fanouts) + 1) + [0] * (5 - len(fanouts))
        assert total(path, [0], steps=3, fanouts=fanouts) == pytest.approx(expected)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=25), st.data())
def test_two_hops_of_all_neighbours_are_exact_on_trees(parents, data):
    size = len(parents) + 1
    tree = both_ways(size, [(vertex, parent % vertex) for vertex, parent in enumerate(parents, 1)])
    seeds = data.draw(st.lists(st.integers(0, size - 1), unique=True))
    near = [distances(tree, seed) for seed in seeds]
    expected = [1 - 0.9 ** sum(found.get(vertex, 9) <= 2 for found in near) for vertex in range(size)]
    assert total(tree, seeds, steps=10, fanouts=(-1, size)) == pytest.approx(expected, abs=1e-12)


def test_repeated_entries_are_as_many_chances():
    lists = [[1, 1, 1, 2], [], []]
    assert total(lists, [0], steps=2, fanouts=(2,)) == pytest.approx([0.5, 0.5 * (1 - 0.5**3), 0.25])
    assert total(lists, [0], steps=2, fanouts=(4,)) == pytest.approx([0.5, 0.5, 0.5])


# ---- any graph

graphs = st.integers(1, 8).flatmap(
    lambda n: st.lists(st.lists(st.integers(0, n - 1), max_size=8).map(sorted), min_size=n, max_size=n)
)
fanout_lists = st.lists(st.sampled_from([-1, 1, 2, 3, 5]), min_size=1, max_size=4).map(tuple)


@given(graphs, st.booleans(), st.integers(1, 4), st.data())
def test_all_neighbours_in_one_step_are_exactly_those_within_reach(lists, undirected, hops, data):
    if undirected:
        lists = both_ways(
            len(lists), [(vertex, entry) for vertex, one in enumerate(lists) for entry in one if entry > vertex]
        )
        lists = [sorted(one) for one in lists]
    seeds = data.draw(st.lists(st.integers(0, len(lists) - 1), unique=True))
    reached = [distances(lists, seed) for seed in seeds]
    probabilities = inclusion_probabilities(demand_for(lists, seeds, steps=1, fanouts=(-1, 100, -1, 8)[:hops]))
    for hop, found in enumerate(probabilities):
        within = [any(one.get(vertex, 99) <= hop for one in reached) for vertex in range(len(lists))]
        assert found.tolist() == [float(one) for one in within]


@given(graphs, fanout_lists, st.integers(1, 5), st.data())
def test_they_are_probabilities_that_never_fall(lists, fanouts, steps, data):
    seeds = data.draw(st.lists(st.integers(0, len(lists) - 1), unique=True))
    hops = inclusion_probabilities(demand_for(lists, seeds, steps=steps, fanouts=fanouts))
    assert len(hops) == len(fanouts) + 1
    assert hops[0].tolist() == [vertex in seeds and 1 / steps for vertex in range(len(lists))]
    assert np.isfinite(hops).all()
    assert (np.diff(hops, axis=0) >= 0).all()
    assert hops[-1].max() <= 1
    reached = set().union(*(distances(lists, seed).items() for seed in seeds)) if seeds else set()
    within = {vertex for vertex, hop in reached if hop <= len(fanouts)}
    assert set(np.flatnonzero(hops[-1]).tolist()) <= within


def kinds_of(kinds, entries, wanted):
    """The types of those of some entries that are one vertex."""
    return [kind for kind, entry in zip(kinds, entries, strict=True) if entry == wanted]


def slow_probabilities(demand):
    """The formulas of the module, edge by edge."""
    n, fanouts = demand.num_vertices, demand.fanouts
    lists = [demand.indices[demand.indptr[v] : demand.indptr[v + 1]].tolist() for v in range(n)]
    kinds = np.zeros(len(demand.indices), int) if demand.edge_type is None else demand.edge_type
    kinds = [kinds[demand.indptr[v] : demand.indptr[v + 1]].tolist() for v in range(n)]
    overlap = COMMON_SHARE * find_samplers(demand.indptr, demand.indices).shared.astype(float)

    def drawn(hop, v, kind=None):
        """Of the part of v's list that is of a type; None: of its average part."""
        length = len(lists[v]) // max(1, len(set(kinds[v]))) if kind is None else kinds[v].count(kind)
        return 1.0 if fanouts[hop - 1] < 0 else min(1.0, fanouts[hop - 1] / max(1, length))

    def by(hop, i, v, *some_kinds):
        """That v, found at hop i, draws one of as many entries of these types by a hop."""
        return 1 - math.prod(1 - drawn(j, v, kind) for j in range(i + 1, hop + 1) for kind in some_kinds)

    def by_any(hop, i, v):
        return sum(by(hop, i, v, kind) for kind in kinds[v]) / max(1, len(kinds[v]))

    def log_of_rest(probability):
        return math.log1p(-probability) if probability < 1 else CERTAIN

    q0 = [1 / demand.steps if v in demand.seeds else 0.0 for v in range(n)]
    hops = [q0]
    terms = {}  # (hop, v, u) -> logarithm of the probability that u is not found by v
    sent = {}  # (hop, v) -> the same for any u, where nothing is divided out
    for hop in range(1, len(fanouts) + 1):
        for v in range(n):
            found = [hops[i][v] - (hops[i - 1][v] if i else 0) for i in range(hop)]
            sent[hop, v] = log_of_rest(sum(r * by_any(hop, i, v) for i, r in enumerate(found)))
            for u in set(lists[v]) - {v}:
                before = w = 0.0
                for i in range(hop):
                    q = q0[v]
                    if i:
                        own = sent[i, u] if v in lists[u] else 0.0
                        listing = [x for x in range(n) if (i, x, v) in terms]
                        log_all = sum(terms[i, x, v] for x in listing)
                        first = {x: kinds_of(kinds[x], lists[x], v)[0] for x in listing}
                        log_common = sum(terms[i, x, v] * drawn(i, x, first[x]) for x in listing)
                        rest = log_all - own - overlap[v] * (log_common - own * drawn(i, u))
                        q = max(before, 1 - (1 - q0[v]) * math.exp(min(0.0, rest)))
                    w += (q - before) * by(hop, i, v, *kinds_of(kinds[v], lists[v], u))
                    before = q
                terms[hop, v, u] = log_of_rest(w)
        rest = [sum(terms[hop, v, u] for v in range(n) if (hop, v, u) in terms) for u in range(n)]
        found = [1 - (1 - q0[u]) * math.exp(rest[u]) for u in range(n)]
        hops.append([max(pair) for pair in zip(hops[-1], found, strict=True)])
    return hops


@given(graphs, st.booleans(), fanout_lists, st.integers(1, 5), st.data())
def test_the_fast_way_and_the_slow_way_agree(lists, undirected, fanouts, steps, data):
    if undirected:
        lists = both_ways(len(lists), {(min(v, u), max(v, u)) for v, one in enumerate(lists) for u in one if u != v})
    seeds = data.draw(st.lists(st.integers(0, len(lists) - 1), unique=True))
    demand = demand_for(lists, seeds, steps=steps, fanouts=fanouts)
    fast = inclusion_probabilities(demand)
    assert np.array(fast) == pytest.approx(np.array(slow_probabilities(demand)), abs=1e-11)


@given(graphs, fanout_lists, st.integers(1, 4), st.data())
def test_the_fast_way_and_the_slow_way_agree_on_types(lists, fanouts, num_types, data):
    # A vertex's entries may repeat in other types; in one they stand together.
    kinds = [[data.draw(st.integers(0, num_types - 1)) for _ in one] for one in lists]
    both = [sorted(zip(kind, one, strict=True)) for kind, one in zip(kinds, lists, strict=True)]
    lists = [[entry for _, entry in one] for one in both]
    edge_type = np.array([kind for one in both for kind, _ in one], np.int16)
    seeds = data.draw(st.lists(st.integers(0, len(lists) - 1), unique=True))
    demand = replace(demand_for(lists, seeds, steps=3, fanouts=fanouts), edge_type=edge_type)
    fast = inclusion_probabilities(demand)
    assert np.array(fast) == pytest.approx(np.array(slow_probabilities(demand)), abs=1e-11)


@pytest.mark.parametrize("undirected", [True, False])
def test_the_answer_does_not_depend_on_threads_or_the_type_of_ids(threads, undirected):
    generator = np.random.default_rng(3)
    pairs = generator.integers(0, 400, (2000, 2))
    lists = [[] for _ in range(400)]
    for a, b in {(int(a), int(b)) for a, b in pairs if a < b}:
        lists[a].append(b)
        if undirected:
            lists[b].append(a)
    found = []
    for number, dtype in ((1, np.int32), (2, np.int32), (3, np.int64)):
        threads(number)
        demand = demand_for(lists, range(0, 400, 7), steps=6, fanouts=(4, 3, 2), dtype=dtype)
        found.append(inclusion_probabilities(demand)[-1])
    assert found[0].max() > 0
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


def test_no_seeds_and_no_vertices():
    assert not total(complete_lists(4), [], steps=1, fanouts=(2, 2)).any()
    assert len(total([], [], steps=1, fanouts=(2,))) == 0
