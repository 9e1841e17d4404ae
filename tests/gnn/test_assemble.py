"""From raw data to a validated graph."""

import numpy as np
import pytest
import torch

from windrow.comm.errors import DataError
from windrow.gnn.build import assemble_graph
from windrow.gnn.vertex_data import SplitOptions, VertexSplit

SOURCES, DESTINATIONS = np.array([0, 1]), np.array([1, 2])


def test_edges_alone_make_a_graph_without_labels() -> None:
    graph = assemble_graph(SOURCES, DESTINATIONS, 4)
    assert (graph.num_vertices, graph.num_edges, graph.num_classes) == (4, 4, 0)
    assert graph.labels is graph.features is None
    assert graph.train_ids.numel() == 0


def test_labels_without_a_split_get_a_random_one() -> None:
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


def test_a_given_split_is_kept_and_checked() -> None:
    ids = torch.arange(3)
    split = VertexSplit(train_ids=ids[:1], validation_ids=ids[1:2], test_ids=ids[2:])
    graph = assemble_graph(SOURCES, DESTINATIONS, 3, labels=np.array([0, 1, 2]), split=split)
    assert (graph.train_ids.tolist(), graph.test_ids.tolist()) == ([0], [2])
    with pytest.raises(DataError, match="vertex 0 is in the train split but has no label"):
        assemble_graph(SOURCES, DESTINATIONS, 3, labels=np.array([-1, 1, 2]), split=split)
    with pytest.raises(DataError, match="the training set is empty"):
        assemble_graph(SOURCES, DESTINATIONS, 3, labels=np.array([0, 1, 2]), split=VertexSplit.empty())


def test_options_reach_the_topology() -> None:
    graph = assemble_graph(
        SOURCES, DESTINATIONS, 3, symmetrise=False, self_loops="add", index_dtype=torch.int64
    )
    assert graph.indices.tolist() == [0, 0, 1, 1, 2]
    assert graph.indices.dtype == torch.int64
