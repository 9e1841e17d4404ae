"""windrow.gnn.partitioning: what is in the store is the graph, renumbered."""

import dataclasses
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from windrow.comm.errors import DataError, StoreError
from windrow.gnn import partitioning
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.partitioning import (
    PartitionJob,
    check_vertex_order,
    graph_to_store,
    partition_to_store,
    store_arrays,
    vertex_order,
    vertex_priorities,
)
from windrow.gnn.readers import GraphOptions, read_graph
from windrow.gnn.sampler import NeighborSampler, SamplerOptions
from windrow.gnn.synthetic import community_graph
from windrow.gnn.task import TrainingOptions
from windrow.partition import PartitionBook, PartitionOptions, PartitionStore
from windrow.training.terminal import LineProgress, Progress

RANDOM = PartitionOptions(num_parts=3, method="random")
ORIGINAL = PartitionOptions(num_parts=3, method="random", order="original")
SAMPLER = SamplerOptions(fanouts=(2, 1), order="local")
TRAINING = TrainingOptions(batch_size=7)


@pytest.fixture
def graph_file(tmp_path: Path) -> Path:
    """A ring of 60 vertices with chords, in the layout of the shipped data sets."""
    ring = np.arange(60)
    edges = np.concatenate([np.stack([ring, (ring + 1) % 60], 1), np.stack([ring[:20], ring[:20] + 30], 1)])
    masks = np.zeros((3, 1, 60), bool)
    for split in range(3):
        masks[split, 0, split::3] = True
    path = tmp_path / "ring.npz"
    np.savez(
        path,
        edges=edges,
        node_features=np.arange(120, dtype=np.float32).reshape(60, 2),
        node_labels=ring % 2,
        train_masks=masks[0],
        val_masks=masks[1],
        test_masks=masks[2],
    )
    return path


def partition(graph_file: Path, store: Path) -> PartitionStore:
    job = PartitionJob(store=store, graph=GraphOptions(path=str(graph_file)), partition=RANDOM)
    partition_to_store(job, progress=Progress())
    return PartitionStore.open(store, expect_parts=3)


def test_the_store_holds_the_renumbered_graph(graph_file: Path, tmp_path: Path) -> None:
    store = partition(graph_file, tmp_path / "store")
    graph = read_graph(GraphOptions(path=str(graph_file)))
    # Copies: torch warns of arrays that it must not write to.
    arrays = {name: getattr(store.book, name).copy() for name in ("offsets", "new_to_old", "old_to_new")}
    expected = graph.relabel(PartitionBook(**arrays))
    for name in ("indptr", "indices", "labels", "train_ids", "validation_ids", "test_ids"):
        assert np.array_equal(store.shared(name), getattr(expected, name).numpy()), name
    features = np.concatenate([store.sharded("features", part) for part in range(3)])
    assert np.array_equal(store.book.restore(features), np.arange(120, dtype=np.float32).reshape(60, 2))
    assert store.metadata["task"] == "binary"
    assert store.metadata["num_classes"] == 2
    assert store.metadata["fingerprint"] == graph.fingerprint()
    assert store.manifest.quality is not None
    assert sum(store.manifest.quality["part_sizes"]) == 60


def test_the_vertices_that_a_part_needs_most_come_first(tmp_path: Path) -> None:
    graph = community_graph(300, 3, seed=4, num_features=5)
    graph_to_store(graph, tmp_path / "store", RANDOM, sampler=SAMPLER, training=TRAINING)
    store = PartitionStore.open(tmp_path / "store")
    assert store.metadata["order"] == vertex_order(SAMPLER, TRAINING.batch_size)
    owners = store.book.owner(store.book.old_to_new)
    priorities = vertex_priorities(graph, owners, 3, SAMPLER.fanouts, TRAINING.batch_size)
    for part in range(3):
        start, stop = store.book.part_range(part)
        falling = priorities[store.book.new_to_old[start:stop]]
        assert (np.diff(falling) <= 0).all()
        assert falling[0] > falling[-1]


def test_the_order_changes_neither_parts_nor_rows_nor_the_graph(tmp_path: Path) -> None:
    graph = community_graph(300, 3, seed=4, num_features=5)
    for options in (RANDOM, ORIGINAL):
        graph_to_store(graph, tmp_path / options.order, options)
    vip, original = (PartitionStore.open(tmp_path / options.order) for options in (RANDOM, ORIGINAL))
    assert original.metadata["order"] == {"by": "original"}
    assert not np.array_equal(vip.book.new_to_old, original.book.new_to_old)
    assert np.array_equal(vip.book.owner(vip.book.old_to_new), original.book.owner(original.book.old_to_new))
    assert vip.metadata["fingerprint"] == original.metadata["fingerprint"]
    assert vip.manifest.quality == original.manifest.quality
    assert graph.features is not None
    assert graph.labels is not None
    for store in (vip, original):
        book = store.book
        features = np.concatenate([store.sharded("features", part) for part in range(3)])
        assert np.array_equal(book.restore(features), graph.features.numpy())
        assert np.array_equal(book.restore(store.shared("labels")), graph.labels.numpy())
        for split in ("train_ids", "validation_ids", "test_ids"):
            assert np.array_equal(book.to_original(store.shared(split)), getattr(graph, split).numpy())


def test_predictions_do_not_depend_on_the_order(tmp_path: Path) -> None:
    """What one rank samples for a vertex of the user's, in either store."""
    graph = community_graph(300, 3, seed=4, num_features=5)
    drawn = []
    for options in (RANDOM, ORIGINAL):
        graph_to_store(graph, tmp_path / options.order, options)
        views = [PartitionedGraph.open(tmp_path / options.order, rank=rank, size=3) for rank in range(3)]
        assert (views[0].order == {"by": "original"}) == (options.order == "original")
        features = torch.cat([view.features for view in views])
        ids = views[0].original_ids
        sampler = NeighborSampler(views[0].indptr, views[0].indices, (3, 2), seed=1, original_ids=ids)
        seeds = torch.from_numpy(views[0].book.to_new(np.arange(20)))
        minibatch = sampler.sample(seeds, epoch=0, step=0)
        drawn.append((ids[minibatch.input_ids], features[minibatch.input_ids]))
    assert torch.equal(drawn[0][0], drawn[1][0])
    assert torch.equal(drawn[0][1], drawn[1][1])


@pytest.mark.parametrize("without", ["train_ids", "labels"])
def test_what_cannot_be_trained_on_stays_in_the_users_order(tmp_path: Path, without: str) -> None:
    graph = community_graph(60, 3, seed=4, num_features=5)
    graph = dataclasses.replace(graph, **{without: None if without == "labels" else graph.train_ids[:0]})
    graph_to_store(graph, tmp_path / "store", RANDOM)
    store = PartitionStore.open(tmp_path / "store")
    assert store.metadata["order"] == {"by": "original"}
    assert (
        np.diff(store.book.new_to_old)[np.diff(store.book.owner(store.book.old_to_new)[store.book.new_to_old]) == 0] > 0
    ).all()


def test_features_are_cut_into_chunks_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioning, "CHUNK_ROWS", 7)
    graph = community_graph(20, 3, seed=4)
    graph = dataclasses.replace(graph, features=torch.arange(20.0).unsqueeze(1), labels=None)
    book = PartitionBook.from_assignment(np.arange(20) % 3, 3)
    shared, sharded = store_arrays(graph, book)
    assert "labels" not in shared
    chunks = list(sharded["features"])
    assert [len(chunk) for chunk in chunks] == [7, 7, 6]
    assert np.array_equal(np.concatenate(chunks)[:, 0], book.new_to_old)
    assert store_arrays(graph.relabel(book), book)[1].keys() == {"features"}


def test_a_graph_in_memory_makes_the_same_store(graph_file: Path, tmp_path: Path) -> None:
    from_file = partition(graph_file, tmp_path / "store")
    graph = read_graph(GraphOptions(path=str(graph_file)))
    graph_to_store(graph, tmp_path / "other", RANDOM)
    in_memory = PartitionStore.open(tmp_path / "other", expect_parts=3)
    assert in_memory.manifest.files == from_file.manifest.files
    assert in_memory.metadata["graph"] == {}
    with pytest.raises(StoreError, match="already exists"):
        graph_to_store(graph, tmp_path / "other", RANDOM)


def test_memory_is_told_before_and_quality_after(graph_file: Path, tmp_path: Path) -> None:
    stream = io.StringIO()
    job = PartitionJob(store=tmp_path / "store", graph=GraphOptions(path=str(graph_file)), partition=RANDOM)
    partition_to_store(job, progress=LineProgress(stream, interval_s=0))
    lines = stream.getvalue().splitlines()
    assert lines[1] == "60 vertices, 160 stored edges"
    assert lines[2].startswith("partitioning into 3 parts by random takes about 0.00 GB")
    assert ", vertex order 0.00 GB" in lines[2]
    assert any(line.startswith("ordering vertices: ") for line in lines)
    assert any(line.startswith("checksums: ") for line in lines)
    assert any("edge cut" in line for line in lines)
    assert lines[-1].startswith(f"wrote {tmp_path / 'store'} in ")


def test_too_little_memory_is_refused_before_it_starts(
    graph_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitioning, "available_memory_bytes", lambda: 100)
    with pytest.raises(DataError, match="short of"):
        partition(graph_file, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_a_full_disk_leaves_nothing(graph_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left on device"):
        partition(graph_file, tmp_path / "store")
    assert [entry.name for entry in tmp_path.iterdir()] == ["ring.npz"]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"fanouts": [3]}, r"'fanouts': \[3\].*'fanouts': \[2, 1\].*--overwrite"),
        ({"batch_size": 512}, r"'batch_size': 512.*--overwrite"),
        ({"by": "original"}, "'original'.*gpu_share = 0.5"),
        (None, "mine is ordered for no minibatches"),
    ],
)
def test_other_minibatches_are_refused_where_a_share_is_kept_near(found: dict[str, Any] | None, words: str) -> None:
    job = PartitionJob(store=Path("mine"), graph=GraphOptions(path="g.npz"), sampler=SAMPLER, training=TRAINING)
    order = vertex_order(SAMPLER, TRAINING.batch_size)
    for gpu_share in (0, 0.5, 1):
        check_vertex_order(order, job, gpu_share=gpu_share)
        check_vertex_order({**order, "seed_order": "local"}, job, gpu_share=gpu_share)
    other = None if found is None else {**order, **found}
    with pytest.raises(StoreError, match=words):
        check_vertex_order(other, job, gpu_share=0.5)
    for gpu_share in (0, 1):
        check_vertex_order(other, job, gpu_share=gpu_share)
    check_vertex_order(other, dataclasses.replace(job, partition=ORIGINAL), gpu_share=0.5)
