"""Graphs from DGL and from PyTorch Geometric."""

import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.harness.data_sets import to_dgl, to_hetero_data
from windrow.comm.errors import DataError
from windrow.gnn.readers.libraries import MASKS, from_dgl, from_pyg, read_dgl
from windrow.gnn.readers.options import GraphOptions
from windrow.gnn.synthetic import community_graph, typed_community_graph
from windrow.gnn.vertex_data import SplitOptions

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:dgl.*", "ignore::DeprecationWarning:torch.*")


@pytest.fixture
def graph():
    return with_data_of_edges(community_graph(50, 3, seed=2))


def with_data_of_edges(graph):
    attributes = torch.rand(graph.num_edges, 2, generator=torch.Generator().manual_seed(1))
    return replace(graph, edge_weight=attributes[:, 0].contiguous(), edge_attr=attributes)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_to_dgl_and_back_is_the_same_graph(dgl, graph, dtype):
    converted = to_dgl(replace(graph, indices=graph.indices.to(dtype)))
    assert converted.idtype == dtype
    assert converted.in_degrees().tolist() == graph.indptr.diff().tolist()
    sources = graph.indices[graph.indptr[7] : graph.indptr[8]].tolist()
    assert sorted(converted.predecessors(7).tolist()) == sources, "messages go the same way"
    assert from_dgl(converted).fingerprint() == graph.fingerprint()


def test_repeated_edges_of_dgl_stay_and_labels_without_masks_get_a_random_split(dgl):
    source = dgl.graph(([0, 0, 1], [1, 1, 2]), num_nodes=3)
    assert from_dgl(source).num_edges == 3
    assert from_dgl(source, deduplicate=True, symmetrise=True).num_edges == 4
    source = dgl.graph(([0], [1]), num_nodes=4)
    source.ndata["label"] = torch.tensor([0, 1, 2, 0])
    graph = from_dgl(source, random_split=SplitOptions(kind="fractions"))
    assert (graph.num_classes, len(graph.train_ids)) == (3, 2)
    bare = from_dgl(dgl.graph((np.array([0, 1]), np.array([1, 0]))))
    assert bare.features is bare.labels is None
    assert dict(to_dgl(bare).ndata) == {}


def test_a_file_that_dgl_saved(dgl, graph, tmp_path):
    path = str(tmp_path / "graph.dgl")
    dgl.save_graphs(path, [to_dgl(graph)])
    assert read_dgl(GraphOptions(path=path, symmetrise=False)).fingerprint() == graph.fingerprint()
    several = to_dgl(graph)
    for name in MASKS:
        several.ndata[name] = torch.stack([~several.ndata[name], several.ndata[name]], 1)
    several.ndata["val_mask"][:] = several.ndata["test_mask"][:, :1] = False
    several.ndata["test_mask"][:, 1] = False
    dgl.save_graphs(path, [several])
    chosen = read_dgl(GraphOptions(path=path, symmetrise=False, split=1))
    assert torch.equal(chosen.train_ids, graph.train_ids)
    assert torch.equal(from_dgl(several, split=1).train_ids, graph.train_ids)
    dgl.save_graphs(path, [to_dgl(graph)] * 2)
    with pytest.raises(DataError, match="holds 2 graphs; save the one to be read by itself"):
        read_dgl(GraphOptions(path=path))
    (tmp_path / "graph.dgl").write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match="DGL cannot read it"):
        read_dgl(GraphOptions(path=path))


def test_what_does_not_fit_of_dgl_is_refused(dgl, graph):
    converted = to_dgl(graph)
    del converted.ndata["val_mask"]
    with pytest.raises(DataError, match=r"has only .*'train_mask', 'test_mask'.*; give all three or none"):
        from_dgl(converted)


def test_types_of_dgl(dgl):
    graph = typed_community_graph(40, 3, seed=1)
    data = to_hetero_data(graph)
    edges = {edge: tuple(data[edge].edge_index) for edge in graph.types.edges}
    several = dgl.heterograph(edges, num_nodes_dict={name: one.number for name, one in graph.types.vertices.items()})
    for name in ("author", "paper"):
        several.nodes[name].data["feat"] = data[name].x
    several.nodes["paper"].data["label"] = data["paper"].y
    for mask in MASKS:
        several.nodes["paper"].data[mask] = data["paper"][mask]
    found = from_dgl(several)
    # DGL sorts types of edges by name.
    assert sorted(found.types.edges) == sorted(graph.types.edges)
    assert torch.equal(found.features, graph.features)
    assert torch.equal(found.labels, graph.labels)
    assert torch.equal(found.indptr, graph.indptr)
    several.edges["cites"].data["weight"] = torch.ones(several.num_edges("cites"))
    with pytest.raises(DataError, match="edges paper__cites__paper: have weights or features, which edges of graphs"):
        from_dgl(several)


@pytest.fixture(scope="module")
def data_class():
    """The real ``Data``; its import warns about deprecations in torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return pytest.importorskip("torch_geometric.data").Data


def as_data(data_class, graph):
    vertices = torch.arange(graph.num_vertices)
    edge_index = torch.stack([graph.indices.long(), vertices.repeat_interleave(graph.indptr.diff())])
    splits = zip(MASKS, (graph.train_ids, graph.validation_ids, graph.test_ids), strict=True)
    masks = {name: torch.isin(vertices, ids) for name, ids in splits}
    edges = {"edge_weight": graph.edge_weight, "edge_attr": graph.edge_attr}
    return data_class(edge_index=edge_index, x=graph.features, y=graph.labels, **edges, **masks)


@pytest.mark.parametrize("task", ["single-label", "multi-label"])
def test_the_same_graph_comes_out_of_pyg(data_class, task):
    graph = with_data_of_edges(community_graph(40, 3, seed=1, task=task))
    data = as_data(data_class, graph)
    assert from_pyg(data).fingerprint() == graph.fingerprint()
    for name in ("x", "y", "edge_index", *MASKS):
        data[name] = data[name].numpy()
    assert from_pyg(data).fingerprint() == graph.fingerprint()


def test_types_of_pyg(data_class):
    graph = typed_community_graph(40, 3, seed=1)
    data = to_hetero_data(graph)
    assert from_pyg(data).fingerprint() == graph.fingerprint()
    for edge in [edge for edge in data.edge_types if edge[1].startswith("rev_")]:
        del data[edge]
    both_ways = from_pyg(data, symmetrise=True, deduplicate=True)
    assert both_ways.fingerprint() == graph.fingerprint()
    data["author"].train_mask = torch.ones(20, dtype=torch.bool)
    with pytest.raises(DataError, match=r"vertices of type 'author': of the masks .* only \['train_mask'\]; give"):
        from_pyg(data)


def test_one_of_several_splits(data_class):
    graph = community_graph(40, 3, seed=1)
    data = as_data(data_class, graph)
    data.train_mask, data.val_mask = (
        torch.stack(pair, 1) for pair in ((data.train_mask, data.val_mask), (data.val_mask, data.train_mask))
    )
    assert torch.equal(from_pyg(data, split=1).train_ids, graph.validation_ids)
    with pytest.raises(DataError, match="split 2 was asked for, but train_mask has 2 columns"):
        from_pyg(data, split=2)


def test_repeated_edges_of_pyg_stay_and_labels_without_masks_get_a_random_split(data_class):
    data = data_class(edge_index=torch.tensor([[0, 0], [1, 1]]), num_nodes=3)
    assert from_pyg(data).num_edges == 2
    assert from_pyg(data, deduplicate=True, symmetrise=True, self_loops="add").num_edges == 5
    data = data_class(edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0, 1, 2, 0]), num_nodes=4)
    assert len(from_pyg(data, random_split=SplitOptions(kind="fractions")).train_ids) == 2


def test_what_does_not_fit_of_pyg_is_refused(data_class):
    with pytest.raises(DataError, match=r"edge_index is missing; give edge_index"):
        from_pyg(data_class())
    with pytest.raises(DataError, match=r"edge_index is of shape \(3, 2\)"):
        from_pyg(data_class(edge_index=torch.zeros(3, 2).long()))
    data = as_data(data_class, community_graph(40, 3, seed=1))
    del data.test_mask
    with pytest.raises(DataError, match=r"the graph has only .*'train_mask', 'val_mask'.*; give all three"):
        from_pyg(data)
    for wrong in (torch.arange(10), torch.ones(39, dtype=torch.bool), torch.full((40,), 2)):
        data = as_data(data_class, community_graph(40, 3, seed=1))
        data.train_mask = wrong
        with pytest.raises(DataError, match=r"train_mask is torch.*: give truth values, one for each of 40 vertices"):
            from_pyg(data)
    data.train_mask = "all"
    with pytest.raises(DataError, match="train_mask is str: give a tensor"):
        from_pyg(data)
    lookalike = SimpleNamespace(edge_index=torch.tensor([[0], [1]]))
    with pytest.raises(DataError, match=r"the number of vertices is unknown; set data\.num_nodes"):
        from_pyg(lookalike)
