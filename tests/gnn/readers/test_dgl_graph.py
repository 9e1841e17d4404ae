"""Graphs to and from DGL."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from windrow.comm.errors import DataError
from windrow.gnn.readers.dgl_graph import graph_from_dgl, read_dgl, to_dgl
from windrow.gnn.readers.options import GraphOptions
from windrow.gnn.synthetic import community_graph
from windrow.gnn.vertex_data import SplitOptions

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:dgl.*", "ignore::DeprecationWarning:torch.*"
)
dgl = pytest.importorskip("dgl")


@pytest.fixture
def graph():
    return community_graph(50, 3, seed=2)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_there_and_back_is_the_same_graph(graph, dtype):
    converted = to_dgl(replace(graph, indices=graph.indices.to(dtype)))
    assert converted.idtype == dtype
    assert converted.in_degrees().tolist() == graph.in_degrees.tolist()
    sources = graph.indices[graph.indptr[7] : graph.indptr[8]].tolist()
    assert sorted(converted.predecessors(7).tolist()) == sources, "messages go the same way"
    assert graph_from_dgl(converted).fingerprint() == graph.fingerprint()


def test_repeated_edges_stay_by_default():
    source = dgl.graph(([0, 0, 1], [1, 1, 2]), num_nodes=3)
    assert graph_from_dgl(source).num_edges == 3
    assert graph_from_dgl(source, deduplicate=True, symmetrise=True).num_edges == 4


def test_labels_without_masks_get_a_random_split():
    source = dgl.graph(([0], [1]), num_nodes=4)
    source.ndata["label"] = torch.tensor([0, 1, 2, 0])
    graph = graph_from_dgl(source, random_split=SplitOptions(kind="fractions"))
    assert graph.num_classes == 3
    assert len(graph.train_ids) == 2


def test_a_saved_file(graph, tmp_path):
    path = str(tmp_path / "graph.dgl")
    dgl.save_graphs(path, [to_dgl(graph)])
    assert read_dgl(GraphOptions(path=path)).fingerprint() == graph.fingerprint()
    dgl.save_graphs(path, [to_dgl(graph)] * 2)
    with pytest.raises(DataError, match="holds 2 graphs; save the one to be read by itself"):
        read_dgl(GraphOptions(path=path))
    (tmp_path / "graph.dgl").write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match="DGL cannot read it"):
        read_dgl(GraphOptions(path=path))


def test_what_does_not_fit_is_refused(graph):
    several = dgl.heterograph({("a", "r", "b"): ([0], [0])})
    with pytest.raises(DataError, match=r"vertex types \['a', 'b'\] .* convert it with dgl\.to_homogeneous"):
        graph_from_dgl(several)
    converted = to_dgl(graph)
    del converted.ndata["val_mask"]
    with pytest.raises(DataError, match=r"has only .*'train_mask', 'test_mask'.*; give all three or none"):
        graph_from_dgl(converted)


def test_a_graph_without_data():
    bare = graph_from_dgl(dgl.graph((np.array([0, 1]), np.array([1, 0]))))
    assert bare.features is bare.labels is None
    assert dict(to_dgl(bare).ndata) == {}
