"""Graphs from PyTorch Geometric."""

import warnings

import pytest
import torch

from windrow.comm.errors import DataError
from windrow.gnn.readers.pyg import graph_from_pyg
from windrow.gnn.synthetic import community_graph
from windrow.gnn.vertex_data import MASKS, SplitOptions


@pytest.fixture(scope="module")
def data_class():
    """The real ``Data``; its import warns about deprecations in torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return pytest.importorskip("torch_geometric.data").Data


def as_data(data_class, graph):
    vertices = torch.arange(graph.num_vertices)
    edge_index = torch.stack([graph.indices.long(), vertices.repeat_interleave(graph.in_degrees)])
    splits = zip(MASKS, (graph.train_ids, graph.validation_ids, graph.test_ids), strict=True)
    masks = {name: torch.isin(vertices, ids) for name, ids in splits}
    return data_class(edge_index=edge_index, x=graph.features, y=graph.labels, **masks)


@pytest.mark.parametrize("task", ["single-label", "multi-label"])
def test_the_same_graph_comes_out(data_class, task):
    graph = community_graph(40, 3, seed=1, task=task)
    assert graph_from_pyg(as_data(data_class, graph)).fingerprint() == graph.fingerprint()


def test_one_of_several_splits(data_class):
    graph = community_graph(40, 3, seed=1)
    data = as_data(data_class, graph)
    data.train_mask, data.val_mask = (
        torch.stack(pair, 1) for pair in ((data.train_mask, data.val_mask), (data.val_mask, data.train_mask))
    )
    assert torch.equal(graph_from_pyg(data, split=1).train_ids, graph.validation_ids)
    with pytest.raises(DataError, match="split 2 was asked for, but train_mask has 2 columns"):
        graph_from_pyg(data, split=2)


def test_edges_alone_and_repeats(data_class):
    data = data_class(edge_index=torch.tensor([[0, 0], [1, 1]]), num_nodes=3)
    assert graph_from_pyg(data).num_edges == 2
    assert graph_from_pyg(data, deduplicate=True, symmetrise=True, self_loops="add").num_edges == 5


def test_no_masks_give_a_random_split(data_class):
    data = data_class(edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0, 1, 2, 0]), num_nodes=4)
    graph = graph_from_pyg(data, random_split=SplitOptions(kind="fractions"))
    assert len(graph.train_ids) == 2


def test_what_does_not_fit_is_refused(data_class):
    with pytest.raises(DataError, match=r"edge_index is missing; windrow reads homogeneous graphs"):
        graph_from_pyg(data_class())
    with pytest.raises(DataError, match=r"edge_index is of shape \(3, 2\)"):
        graph_from_pyg(data_class(edge_index=torch.zeros(3, 2).long()))
    data = as_data(data_class, community_graph(40, 3, seed=1))
    del data.test_mask
    with pytest.raises(DataError, match=r"the graph has only .*'train_mask', 'val_mask'.*; give all three"):
        graph_from_pyg(data)


def test_an_object_that_only_looks_like_data():
    class Lookalike:
        edge_index = torch.tensor([[0], [1]])

    with pytest.raises(DataError, match=r"the number of vertices is unknown; set data\.num_nodes"):
        graph_from_pyg(Lookalike())
