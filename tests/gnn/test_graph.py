"""A whole graph: properties, renumbering, fingerprint, and every law broken once."""

import re
from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest
import torch

from windrow.comm.errors import DataError
from windrow.gnn.graph import NUMBERS_PER_CHUNK, Graph
from windrow.gnn.synthetic import community_graph
from windrow.partition.book import PartitionBook


def renumbering(new_to_old):
    """A book of one part in this order."""
    priority = -np.argsort(new_to_old).astype(float)
    return PartitionBook.from_assignment(np.zeros(len(new_to_old), np.int32), 1, priority)


@pytest.fixture
def graph():
    return community_graph(60, 3, seed=5)


def test_sizes(graph):
    assert graph.num_vertices == 60
    assert graph.num_edges == graph.indices.numel() == int(graph.indptr.diff().sum())


@pytest.mark.parametrize("task", ["single-label", "multi-label"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_relabel_moves_everything_and_keeps_list_order(task, dtype):
    graph = community_graph(60, 3, seed=5, task=task)
    graph = replace(graph, indices=graph.indices.to(dtype))
    order = renumbering(np.random.Generator(np.random.Philox(3)).permutation(60))
    moved = graph.relabel(order)
    moved.validate()
    assert moved.indices.dtype == dtype
    for new, old in enumerate(order.new_to_old.tolist()):
        before = graph.indices[graph.indptr[old] : graph.indptr[old + 1]].tolist()
        after = moved.indices[moved.indptr[new] : moved.indptr[new + 1]].tolist()
        assert order.new_to_old[after].tolist() == before
        assert torch.equal(moved.features[new], graph.features[old])
        assert torch.equal(moved.labels[new], graph.labels[old])
    for name in ("train_ids", "validation_ids", "test_ids"):
        assert order.new_to_old[getattr(moved, name).numpy()].tolist() == getattr(graph, name).tolist()


def test_relabel_back_restores_the_graph(graph):
    order = renumbering(np.random.Generator(np.random.Philox(4)).permutation(60))
    assert graph.relabel(order).relabel(renumbering(order.old_to_new)).fingerprint() == graph.fingerprint()


def test_relabel_without_features_and_labels(graph):
    bare = replace(graph, features=None, labels=None)
    moved = bare.relabel(renumbering(np.arange(60)[::-1].copy()))
    assert moved.features is None
    assert moved.labels is None


def test_fingerprint_sees_every_change(graph):
    changed = graph.features.clone()
    changed[7, 3] += 1
    variants = [
        graph,
        replace(graph, features=changed),
        replace(graph, features=graph.features.double()),
        replace(graph, features=graph.features.reshape(30, -1)),
        replace(graph, features=None),
        replace(graph, labels=graph.labels.flip(0)),
        replace(graph, indices=graph.indices.long()),
        replace(graph, train_ids=graph.train_ids[1:]),
        replace(graph, task="binary"),
        replace(graph, num_classes=4),
    ]
    assert len({variant.fingerprint() for variant in variants}) == len(variants)


def test_fingerprint_does_not_depend_on_memory_layout(graph):
    strided = graph.features.T.contiguous().T
    assert not strided.is_contiguous()
    assert replace(graph, features=strided).fingerprint() == graph.fingerprint()


def test_validate_reports_a_broken_law(graph):
    graph.validate()
    with pytest.raises(DataError, match="the training set is empty"):
        replace(graph, train_ids=graph.train_ids[:0]).validate()
    replace(graph, train_ids=graph.train_ids[:0]).validate(training=False)


def ids(*values):
    return torch.tensor(values, dtype=torch.int64)


@pytest.fixture
def small():
    return Graph(
        indptr=ids(0, 2, 2, 3, 4),
        indices=torch.tensor([1, 2, 0, 3], dtype=torch.int32),
        features=torch.zeros(4, 2),
        labels=ids(0, 1, 2, -1),
        train_ids=ids(0),
        validation_ids=ids(1),
        test_ids=ids(2),
        task="single-label",
        num_classes=3,
    )


def test_a_lawful_graph_passes(small):
    small.validate()
    replace(small, indices=small.indices.long(), features=None).validate()
    many = torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
    replace(small, task="multi-label", labels=many, num_classes=2).validate()
    replace(small, task="regression", labels=torch.tensor([[-0.5], [2.0], [7e9], [nan]]), num_classes=1).validate()


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"indptr": torch.tensor([0.0, 1.0])}, "indptr has dtype float32; convert it to int64."),
    ({"indices": torch.zeros(4, dtype=torch.int16)}, "indices has dtype int16; convert it to int32 or"),
    ({"features": torch.zeros(4, 2, dtype=torch.int64)}, "features has dtype int64; convert it to float32"),
    ({"features": torch.zeros(4, 2, dtype=torch.bfloat16)}, "features has dtype bfloat16; convert it to float32"),
    ({"labels": torch.zeros(4)}, "labels has dtype float32; convert it to int64."),
    ({"train_ids": ids(0).int()}, "train_ids has dtype int32; convert it to int64."),
    ({"indptr": ids()}, "indptr has shape (0,); give one offset per vertex and one more, [N + 1]."),
    ({"indptr": ids(1, 2, 2, 3, 4)}, "indptr[0] is 1; it must be 0. Rebuild the graph with csc_from_edges."),
    ({"indptr": ids(0, 3, 2, 3, 4)}, "indptr goes down from 3 to 2 at vertex 1; offsets may only grow."),
    ({"indptr": ids(0, 2, 2, 3, 5)}, "indptr ends at 5 but there are 4 edges in indices; the two must be"),
    ({"indices": torch.zeros(2, 2).long()}, "indices has shape (2, 2); give one source per edge, [E]."),
    ({"indices": torch.tensor([1, 2, 4, 3])}, "indices[2] is 4, a source of vertex 2, but the graph has 4"),
    ({"indices": torch.tensor([-1, 2, 0, 3])}, "indices[0] is -1, a source of vertex 0, but the graph has 4"),
    ({"features": torch.zeros(4)}, "features has shape (4,); give one row per vertex, [N, F]."),
    ({"features": torch.zeros(3, 2)}, "there are 3 rows of features for 4 vertices; give exactly one row"),
    ({"labels": torch.zeros(4, 2).long()}, "labels has shape (4, 2); task 'single-label' needs [N]."),
    ({"labels": ids(0, 1, 2)}, "there are 3 labels for 4 vertices; give one per vertex, -1 where it is"),
    ({"labels": ids(0, 1, 3, 0)}, "the label of vertex 2 is 3, but with 3 classes a label is 0 to 2, or -1"),
    ({"labels": ids(0, -2, 1, 0)}, "the label of vertex 1 is -2, but with 3 classes"),
    ({"task": "binary"}, "task 'binary' has 2 classes, not 3; use task 'single-label'."),
    ({"labels": None}, "the graph has no labels to train on; read a data set that has them."),
    ({"train_ids": ids()}, "the training set is empty; put at least one labelled vertex into the train"),
    ({"test_ids": ids(2).view(1, 1)}, "the test split has shape (1, 1); give a list of vertex ids."),
    ({"test_ids": ids(2, 4)}, "entry 1 of the test split is 4, but the graph has 4 vertices, numbered 0 to"),
    ({"validation_ids": ids(-1)}, "entry 0 of the validation split is -1, but the graph has 4 vertices"),
    ({"train_ids": ids(0, 3, 0)}, "vertex 0 is in the train split more than once; remove the duplicate."),
    ({"test_ids": ids(2, 0)}, "vertex 0 is in the train split and in the test split; keep it in one of"),
    ({"train_ids": ids(0, 3)}, "vertex 3 is in the train split but has no label (-1); give it one or take"),
    ({"test_ids": ids(3)}, "vertex 3 is in the test split but has no label (-1)"),
]


@pytest.mark.parametrize(("change", "message"), BROKEN)
def test_each_law(small, change, message):
    with pytest.raises(DataError, match=re.escape(message)):
        replace(small, **change).validate()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_feature_that_is_no_number_is_found_in_any_chunk(value):
    row = NUMBERS_PER_CHUNK // 512 + 1
    num_vertices = row + 2
    features = torch.zeros(num_vertices, 512)
    features[row, 1] = value
    empty = Graph(
        indptr=torch.zeros(num_vertices + 1, dtype=torch.int64),
        indices=ids(),
        features=features,
        labels=None,
        train_ids=ids(),
        validation_ids=ids(),
        test_ids=ids(),
        task="single-label",
        num_classes=0,
    )
    with pytest.raises(DataError) as caught:
        empty.validate(training=False)
    assert str(caught.value) == (
        f"feature column 1 of vertex {row} is {value}; features must be finite numbers. Replace it, "
        "for example by the column's mean."
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"labels": torch.tensor([[0.0, 1.0], [1.0, 0.5], [0.0, 0.0], [1.0, 0.0]])},
            "label column 1 of vertex 1 is 0.5;",
        ),
        ({"labels": torch.zeros(4, 3)}, "labels has 3 columns but num_classes is 2; make them equal."),
        ({"labels": torch.zeros(4)}, "labels has shape (4,); task 'multi-label' needs [N, C]."),
        (
            {"labels": torch.tensor([[0.0, 1.0], [1.0, -inf], [0.0, 0.0], [1.0, 0.0]]), "task": "regression"},
            "label column 1 of vertex 1 is -inf; in task 'regression' a label is a number, NaN where unknown.",
        ),
        (
            {"labels": torch.tensor([[0.0, nan], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]]), "task": "regression"},
            "vertex 0 is in the train split but has no label ([0.0, nan]); give it one",
        ),
    ],
)
def test_laws_of_several_labels_per_vertex(small, change, message):
    with pytest.raises(DataError, match=re.escape(message)):
        replace(small, **({"task": "multi-label", "num_classes": 2} | change)).validate()


def test_a_graph_only_to_be_partitioned_needs_no_labels(small):
    replace(small, labels=None, train_ids=ids()).validate(training=False)
