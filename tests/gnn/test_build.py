"""Edges grouped by destination, and whole graphs from raw data."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError, RecipeError
from windrow.gnn.build import assemble_graph, check_edges, csc_from_edges, csc_from_keys, edges_of, keys_of_edges
from windrow.gnn.vertex_data import SplitOptions, VertexSplit

EDGES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=40)


def reference(edges, num_vertices, symmetrise, self_loops, deduplicate):
    """The slow, obvious way: one Python list per vertex."""
    neighbours: list[list[int]] = [[] for _ in range(num_vertices)]
    for source, destination in edges:
        if source == destination and self_loops != "keep":
            continue
        neighbours[destination].append(source)
        if symmetrise and source != destination:
            neighbours[source].append(destination)
    if self_loops == "add":
        for vertex, sources in enumerate(neighbours):
            sources.append(vertex)
    return [sorted(set(sources) if deduplicate else sources) for sources in neighbours]


@given(EDGES, st.booleans(), st.sampled_from(["keep", "add", "remove"]), st.booleans())
def test_equals_the_reference(edges, symmetrise, self_loops, deduplicate):
    array = np.array(edges, dtype=np.int64).reshape(-1, 2)
    indptr, indices, _ = csc_from_edges(
        array[:, 0], array[:, 1], 7, symmetrise=symmetrise, self_loops=self_loops, deduplicate=deduplicate
    )
    assert indptr.dtype == torch.int64
    assert indices.dtype == torch.int32
    lists = [indices[indptr[v] : indptr[v + 1]].tolist() for v in range(7)]
    assert lists == reference(edges, 7, symmetrise, self_loops, deduplicate)


@given(EDGES, st.booleans(), st.lists(st.integers(0, 7), max_size=3))
def test_lists_of_ranges_of_vertices_are_those_of_the_graph(edges, symmetrise, cuts):
    ends = check_edges(*np.array(edges, dtype=np.int64).reshape(-1, 2).T, 7, str)
    keys, _ = keys_of_edges(*ends, 7, symmetrise=symmetrise, self_loops="keep", numbered=False)
    indptr, indices, _ = csc_from_keys(keys.copy(), None, 7)
    for first, stop in pairwise([0, *sorted(cuts), 7]):
        own = keys[(keys // 7 >= first) & (keys // 7 < stop)]
        some, found, _ = csc_from_keys(own, None, 7, own=(first, stop))
        assert some.tolist() == (indptr[first : stop + 1] - indptr[first]).tolist()
        assert found.tolist() == indices[indptr[first] : indptr[stop]].tolist()


@given(EDGES, st.booleans(), st.sampled_from(["keep", "add", "remove"]), st.booleans())
def test_data_of_edges_follows_them(edges, symmetrise, self_loops, deduplicate):
    array = np.array(edges, dtype=np.int64).reshape(-1, 2)
    # The same for both directions of an edge, so that repeated edges agree.
    weight = array.sum(1) + 100.0 * array.prod(1)
    options = {"symmetrise": symmetrise, "self_loops": self_loops, "deduplicate": deduplicate}
    graph = assemble_graph(array[:, 0], array[:, 1], 7, edge_weight=weight, **options)
    sources, targets = edges_of(graph.indptr, graph.indices)
    expected = (sources + targets + 100 * sources * targets).float()
    if self_loops == "add":
        expected[sources == targets] = 1
    assert torch.equal(graph.edge_weight, expected)
    if self_loops == "keep":
        attributes = assemble_graph(array[:, 0], array[:, 1], 7, edge_attr=np.stack([weight, -weight], 1), **options)
        assert torch.equal(attributes.edge_attr, torch.stack([expected, -expected], 1))


def test_data_of_edges_that_does_not_fit_is_refused():
    ends = np.array([0, 1, 0]), np.array([1, 0, 1])
    with pytest.raises(
        DataError, match="edge 0 and edge 1 join the same vertices, but their weights or features differ"
    ):
        assemble_graph(*ends, 2, edge_weight=np.array([1, 2, 1]))
    assert assemble_graph(*ends, 2, edge_weight=np.array([1, 2, 1]), symmetrise=False).edge_weight.tolist() == [2, 1]
    with pytest.raises(DataError, match="there are 2 rows of edge_weight for 3 edges; give one for each"):
        assemble_graph(*ends, 2, edge_weight=np.array([1, 2]))
    with pytest.raises(DataError, match=r"edge_attr of edge 0 is .*nan.*; it must be finite"):
        assemble_graph(*ends, 2, edge_attr=np.full(3, np.nan), symmetrise=False, deduplicate=False)
    with pytest.raises(DataError, match=r"edge_weight is torch.float32 of shape \(2, 2\) for 2 edges"):
        assemble_graph(*ends, 2, edge_weight=np.ones((3, 2)))
    with pytest.raises(RecipeError, match='self_loops = "add" with edge features'):
        assemble_graph(*ends, 2, edge_attr=np.ones(3), self_loops="add")


@given(EDGES)
def test_edges_of_is_the_inverse(edges):
    array = np.array(edges, dtype=np.int64).reshape(-1, 2)
    built = csc_from_edges(array[:, 0], array[:, 1], 7, symmetrise=False, deduplicate=False)
    sources, destinations = edges_of(*built[:2])
    assert sorted(zip(sources.tolist(), destinations.tolist(), strict=True)) == sorted(edges)


def test_a_graph_without_vertices():
    nothing = np.empty(0, dtype=np.int64)
    indptr, indices, _ = csc_from_edges(nothing, nothing, 0, symmetrise=True, self_loops="add")
    assert (indptr.tolist(), indices.tolist()) == ([0], [])


def test_an_id_out_of_range_is_named_with_its_place():
    message = r"edge 1: source 9 is not a vertex; the graph has 5 vertices, numbered 0 to 4\. Correct the edge"
    with pytest.raises(DataError, match=message):
        csc_from_edges(np.array([0, 9]), np.array([1, 1]), 5, symmetrise=True)
    with pytest.raises(DataError, match=r"row 2: destination -1 is not a vertex"):
        csc_from_edges(np.array([0, 0, 0]), np.array([1, 1, -1]), 5, symmetrise=True, describe_edge="row {}".format)


def test_lists_that_do_not_fit_are_refused():
    with pytest.raises(DataError, match="there are 2 sources but 1 destinations; each edge needs both"):
        csc_from_edges(np.array([0, 1]), np.array([1]), 5, symmetrise=True)
    with pytest.raises(DataError, match=r"list of sources has dtype float64 and shape .*; give one integer"):
        csc_from_edges(np.array([0.5]), np.array([1]), 5, symmetrise=True)


def test_sizes_that_do_not_fit_are_refused():
    nothing = np.empty(0, dtype=np.int64)
    with pytest.raises(DataError, match="4000000000 vertices are too many: the limit is 3037000499"):
        csc_from_edges(nothing, nothing, 4_000_000_000, symmetrise=True)


SOURCES, DESTINATIONS = np.array([0, 1]), np.array([1, 2])


def test_edges_alone_make_a_graph_without_labels():
    graph = assemble_graph(SOURCES, DESTINATIONS, 4)
    assert (graph.num_vertices, graph.num_edges, graph.num_classes) == (4, 4, 0)
    assert graph.labels is graph.features is None
    assert graph.train_ids.numel() == 0


def test_labels_without_a_split_get_a_random_one():
    graph = assemble_graph(
        SOURCES,
        DESTINATIONS,
        8,
        features=np.zeros((8, 2), dtype=np.int8),
        labels=np.arange(8) % 2,
        random_split_options=SplitOptions(kind="fractions"),
    )
    assert graph.task == "binary"
    assert [len(ids) for ids in (graph.train_ids, graph.validation_ids, graph.test_ids)] == [4, 2, 2]
    assert graph.features.dtype == torch.float32


def test_a_given_split_is_kept_and_checked():
    ids = torch.arange(3)
    split = VertexSplit(train_ids=ids[:1], validation_ids=ids[1:2], test_ids=ids[2:])
    graph = assemble_graph(SOURCES, DESTINATIONS, 3, labels=np.array([0, 1, 2]), split=split)
    assert (graph.train_ids.tolist(), graph.test_ids.tolist()) == ([0], [2])
    with pytest.raises(DataError, match="vertex 0 is in the train split but has no label"):
        assemble_graph(SOURCES, DESTINATIONS, 3, labels=np.array([-1, 1, 2]), split=split)
    with pytest.raises(DataError, match="the training set is empty"):
        assemble_graph(SOURCES, DESTINATIONS, 3, labels=np.array([0, 1, 2]), split=VertexSplit(*ids.view(3, 1)[:, :0]))


def test_options_reach_the_topology():
    graph = assemble_graph(SOURCES, DESTINATIONS, 3, symmetrise=False, self_loops="add")
    assert graph.indices.tolist() == [0, 0, 1, 1, 2]
