"""From a graph on disk to a partition store: read, split, order, renumber, write."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import torch

from windrow.caching.vip import Demand, inclusion_probabilities
from windrow.comm.errors import StoreError, from_here
from windrow.comm.options import PathOption, checked_dataclass
from windrow.gnn.graph import Graph
from windrow.gnn.readers import GraphOptions, read_graph
from windrow.gnn.sampler import SamplerOptions
from windrow.gnn.seed_order import SeedScheme, count_steps
from windrow.gnn.task import TrainingOptions
from windrow.gnn.types import EDGE_ARRAYS
from windrow.partition.book import PartitionBook
from windrow.partition.options import PartitionOptions, available_memory_bytes, check_memory, estimate_memory
from windrow.partition.partitioners import partition_graph
from windrow.partition.quality import PartitionQuality, measure_quality
from windrow.partition.store import write_store
from windrow.training.terminal import Progress, duration

__all__ = [
    "PartitionJob",
    "bytes_for_priorities",
    "check_place",
    "check_vertex_order",
    "graph_to_store",
    "partition_to_store",
    "store_arrays",
    "vertex_order",
    "vertex_priorities",
]

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
    """Partition a graph on disk and write the store that training opens, as `graph_to_store`: which see.

    DataError also where the graph breaks a law.
    """
    progress = progress or Progress()
    # Before the graph is read, which may take long.
    check_place(job.store, overwrite=overwrite)
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
    """Partition a graph in memory and write the store that training opens. One process does all of it.

    Shows the memory that it will take before it starts, a bar for each stage, and the quality at the end.

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
        RecipeError: an option is out of range.
    """
    progress = progress or Progress()
    check_place(store, overwrite=overwrite)
    start = time.perf_counter()
    sampler, training = sampler or SamplerOptions(), training or TrainingOptions()
    order: dict[str, Any] = {"by": "original"}
    needed = estimate_memory(graph.num_vertices, graph.num_edges, options)
    if options.order != "original" and graph.labels is not None and graph.train_ids.numel():
        order = vertex_order(sampler, training.batch_size)
        needed["vertex order"] = bytes_for_priorities(graph, sampler.fanouts)
    progress.write(f"{graph.num_vertices:,} vertices, {graph.num_edges:,} stored edges")
    if graph.types is not None:
        kinds = ", ".join(f"{name} {one.number:,}" for name, one in graph.types.vertices.items())
        progress.write(f"vertices of the types {kinds}; edges of {len(graph.types.edges)} types")
    told = check_memory(needed, available_memory_bytes())
    progress.write(f"partitioning into {options.num_parts} parts by {options.method} takes about {told}")
    indptr, indices = graph.indptr.numpy(), graph.indices.numpy()
    # A graph without labels is partitioned by its edges alone.
    train_ids, validation_ids = (
        ids.numpy() if ids.numel() else None for ids in (graph.train_ids, graph.validation_ids)
    )
    stages = progress.report
    assignment = partition_graph(
        indptr, indices, options, train_ids=train_ids, validation_ids=validation_ids, progress=stages
    )
    quality = measure_quality(
        indptr, indices, assignment, options.num_parts, train_ids=train_ids, validation_ids=validation_ids
    )
    priority = None
    if order["by"] == "vip":
        priority = vertex_priorities(
            graph, assignment, options.num_parts, sampler.fanouts, training.batch_size, progress=stages
        )
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
                "order": order,
                **({} if graph.types is None else {"types": graph.types.to_json()}),
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
    features = graph.features
    if features is None:
        return shared, {}
    places = torch.from_numpy(book.new_to_old).split(CHUNK_ROWS)
    return shared, {"features": (features[chunk].numpy() for chunk in places)}


PRIORITY_STAGE = "ordering vertices"
VECTORS_PER_HOP = 4
"""Of N numbers of 8 bytes each: those of `inclusion_probabilities`."""
VECTORS_BESIDE_HOPS = 9
"""Five of the same function, what it knows of overlaps and where lists start, the priorities, and the ids of a part."""


def vertex_priorities(
    graph: Graph,
    assignment: npt.NDArray[np.integer],
    num_parts: int,
    fanouts: Sequence[int],
    batch_size: int,
    *,
    progress: Callable[[str, float], None] | None = None,
) -> npt.NDArray[np.float64]:
    """The probability of each vertex to be needed in a minibatch of the rank that owns it, float64 [N].

    A part without training vertices has zeros. `assignment` integer [N] is each vertex's part, in the user's numbering
    as the graph, `batch_size` the seeds of a step over all ranks; `progress` is called with a stage name and the share
    done, 0 to 1.

    Cost: a pass over the edges for each part and hop, one part after another; memory: see `bytes_for_priorities`.
    """
    indptr, indices = graph.indptr.numpy(), graph.indices.numpy()
    train_ids = graph.train_ids.numpy()
    parts_of_seeds = assignment[train_ids]
    steps = count_steps(len(train_ids), batch_size)
    priorities = np.zeros(graph.num_vertices)
    report = progress or (lambda *_: None)
    report(PRIORITY_STAGE, 0.0)
    samplers = graph.samplers()
    # Parts are no ranges before vertices are renumbered; probabilities do not ask who owns a vertex.
    known = partial(
        Demand,
        indptr=indptr,
        indices=indices,
        edge_type=graph.edge_type_array,
        own=(0, 0),
        steps=steps,
        fanouts=tuple(fanouts),
    )
    for part in range(num_parts):
        seeds = train_ids[parts_of_seeds == part]
        if len(seeds):
            mine = np.flatnonzero(assignment == part)
            priorities[mine] = inclusion_probabilities(known(seeds=seeds), samplers=samplers)[-1][mine]
        report(PRIORITY_STAGE, (part + 1) / num_parts)
    return priorities


def bytes_for_priorities(graph: Graph, fanouts: Sequence[int]) -> int:
    """Estimate the peak memory of `vertex_priorities` beyond the graph, in bytes; less where it is undirected."""
    lists = graph.num_edges * (graph.indices.element_size() + 1 + (0 if graph.types is None else 9))
    return lists + graph.num_vertices * 8 * (VECTORS_BESIDE_HOPS + VECTORS_PER_HOP * len(fanouts))


def vertex_order(sampler: SamplerOptions, batch_size: int) -> dict[str, Any]:
    """What a store keeps of an order made for such minibatches; {"by": "original"} is the user's order."""
    return {"by": "vip", "fanouts": list(sampler.fanouts), "batch_size": batch_size, "seed_order": sampler.order}


def check_vertex_order(found: Mapping[str, Any] | None, job: PartitionJob, *, gpu_share: float) -> None:
    """Refuse the store, of order `found`, where it was ordered for other minibatches than those of the job: StoreError.

    The order counts where the first rows of each part alone are in GPU memory, a share `gpu_share` of them; elsewhere,
    and where the job wants "original", it is only a matter of layout.
    """
    wanted = vertex_order(job.sampler, job.training.batch_size)
    # Probabilities are the same however seeds are shuffled.
    fits = any(found == {**wanted, "seed_order": scheme} for scheme in get_args(SeedScheme))
    if 0 < gpu_share < 1 and job.partition.order == "vip" and not fits:
        raise StoreError(
            f"{job.store} is ordered for {found or 'no minibatches'}, but cache.gpu_share = {gpu_share} keeps the "
            f"rows in GPU memory that are needed most with {wanted}: run `windrow partition` again with this recipe "
            'and --overwrite, or set cache.gpu_share to 0 or 1, or partition.order = "original" to take the first rows '
            "whatever they are"
        )


def check_place(store: Path, *, overwrite: bool) -> None:
    """Refuse a store that exists and is not to be overwritten: StoreError."""
    if store.exists() and not overwrite:
        raise StoreError(f"{store} already exists: replace it by --overwrite, or choose another folder")
