"""windrow.launch.partitioning: what is in the store is the graph, renumbered."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from windrow.comm.errors import DataError, StoreError
from windrow.gnn.graph import Graph
from windrow.gnn.readers import GraphOptions, read_graph
from windrow.launch import partitioning
from windrow.launch.partitioning import (
    PartitionJob,
    graph_to_store,
    partition_to_store,
    store_arrays,
)
from windrow.launch.progress import LineProgress, SilentProgress
from windrow.partition import PartitionBook, PartitionOptions, PartitionStore

RANDOM = PartitionOptions(num_parts=3, method="random")


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


def partition(graph_file: Path, store: Path, *, overwrite: bool = False) -> PartitionStore:
    job = PartitionJob(store=store, graph=GraphOptions(path=str(graph_file)), partition=RANDOM)
    partition_to_store(job, overwrite=overwrite, progress=SilentProgress())
    return PartitionStore.open(store, expect_parts=3)


def test_the_store_holds_the_renumbered_graph(graph_file: Path, tmp_path: Path) -> None:
    store = partition(graph_file, tmp_path / "store")
    graph = read_graph(GraphOptions(path=str(graph_file)))
    expected = graph.relabel(PartitionBook.from_assignment(store.book.assignment(), 3))
    for name in ("indptr", "indices", "labels", "train_ids", "validation_ids", "test_ids"):
        assert np.array_equal(store.shared(name), getattr(expected, name).numpy()), name
    features = np.concatenate([store.sharded("features", part) for part in range(3)])
    assert np.array_equal(store.book.restore(features), np.arange(120, dtype=np.float32).reshape(60, 2))
    assert store.metadata["task"] == "binary"
    assert store.metadata["num_classes"] == 2
    assert store.metadata["fingerprint"] == graph.fingerprint()
    assert store.quality is not None
    assert sum(store.quality.part_sizes) == 60


def test_features_are_cut_into_chunks_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioning, "CHUNK_ROWS", 7)
    nothing = torch.empty(0, dtype=torch.int64)
    graph = Graph(
        indptr=torch.zeros(21, dtype=torch.int64),
        indices=nothing,
        features=torch.arange(20.0).unsqueeze(1),
        labels=None,
        train_ids=nothing,
        validation_ids=nothing,
        test_ids=nothing,
        task="single-label",
        num_classes=0,
    )
    book = PartitionBook.from_assignment(np.arange(20) % 3, 3)
    shared, sharded = store_arrays(graph, book)
    assert "labels" not in shared
    chunks = list(sharded["features"])
    assert [len(chunk) for chunk in chunks] == [7, 7, 6]
    assert np.array_equal(np.concatenate(chunks)[:, 0], book.new_to_old)
    assert store_arrays(graph.relabel(book), book)[1].keys() == {"features"}


def test_an_existing_store_is_kept_unless_asked(graph_file: Path, tmp_path: Path) -> None:
    partition(graph_file, tmp_path / "store")
    with pytest.raises(StoreError, match=r"already exists.*--overwrite"):
        partition(graph_file, tmp_path / "store")
    partition(graph_file, tmp_path / "store", overwrite=True)


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


def test_a_full_disk_leaves_nothing(
    graph_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left on device"):
        partition(graph_file, tmp_path / "store")
    assert [entry.name for entry in tmp_path.iterdir()] == ["ring.npz"]
