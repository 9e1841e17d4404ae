"""Graphs with types of vertices and edges: made from the edges of each type, checked, sampled, split by type."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.random import GOLDEN, Stream, mix64, stream_key
from windrow.gnn.build import VertexRows, assemble_typed_graph, edges_of
from windrow.gnn.evaluation import check_types
from windrow.gnn.sampler import NeighborSampler
from windrow.gnn.synthetic import typed_community_graph
from windrow.gnn.types import GraphTypes, VertexType, edge_type_text
from windrow.gnn.vertex_data import SplitOptions, VertexSplit
from windrow.partition.book import PartitionBook

NUMBERS = {"author": 3, "paper": 5, "venue": 2}
WRITES, CITES, IN = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "in", "venue")
LEARNT = dict(
    zip(("labels", "split"), (torch.tensor([0, 1, 2, 0, -1]), VertexSplit(*torch.arange(3).split(1))), strict=True)
)


def ends_between(source, destination, most=12):
    pairs = st.tuples(st.integers(0, NUMBERS[source] - 1), st.integers(0, NUMBERS[destination] - 1))
    return st.lists(pairs, max_size=most)


edge_lists = st.fixed_dictionaries({edge: ends_between(edge[0], edge[2]) for edge in (WRITES, CITES, IN)})


def graph_of(edges, **options):
    vertices = {
        "author": VertexRows(3, torch.arange(6.0).view(3, 2)),
        "paper": VertexRows(5, torch.ones(5, 1), **LEARNT),
        "venue": VertexRows(2),
    }
    ends = {edge: np.array(pairs, np.int64).reshape(-1, 2).T for edge, pairs in edges.items()}
    return assemble_typed_graph(vertices, {edge: (rows[0], rows[1]) for edge, rows in ends.items()}, **options)


def typed_edges(graph):
    """Triples of type, source and destination by the user's ids, sorted."""
    sources, destinations = edges_of(graph.indptr, graph.indices)
    return sorted(zip(graph.edge_type.tolist(), sources.tolist(), destinations.tolist(), strict=True))


@given(edge_lists, st.booleans(), st.booleans())
def test_every_edge_is_there_with_its_type(edges, symmetrise, deduplicate):
    graph = graph_of(edges, symmetrise=symmetrise, deduplicate=deduplicate)
    first = {"author": 0, "paper": 3, "venue": 8}
    expected = []
    for number, (source, name, destination) in enumerate(graph.types.edges):
        is_reverse = name.startswith("rev_")
        pairs = edges[destination, name[4:], source] if is_reverse else edges[source, name, destination]
        pairs = [(b, a) for a, b in pairs] if is_reverse else pairs
        if symmetrise and source == destination:
            pairs = pairs + [(b, a) for a, b in pairs if a != b]
        pairs = set(pairs) if deduplicate else pairs
        expected += [(number, a + first[source], b + first[destination]) for a, b in pairs]
    assert typed_edges(graph) == sorted(expected)
    assert len(graph.types.edges) == (5 if symmetrise else 3)
    assert graph.types.vertices == {"author": (3, 2), "paper": (5, 1), "venue": (2, 0)}
    assert graph.features.tolist() == [[0, 1], [2, 3], [4, 5], *[[1, 0]] * 5, *[[0, 0]] * 2]
    assert graph.labels.tolist() == [-1, -1, -1, 0, 1, 2, 0, -1, -1, -1]
    assert [ids.tolist() for ids in (graph.train_ids, graph.validation_ids, graph.test_ids)] == [[3], [4], [5]]


@given(edge_lists, st.permutations(range(10)))
def test_renumbering_keeps_types(edges, order):
    graph = graph_of(edges)
    book = PartitionBook.from_assignment(np.array(order) % 3, 3)
    moved = graph.relabel(book)
    back = torch.from_numpy(book.new_to_old)
    sources, destinations = edges_of(moved.indptr, moved.indices)
    in_lists = moved.edge_type.diff()[destinations.diff() == 0]
    assert (in_lists >= 0).all(), "as the sampler takes for granted"
    found = zip(moved.edge_type.tolist(), back[sources.long()].tolist(), back[destinations].tolist(), strict=True)
    assert sorted(found) == typed_edges(graph)
    assert moved.types == graph.types


def test_types_have_their_own_numbers_and_outlive_json():
    types = GraphTypes({"a": VertexType(2, 1), "b": VertexType(0, 0), "c": VertexType(3, 4)}, (("a", "to", "c"),))
    assert types.of(torch.tensor([0, 1, 2, 4])).tolist() == [0, 0, 2, 2]
    assert (types.range_of("b"), types.range_of("c"), types.ends, types.columns) == ((2, 2), (2, 5), [(0, 2)], 4)
    assert GraphTypes.from_json(types.to_json()) == types
    assert edge_type_text(types.edges[0]) == "a__to__c"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edge_type": None}, "types and edge_type go together"),
        ({"edge_type": torch.zeros(8, dtype=torch.int32)}, r"edge_type is torch.int32 of shape \(8,\) for 8 edges"),
        ({"edge_type": torch.zeros(7, dtype=torch.int16)}, r"edge_type is torch.int16 of shape \(7,\) for 8 edges"),
        ({"types": GraphTypes({"x": VertexType(9, 0)}, ())}, "types are of 9 vertices, but there are 10"),
        ({"types": GraphTypes({"x": VertexType(10, 0)}, ())}, "edge 0 is of type 3, but there are 0 types"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    graph = graph_of({WRITES: [(0, 1), (2, 1)], CITES: [(0, 1)], IN: [(4, 1)]})
    with pytest.raises(DataError, match=message):
        replace(graph, **change).validate()


def test_edges_in_another_order_or_between_other_types_are_refused():
    graph = graph_of({WRITES: [(0, 1), (2, 1)], CITES: [(0, 1)], IN: []}, symmetrise=False)
    with pytest.raises(DataError, match=r"edge 1 of vertex 4 is of an earlier type than the one before; sort"):
        replace(graph, edge_type=torch.tensor([1, 0, 0], dtype=torch.int16)).validate()
    with pytest.raises(DataError, match=r"edge 2 is of type author__writes__paper, but its source is of type 'paper'"):
        replace(graph, edge_type=torch.zeros(3, dtype=torch.int16)).validate()


@pytest.mark.parametrize(
    ("vertices", "edges", "message"),
    [
        ({}, {}, "there are 0 types of vertices"),
        ({"a": VertexRows(2)}, {("a", "to", "b"): ([0], [0])}, "edges a__to__b have an end of type 'b', but vertices"),
        ({"a": VertexRows(2)}, {("a", "to", "a"): ([0], [2])}, "edge 0 of a__to__a: destination 2 .* type 'a' has 2"),
        ({"a": VertexRows(2, torch.ones(3, 1))}, {}, "3 rows of features for 2 vertices of type 'a'"),
        ({"a": VertexRows(2, labels=torch.zeros(3))}, {}, "3 labels for 2 vertices of type 'a'"),
        (dict.fromkeys("ab", VertexRows(2, labels=torch.zeros(2))), {}, "the types a, b have labels or splits"),
    ],
)
def test_data_that_break_a_law(vertices, edges, message):
    given_edges = {edge: tuple(np.array(ids) for ids in ends) for edge, ends in edges.items()}
    with pytest.raises(DataError, match=message):
        assemble_typed_graph(vertices, given_edges, random_split_options=SplitOptions(kind="fractions"))


def test_reverses_that_are_there_get_no_reverses():
    writes = (np.array([0, 1]), np.array([2, 3]))
    edges = {WRITES: writes, ("paper", "rev_writes", "author"): writes[::-1]}
    graph = assemble_typed_graph({"author": VertexRows(2), "paper": VertexRows(4)}, edges)
    assert graph.types.edges == tuple(edges)
    assert graph.num_edges == 4


def test_a_graph_with_types_is_not_one_without():
    types = graph_of({CITES: [(0, 1)]}).types
    check_types(types, types)
    check_types(None, None)
    with pytest.raises(DataError, match="the graph has no types, but the one that the model was trained on has: give"):
        check_types(None, types)
    with pytest.raises(DataError, match="the graph has types, but the one that the model was trained on has none: "):
        check_types(types, None)


def test_self_loops_are_not_added():
    with pytest.raises(RecipeError, match='self_loops = "add" with types of edges'):
        graph_of({CITES: [(0, 1)]}, self_loops="add")
    loops = {CITES: [(0, 0), (0, 1)], WRITES: [(0, 0)]}
    assert graph_of(loops, self_loops="remove", symmetrise=False).num_edges == 2


def test_multi_label_and_unlabelled_graphs():
    labels = torch.tensor([[0.0, 1.0], [1.0, 1.0]])
    split = VertexSplit(torch.tensor([0]), torch.tensor([], dtype=torch.int64), torch.tensor([1]))
    graph = assemble_typed_graph({"a": VertexRows(1), "b": VertexRows(2, labels=labels, split=split)}, {})
    assert (graph.task, graph.labels.tolist(), graph.train_ids.tolist()) == (
        "multi-label", [[0, 0], [0, 1], [1, 1]], [1],
    )  # fmt: skip
    real = assemble_typed_graph({"a": VertexRows(1), "b": VertexRows(2, labels=labels + 0.5, split=split)}, {})
    assert (real.task, real.labels[1:].tolist(), real.labels[0].isnan().all()) == (
        "regression", [[0.5, 1.5], [1.5, 1.5]], True,
    )  # fmt: skip
    assert assemble_typed_graph({"a": VertexRows(1)}, {}).labels is None


# ---- sampling


def slow_draw(key, original, kind, degree, fanout):
    """Places in the part of a vertex's list that is of a type, as Floyd's algorithm draws them."""
    if fanout < 0 or degree <= fanout:
        return list(range(degree))
    state = mix64(key ^ mix64(mix64(original + GOLDEN) + kind + 1))
    places = []
    for draw in range(fanout):
        last = degree - fanout + draw
        place = mix64(state + (draw + 1) * GOLDEN) * (last + 1) >> 64
        places.append(last if place in places else place)
    return places


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from([-1, 1, 2, 5]), min_size=1, max_size=3),
    st.lists(st.integers(0, 93), unique=True, max_size=12),
    st.integers(0, 2**32),
    st.integers(2, 40),
)
def test_each_type_is_sampled_by_itself(fanouts, seeds, seed, num_types):
    chance = np.random.default_rng(seed)
    degrees = chance.integers(0, 30, 94) * (chance.random(94) < 0.8)
    degrees[5] = 700
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    indices = torch.from_numpy(chance.integers(0, 94, indptr[-1]).astype(np.int32))
    kinds = np.concatenate([np.sort(chance.integers(0, num_types, degree)) for degree in degrees]).astype(np.int16)
    original = torch.from_numpy(chance.permutation(94))
    edges = tuple(("a", str(number), "a") for number in range(num_types))
    sampler = NeighborSampler(
        torch.from_numpy(indptr),
        indices,
        fanouts,
        seed=3,
        original_ids=original,
        edge_type=torch.from_numpy(kinds),
        types=GraphTypes({"a": VertexType(60, 0), "b": VertexType(34, 0)}, edges),
    )
    minibatch = sampler.sample(torch.tensor(seeds, dtype=torch.int64), epoch=1, step=2)
    ids = minibatch.input_ids
    for hop, block in enumerate(reversed(minibatch.blocks)):
        key = stream_key(3, Stream.SAMPLE, 1, 2, hop)
        expected = []
        for local in range(block.num_dst):
            vertex = int(ids[local])
            for kind in range(num_types):
                places = np.flatnonzero(kinds[indptr[vertex] : indptr[vertex + 1]] == kind) + indptr[vertex]
                drawn = slow_draw(key, int(original[vertex]), kind, len(places), fanouts[hop])
                expected += [(local, kind, int(indices[places[place]])) for place in drawn]
        found = zip(
            block.edge_destinations.tolist(), block.edge_type.tolist(), ids[block.indices.long()].tolist(), strict=True
        )
        assert list(found) == expected
        assert block.source_types.tolist() == (original[ids[: block.num_src]] >= 60).int().tolist()


@pytest.mark.parametrize("known", ["edge_type", "types", "short"])
def test_the_sampler_wants_all_types(known):
    graph = graph_of({WRITES: [(0, 1), (2, 1)], CITES: [(0, 1)], IN: [(4, 1)]})
    given = {"edge_type": graph.edge_type, "types": graph.types}
    given = {"edge_type": graph.edge_type[1:], "types": graph.types} if known == "short" else {known: given[known]}
    with pytest.raises(DataError, match=r"edge_type has (none|7|8) entries for 8 edges, types .*: give both in full"):
        NeighborSampler(graph.indptr, graph.indices, [2], seed=0, **given)


def test_types_are_split_ahead_and_stay_so():
    graph = typed_community_graph(60, 3, seed=1)
    sampler = NeighborSampler(graph.indptr, graph.indices, [3, 2], seed=0, edge_type=graph.edge_type, types=graph.types)
    minibatch = sampler.sample(graph.train_ids[:7], epoch=0, step=0)
    sources, destinations = edges_of(graph.indptr, graph.indices)
    minibatch = minibatch.without(torch.stack([sources, destinations])[:, ::2].long())
    assert minibatch.blocks[0].num_edges < sampler.sample(graph.train_ids[:7], epoch=0, step=0).blocks[0].num_edges
    minibatch.split_by_type()
    for block in minibatch.blocks:
        typed = block.typed
        assert sum(each.num_edges for each in typed.edges.values()) == block.num_edges
        moved = block.to("meta")
        assert moved.__dict__["typed"].order.device.type == "meta"
        assert all(each.device.type == "meta" for each in moved.typed.tensors())
        assert len(list(typed.tensors())) == 2 + 2 * len(typed.edges)
    with pytest.raises(DataError, match="the block has no types of vertices and edges"):
        _ = replace(minibatch.blocks[0], types=None).typed


def test_a_block_by_types_has_all_edges_and_rows():
    graph = typed_community_graph(60, 3, seed=1)
    sampler = NeighborSampler(graph.indptr, graph.indices, [3, 2], seed=0, edge_type=graph.edge_type, types=graph.types)
    block = sampler.sample(graph.train_ids[:7], epoch=0, step=0).blocks[0]
    typed = block.typed
    assert typed is block.typed
    x = torch.randn(block.num_src, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    rows = typed.split(x)
    assert torch.equal(typed.join(rows), x[: block.num_dst])
    typed.join(rows).sum().backward()
    assert x.grad.sum(1).tolist() == [3.0] * block.num_dst + [0.0] * (block.num_src - block.num_dst)
    found = [
        (number, tuple(rows[edge[0]][source].tolist()), tuple(rows[edge[2]][destination].tolist()))
        for number, edge in enumerate(graph.types.edges)
        for source, destination in typed.edge_index.get(edge, torch.empty(2, 0, dtype=torch.int64)).T.tolist()
    ]
    expected = zip(
        block.edge_type.tolist(),
        map(tuple, x[block.indices.long()].tolist()),
        map(tuple, x[block.edge_destinations].tolist()),
        strict=True,
    )
    assert sorted(found) == sorted(expected)
    assert typed.num_dst == {
        name: int((block.source_types[: block.num_dst] == number).sum()) for number, name in enumerate(rows)
    }
