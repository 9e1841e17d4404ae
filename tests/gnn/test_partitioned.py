"""One rank's view, cut from memory and opened from disk."""

import dataclasses

import pytest
import torch

from windrow.comm.errors import DataError, StoreError
from windrow.gnn.full_graph import FullGraphTask
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.partitioning import store_arrays, vertex_order
from windrow.gnn.sampler import SamplerOptions
from windrow.gnn.synthetic import community_graph
from windrow.gnn.task import NodeTask
from windrow.partition.book import PartitionBook
from windrow.partition.store import write_store


def make_graph():
    graph = community_graph(50, 3, seed=1, num_features=4)
    return dataclasses.replace(graph, edge_weight=torch.arange(float(graph.num_edges)))


def make_book(graph, parts=2):
    return PartitionBook.from_assignment(torch.arange(graph.num_vertices).numpy() // 3 % parts, parts)


def written_store(folder, graph, book, **more):
    shared, sharded = store_arrays(graph, book)
    metadata = {"task": graph.task, "num_classes": graph.num_classes, "fingerprint": graph.fingerprint()}
    metadata |= more
    write_store(folder, book, shared=shared, sharded=sharded, metadata=metadata)
    return folder


def test_every_row_is_the_users_row(spmd):
    graph = make_graph()

    def body(world):
        part = PartitionedGraph.from_graph(graph, make_book(graph, world.size), world.rank)
        start, stop = part.own_range
        assert torch.equal(part.features, graph.features[part.original_ids[start:stop]])
        assert torch.equal(part.labels, graph.labels[part.original_ids])
        assert torch.equal(part.original_ids[part.train_ids], graph.train_ids)
        return len(part.features)

    assert sum(spmd(body)) == graph.num_vertices


def test_what_is_opened_is_what_was_cut(tmp_path):
    graph = make_graph()
    book = make_book(graph)
    path = written_store(tmp_path / "store", graph, book)
    bare = written_store(tmp_path / "bare", dataclasses.replace(graph, labels=None, edge_weight=None), book)
    assert PartitionedGraph.open(bare, rank=0, size=2).labels is None
    with pytest.raises(DataError, match="the graph has no labels"):
        NodeTask(PartitionedGraph.open(bare, rank=0, size=2), (2,))
    for rank in range(2):
        opened = PartitionedGraph.open(path, rank=rank, size=2)
        cut = PartitionedGraph.from_graph(graph, book, rank)
        for field in dataclasses.fields(PartitionedGraph):
            mine, expected = getattr(opened, field.name), getattr(cut, field.name)
            if isinstance(expected, torch.Tensor):
                assert torch.equal(mine, expected), field.name
            elif field.name != "book":
                assert mine == expected


def test_the_order_of_the_store_is_kept(tmp_path):
    graph = make_graph()
    book = make_book(graph)
    order = vertex_order(SamplerOptions(fanouts=(3, 2)), 8)
    path = written_store(tmp_path / "store", graph, book, order=order)
    assert PartitionedGraph.open(path, rank=1, size=2).order == order
    # Stores of older versions do not say: theirs is the user's order.
    old = written_store(tmp_path / "old", graph, book)
    assert PartitionedGraph.open(old, rank=1, size=2).order is None


def test_a_graph_without_features_has_none_for_models(tmp_path):
    graph = dataclasses.replace(make_graph(), features=None)
    cut = PartitionedGraph.from_graph(graph, make_book(graph), 0)
    opened = PartitionedGraph.open(written_store(tmp_path / "store", graph, make_book(graph)), rank=0, size=2)
    start, stop = cut.own_range
    for part in (cut, opened):
        assert part.features.shape == (stop - start, 0)
        for task in (NodeTask, FullGraphTask):
            with pytest.raises(DataError, match="the graph has no features: a model needs them"):
                task(part)


def test_an_altered_part_is_refused_by_the_rank_that_holds_it(tmp_path):
    graph = make_graph()
    path = written_store(tmp_path / "store", graph, make_book(graph))
    file = path / "parts" / "00001" / "features.npy"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(StoreError, match=r"features.npy was altered"):
        PartitionedGraph.open(path, rank=1, size=2)
