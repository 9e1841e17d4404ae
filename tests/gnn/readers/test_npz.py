"""Graphs in npz files."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

from windrow.comm.errors import DataError
from windrow.gnn.readers.npz import read_npz
from windrow.gnn.readers.options import GraphOptions
from windrow.gnn.readers.read import read_graph
from windrow.gnn.vertex_data import SplitOptions

EDGES = np.array([[0, 1], [1, 2], [3, 0]], dtype=np.int32)


def save(folder, **arrays):
    np.savez(folder / "graph.npz", **arrays)
    return GraphOptions(path=str(folder / "graph.npz"), random_split=SplitOptions(kind="fractions"))


def masks(*rows):
    return np.array([[vertex in row for vertex in range(4)] for row in rows])


def test_masks_of_several_splits(tmp_path):
    arrays = {
        "edges": EDGES,
        "node_features": np.eye(4),
        "node_labels": np.array([0, 1, 1, 0]),
        "train_masks": masks([0, 1], [3]),
        "val_masks": masks([2], [2]),
        "test_masks": masks([3], [0, 1]),
    }
    options = save(tmp_path, **arrays)
    graph = read_npz(options)
    assert (graph.task, graph.num_edges) == ("binary", 6)
    assert (graph.train_ids.tolist(), graph.test_ids.tolist()) == ([0, 1], [3])
    other = read_npz(GraphOptions(path=options.path, split=1, symmetrise=False))
    assert (other.train_ids.tolist(), other.test_ids.tolist(), other.num_edges) == ([3], [0, 1], 3)
    with pytest.raises(DataError, match="split 2 was asked for, but the file has 2; use 0 to 1"):
        read_npz(GraphOptions(path=options.path, split=2))


def test_sparse_features_and_lists_of_ids(tmp_path):
    sparse = scipy.sparse.csr_matrix(np.array([[0, 2], [1, 0], [0, 0], [3, 4]], dtype=np.int8))
    options = save(
        tmp_path,
        edges=EDGES,
        y=np.array([0, 1, 2, -1], dtype=np.int16),
        train=np.array([0]),
        val=np.array([1]),
        test=np.array([2]),
        x_indptr=sparse.indptr,
        x_indices=sparse.indices.astype(np.uint16),
        x_data=sparse.data,
        x_shape=np.array([4, 2]),
    )
    graph = read_npz(options)
    assert graph.features.tolist() == sparse.toarray().tolist()
    assert graph.features.dtype == torch.float32
    assert (graph.labels.tolist(), graph.num_classes) == ([0, 1, 2, -1], 3)


@pytest.mark.parametrize("names", [("train_mask", "val_mask", "test_mask"), ("train", "valid_mask", "test_masks")])
@pytest.mark.parametrize("make", [lambda *ids: masks(ids)[0], lambda *ids: masks(ids)])
def test_masks_by_their_usual_names(tmp_path, names, make):
    arrays = dict(zip(names, (make(3, 1), make(2), make(0)), strict=True))
    graph = read_npz(save(tmp_path, edges=EDGES, y=np.array([0, 1, 2, 1]), **arrays))
    assert [ids.tolist() for ids in (graph.train_ids, graph.validation_ids, graph.test_ids)] == [[1, 3], [2], [0]]


@pytest.mark.parametrize("names", [("train_idx", "valid_idx", "test_idx"), ("train_ids", "val_ids", "test")])
def test_lists_of_ids_by_their_usual_names(tmp_path, names):
    arrays = dict(zip(names, map(np.array, ([3, 1], [2], [0])), strict=True))
    graph = read_npz(save(tmp_path, edges=EDGES, y=np.array([0, 1, 2, 1]), **arrays))
    assert [ids.tolist() for ids in (graph.train_ids, graph.validation_ids, graph.test_ids)] == [[3, 1], [2], [0]]


@pytest.mark.parametrize("name", ["edge_attr", "edge_features"])
def test_data_of_edges(tmp_path, name):
    options = save(tmp_path, edges=EDGES, edge_weight=np.array([1, 2, 3]), **{name: np.array([[1, 4], [2, 5], [3, 6]])})
    graph = read_npz(options)
    assert (graph.indices.tolist(), graph.edge_weight.tolist()) == ([1, 3, 0, 2, 1, 0], [1, 3, 1, 2, 2, 3])
    assert graph.edge_attr[:, 1].tolist() == [4, 6, 4, 5, 5, 6]


def test_arrays_without_a_meaning_are_named(tmp_path):
    with pytest.warns(UserWarning, match=r"graph.npz: arrays \['year'\] have no meaning here and are skipped"):
        read_npz(save(tmp_path, edges=EDGES, year=np.arange(4)))


def test_no_split_gives_a_random_one_by_seed(tmp_path):
    options = save(tmp_path, edges=EDGES, y=np.array([0, 1, 2, 1]))
    graph = read_npz(options)
    assert sorted(torch.cat([graph.train_ids, graph.validation_ids, graph.test_ids]).tolist()) == [0, 1, 2, 3]


def test_edges_only_and_ids_from_one(tmp_path):
    options = save(tmp_path, edges=EDGES + 1)
    assert read_npz(options).num_vertices == 5
    graph = read_npz(GraphOptions(path=options.path, first_vertex_id=1))
    assert graph.num_vertices == 4
    assert graph.labels is None


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"y": np.arange(4)}, "there is no array 'edges' among ['y']; add it, shape [E, 2]."),
    ({"edge": EDGES}, "array 'edge' has no meaning here; did you mean 'edges'? Rename it, or leave it out."),
    ({"edges": EDGES, "training_mask": masks([0])}, "did you mean 'train_mask'?"),
    ({"edges": EDGES, "val": np.array([0]), "val_mask": masks([0])}, "are all the validation split; leave one"),
    ({"edges": EDGES.T}, "edges has dtype int32 and shape (2, 3); it must be integers [E, 2]."),
    ({"edges": EDGES, "x": np.eye(3)}, "row 2 of edges: source 3 is not a vertex; the graph has 3 vertices"),
    ({"edges": EDGES, "x": np.array([["a", None]] * 4, dtype=object)}, "array 'x' holds Python objects"),
    ({"edges": EDGES, "y": np.array([0, 1, 1, 0]), "train": np.array([0])}, "only ['train'] are there; save all"),
    (
        {"edges": EDGES, "y": np.arange(4), "train_masks": masks([0])[:, :3]}
        | {"val_masks": masks([1]), "test_masks": masks([2])},
        "train_masks has shape (1, 3); with 4 vertices it must be [splits, 4], and the same for all three.",
    ),
    ({"edges": EDGES, "x_indptr": np.array([0])}, "sparse features lack ['x_indices', 'x_data', 'x_shape']"),
    (
        {"edges": EDGES, "x_indptr": np.array([0, 1]), "x_indices": np.array([7])}
        | {"x_data": np.array([1]), "x_shape": np.array([1, 2])},
        "size is 2 but found index 7",
    ),
]


@pytest.mark.parametrize(("arrays", "message"), BROKEN)
def test_broken_contents_are_refused(tmp_path, arrays, message):
    options = save(tmp_path, **arrays)
    with pytest.raises(DataError) as caught:
        read_graph(options)
    assert message in str(caught.value)
    assert options.path in str(caught.value)


@pytest.mark.parametrize(
    ("name", "vertices", "edges", "columns", "task", "sizes"),
    [
        ("tolokers", 11_758, 1_038_000, 10, "binary", (5_879, 2_939, 2_940)),
        ("cora", 2_708, 10_556, 1_433, "single-label", (140, 500, 1_000)),
        ("amazon_computers", 13_752, 491_722, 767, "single-label", (200, 300, 13_252)),
    ],
)
def test_real_data(shared_data, name, vertices, edges, columns, task, sizes):
    graph = read_npz(GraphOptions(path=str(shared_data / "graphs" / f"{name}.npz"), split=0))
    assert (graph.num_vertices, graph.num_edges, graph.task) == (vertices, edges, task)
    assert graph.features.shape == (vertices, columns)
    assert (len(graph.train_ids), len(graph.validation_ids), len(graph.test_ids)) == sizes


def test_real_edges_that_count_from_one(shared_data):
    path = str(shared_data / "graphs" / "ego_twitter.npz")
    graph = read_npz(GraphOptions(path=path, first_vertex_id=1))
    assert (graph.num_vertices, graph.num_edges) == (81_306, 2 * 1_342_296)
