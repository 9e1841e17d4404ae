"""From a graph on disk to a partition store: read, split, order, renumber, write."""

import dataclasses
import time
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from windrow.comm.errors import StoreError, from_here
from windrow.comm.options import PathOption, checked_dataclass
from windrow.gnn.demand import bytes_for_priorities, vertex_priorities
from windrow.gnn.graph import EDGE_ARRAYS, Graph
from windrow.gnn.readers import GraphOptions, read_graph
from windrow.gnn.sampler import SamplerOptions
from windrow.gnn.task import TrainingOptions
from windrow.partition import (
    PartitionBook,
    PartitionOptions,
    PartitionQuality,
    available_memory_bytes,
    check_memory,
    estimate_memory,
    measure_quality,
    partition_graph,
    write_store,
)
from windrow.partition.book import ORDER_KEY, VertexOrder, order_to_metadata
from windrow.partition.options import MemoryEstimate
from windrow.training.terminal import Progress, duration

__all__ = ["PartitionJob", "graph_to_store", "partition_to_store", "store_arrays"]

CHUNK_ROWS = 1 << 14
SHARED = ("indptr", "indices", "labels", "train_ids", "validation_ids", "test_ids", "feature_scaling", *EDGE_ARRAYS)


@checked_dataclass
class PartitionJob:
    """The part of a recipe that concerns the partition store."""

    store: PathOption
    """Folder of the partitioned graph: written by ``windrow partition``, read by ``windrow train``."""
    graph: GraphOptions
    """Which graph."""
    partition: PartitionOptions = field(default_factory=PartitionOptions)
    """How it is split among the ranks."""
    sampler: SamplerOptions = field(default_factory=SamplerOptions)
    """How its minibatches are made: vertices are ordered for them inside their part."""
    training: TrainingOptions = field(default_factory=TrainingOptions)
    """How weights are learnt; of the partition, only the batch size is asked."""


def partition_to_store(
    job: PartitionJob, *, overwrite: bool = False, progress: Progress | None = None
) -> PartitionQuality:
    """Partition a graph on disk and write the store that training opens. One process does all of it.

    Shows the memory that it will take before it starts, a bar for each stage, and the quality at the end.

    Args:
        job: which graph, how to split it, where to write.
        overwrite: replace an existing store.
        progress: where to show all this; None for nowhere.

    Returns:
        The quality of the partition.

    Raises:
        StoreError: the store exists and is not to be overwritten, or cannot be written.
        DataError: the graph breaks a law, or too little memory is free.
        RecipeError: an option is out of range.
    """
    progress = progress or Progress()
    # Before the graph is read, which may take long.
    _check_place(job.store, overwrite=overwrite)
    progress.write(from_here(f"reading {job.graph.path}"))
    graph = read_graph(job.graph)
    return graph_to_store(
        graph,
        job.store,
        job.partition,
        sampler=job.sampler,
        training=job.training,
        overwrite=overwrite,
        progress=progress,
        origin=dataclasses.asdict(job.graph),
    )


def graph_to_store(
    graph: Graph,
    store: Path,
    options: PartitionOptions,
    *,
    sampler: SamplerOptions | None = None,
    training: TrainingOptions | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    origin: Mapping[str, object] | None = None,
) -> PartitionQuality:
    """Partition a graph in memory and write the store that training opens; else as `partition_to_store`.

    Args:
        graph: for example from `windrow.gnn.readers.from_pyg`.
        store: folder to write; appears whole or not at all.
        options: how to split it.
        sampler: the minibatches that vertices are ordered for inside their part; None for the defaults of a recipe.
        training: says their batch size; None for the defaults of a recipe.
        overwrite: replace an existing store.
        progress: where to show how far it is; None for nowhere.
        origin: where the graph came from, kept in the store's metadata as it is; what JSON can hold.

    Returns:
        The quality of the partition.

    Raises:
        StoreError: the store exists and is not to be overwritten, or cannot be written.
        DataError: too little memory is free, or there are fewer training vertices than parts.
    """
    progress = progress or Progress()
    _check_place(store, overwrite=overwrite)
    start = time.perf_counter()
    order = _order(graph, options, sampler or SamplerOptions(), training or TrainingOptions())
    estimate = _memory(graph, options, order)
    progress.write(f"{graph.num_vertices:,} vertices, {graph.num_edges:,} stored edges")
    progress.write(f"partitioning into {options.num_parts} parts by {options.method} takes about {estimate}")
    check_memory(estimate, available_memory_bytes())
    indptr, indices = graph.indptr.numpy(), graph.indices.numpy()
    train_ids, validation_ids = _ids_if_any(graph.train_ids), _ids_if_any(graph.validation_ids)
    stages = progress.report
    assignment = partition_graph(
        indptr, indices, options, train_ids=train_ids, validation_ids=validation_ids, progress=stages
    )
    quality = measure_quality(
        indptr, indices, assignment, options.num_parts, train_ids=train_ids, validation_ids=validation_ids
    )
    priority = None
    if order is not None:
        priority = vertex_priorities(graph, assignment, options.num_parts, order, progress=stages)
    book = PartitionBook.from_assignment(assignment, options.num_parts, priority)
    shared, sharded = store_arrays(graph, book)
    try:
        write_store(
            store,
            book,
            shared=shared,
            sharded=sharded,
            metadata={
                "task": graph.task,
                "num_classes": graph.num_classes,
                "fingerprint": graph.fingerprint(),
                "graph": dict(origin or {}),
                ORDER_KEY: order_to_metadata(order),
            },
            quality=quality,
            options=options,
            overwrite=overwrite,
            progress=stages,
        )
    except OSError as error:
        raise StoreError(
            f"cannot write the store {store}: {error.strerror}. Free some space or choose another folder."
        ) from error
    progress.finish()
    progress.write(quality.table())
    progress.write(from_here(f"wrote {store} in {duration(time.perf_counter() - start)}"))
    return quality


def store_arrays(
    graph: Graph, book: PartitionBook
) -> tuple[dict[str, npt.NDArray[np.generic]], dict[str, Iterator[npt.NDArray[np.generic]]]]:
    """What a store of a graph (in the user's order) holds, in the order of the partition.

    Returns:
        Arrays that every rank maps whole: indptr, indices, the ids of the three splits, and where there are some
        labels, weights and features of edges, and what made features standard; and, as chunks of rows so that there is
        no second copy in memory, features where there are some.
    """
    topology = dataclasses.replace(graph, features=None).relabel(book)
    shared = {name: tensor.numpy() for name in SHARED if (tensor := getattr(topology, name)) is not None}
    sharded = {} if graph.features is None else {"features": _row_chunks(graph.features, book)}
    return shared, sharded


def _check_place(store: Path, *, overwrite: bool) -> None:
    if store.exists() and not overwrite:
        raise StoreError(f"{store} already exists: replace it by --overwrite, or choose another folder")


def _order(
    graph: Graph, options: PartitionOptions, sampler: SamplerOptions, training: TrainingOptions
) -> VertexOrder | None:
    """What vertices are ordered for inside their part; None for the user's order."""
    if options.order == "original" or graph.labels is None or not graph.train_ids.numel():
        return None
    return VertexOrder(fanouts=sampler.fanouts, batch_size=training.batch_size, seed_order=sampler.order)


def _memory(graph: Graph, options: PartitionOptions, order: VertexOrder | None) -> MemoryEstimate:
    estimate = estimate_memory(graph.num_vertices, graph.num_edges, options)
    if order is None:
        return estimate
    ordering = bytes_for_priorities(graph, order)
    return MemoryEstimate(parts={**estimate.parts, "vertex order": ordering})


def _ids_if_any(ids: torch.Tensor) -> npt.NDArray[np.int64] | None:
    """None for an empty split: a graph without labels is partitioned by its edges alone."""
    return ids.numpy() if ids.numel() else None


def _row_chunks(rows: torch.Tensor, book: PartitionBook) -> Iterator[npt.NDArray[np.generic]]:
    for start in range(0, book.num_vertices, CHUNK_ROWS):
        yield rows[torch.from_numpy(book.new_to_old[start : start + CHUNK_ROWS])].numpy()
