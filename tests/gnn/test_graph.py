"""A whole graph: its properties, its renumbering and its fingerprint."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
import torch

from windrow.comm.errors import DataError
from windrow.gnn.graph import Graph
from windrow.gnn.synthetic import community_graph


@dataclass
class Order:
    """A renumbering, as a partition book is one."""

    new_to_old: npt.NDArray[np.int64]

    @property
    def old_to_new(self) -> npt.NDArray[np.int64]:
        return np.argsort(self.new_to_old)


@pytest.fixture
def graph() -> Graph:
    return community_graph(60, 3, seed=5)


def test_sizes_and_degrees(graph: Graph) -> None:
    assert graph.num_vertices == 60
    assert graph.num_edges == graph.indices.numel() == int(graph.in_degrees.sum())
    assert graph.in_degrees.tolist() == np.diff(graph.indptr.numpy()).tolist()


@pytest.mark.parametrize("task", ["single-label", "multi-label"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_relabel_moves_everything_and_keeps_list_order(task: str, dtype: torch.dtype) -> None:
    graph = community_graph(60, 3, seed=5, task=task)
    graph = replace(graph, indices=graph.indices.to(dtype))
    order = Order(np.random.Generator(np.random.Philox(3)).permutation(60))
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


def test_relabel_back_restores_the_graph(graph: Graph) -> None:
    order = Order(np.random.Generator(np.random.Philox(4)).permutation(60))
    assert graph.relabel(order).relabel(Order(order.old_to_new)).fingerprint() == graph.fingerprint()


def test_relabel_without_features_and_labels(graph: Graph) -> None:
    bare = replace(graph, features=None, labels=None)
    moved = bare.relabel(Order(np.arange(60)[::-1].copy()))
    assert moved.features is None
    assert moved.labels is None


def test_fingerprint_sees_every_change(graph: Graph) -> None:
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


def test_fingerprint_does_not_depend_on_memory_layout(graph: Graph) -> None:
    strided = graph.features.T.contiguous().T
    assert not strided.is_contiguous()
    assert replace(graph, features=strided).fingerprint() == graph.fingerprint()


def test_validate_reports_a_broken_law(graph: Graph) -> None:
    graph.validate()
    with pytest.raises(DataError, match="the training set is empty"):
        replace(graph, train_ids=graph.train_ids[:0]).validate()
    replace(graph, train_ids=graph.train_ids[:0]).validate(training=False)
