"""From an edge list to a partition store by several ranks, none of which ever has the whole graph.

    GraphPiece                   this rank's vertices, with their neighbour lists and rows
      | partition_on_ranks       part of every vertex, on every rank
      v
    some vertices of each part   new ids in place of the user's
      | all-to-all               part p goes to rank p % size, as many parts at a time as there are ranks
      v
    StoreOnRanks                 each rank writes the parts that come to it

With the same parts the arrays are those that `windrow.gnn.partitioning.graph_to_store` writes, byte for byte; features
that are made standard up to rounding.
"""

import dataclasses
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.comm.errors import RecipeError, StoreError, from_here
from windrow.comm.rows import numbers_in_ranges, offsets_from_counts
from windrow.comm.world import World
from windrow.gnn.graph_piece import SPLITS, GraphPiece, check_readable_on_ranks, read_piece
from windrow.gnn.partitioning import PartitionJob, check_place
from windrow.gnn.readers.options import GraphOptions
from windrow.gnn.types import EDGE_ARRAYS
from windrow.partition.constraints import SALIENT_CONSTRAINTS, stack_weights, vertex_weights, weigh_parts
from windrow.partition.graph_kernels import relabel
from windrow.partition.partitioners import METHODS_ON_RANKS, partition_on_ranks
from windrow.partition.quality import PartitionQuality
from windrow.partition.store import StoreOnRanks
from windrow.training.terminal import Progress, duration

__all__ = ["check_job_on_ranks", "partition_to_store_on_ranks"]

STAGE = "partition"
VERTICES_AT_ONCE = 1 << 20
"""Of a rank, that are sent to those that write their parts; or whose new ids are found."""
DIGESTED_BYTES = 64 << 20
"""Of a file, by one rank at once."""


def check_job_on_ranks(job: PartitionJob, *, overwrite: bool) -> None:
    """Refuse what several ranks cannot do, before they meet.

    Raises:
        RecipeError: METIS, an order of vertices, or a format that needs the whole graph in one process.
        StoreError: the store exists and is not to be overwritten.
    """
    options = job.partition
    # Without labels vertices stay in the user's order in any case.
    is_ordered = options.order != "original" and bool(job.graph.edge_list.label_columns)
    if options.method not in METHODS_ON_RANKS or is_ordered:
        raise RecipeError(
            f'partition.method = "{options.method}" and partition.order = "{options.order}": METIS and the order "vip" '
            'hold the whole graph in one process: for several ranks set method = "fennel" (or "random") and order = '
            '"original", or start one process, without mpirun'
        )
    check_readable_on_ranks(job.graph)
    check_place(job.store, overwrite=overwrite)


def partition_to_store_on_ranks(
    job: PartitionJob, world: World, *, overwrite: bool = False, progress: Progress | None = None
) -> PartitionQuality:
    """Partition a graph on disk by all ranks, and write the store that training opens. Collective.

    Any number of ranks makes any number of parts; the files, and the folder of the store, must be there for all.

    Args:
        job: as of `windrow.gnn.partitioning.partition_to_store`; must agree.
        world: who works.
        overwrite: replace an existing store; must agree.
        progress: where to show how far it is; None for nowhere.

    Returns:
        The quality of the partition, the same on all ranks.

    Raises:
        RecipeError: see `check_job_on_ranks`.
        StoreError: the store exists and is not to be overwritten, or cannot be written.
        DataError: the graph breaks a law, or has fewer training vertices than parts.

    Memory: see `windrow.gnn.graph_piece.read_piece`, and then, on each rank, 8 bytes for each vertex of the graph, 12
    where it has 2**31 of them, beside the own lists and rows. It is that where `connect(keep_memory=False)` opened the
    world; else what is freed on the way stays too.
    """
    check_job_on_ranks(job, overwrite=overwrite)
    progress, start = progress or Progress(), time.perf_counter()
    progress.write(from_here(f"reading {job.graph.path} on {world.size} ranks"))
    piece = read_piece(job.graph, world)
    num_edges = int(world.all_reduce(torch.tensor([piece.num_edges]), stage=STAGE))
    progress.write(f"{piece.bounds[-1]:,} vertices, {num_edges:,} stored edges")
    assignment = partition_on_ranks(
        world,
        piece.bounds,
        piece.indptr.numpy(),
        piece.indices.numpy(),
        job.partition,
        train_ids=piece.split_places("train_ids"),
        validation_ids=piece.split_places("validation_ids"),
        progress=progress.report,
    )
    metadata = {
        "task": piece.task,
        "num_classes": piece.num_classes,
        "fingerprint": _fingerprint(job.graph, world),
        "graph": dataclasses.asdict(job.graph),
        "order": {"by": "original"},
    }
    balance = _balance(world, piece, assignment[slice(*piece.own_range)], job.partition.num_parts)
    layout = _Layout.of(world, piece, assignment, job.partition.num_parts)
    del assignment
    try:
        with StoreOnRanks(world, job.store, overwrite=overwrite) as store:
            _write_whole(store, world, piece, layout)
            counts = _write_parts(store, world, piece, layout, progress)
            entries, remote, halo = world.all_reduce(counts, stage=STAGE).T.numpy()
            quality = PartitionQuality(
                num_edges=num_edges,
                cut_edges=int(remote.sum()),
                balance=balance,
                part_sizes=tuple(np.diff(layout.offsets).tolist()),
                halo_sizes=tuple(halo.tolist()),
                remote_neighbour_fractions=tuple((remote / np.maximum(entries, 1)).tolist()),
            )
            store.finish(metadata=metadata, quality=quality, options=job.partition)
    except OSError as error:
        raise StoreError(
            f"cannot write the store {job.store}: {error.strerror}. Free some space or choose another folder that all "
            "ranks see."
        ) from error
    progress.finish()
    progress.write(quality.table())
    progress.write(from_here(f"wrote {job.store} in {duration(time.perf_counter() - start)}"))
    return quality


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Where everything goes."""

    offsets: npt.NDArray[np.int64]
    """[parts + 1], of the book."""
    old_to_new: npt.NDArray[np.integer]
    """[N], of the book, in 32 bits where ids fit."""
    order: npt.NDArray[np.int64]
    """[own], the own vertices part by part, counted from the first of the piece."""
    vertices: npt.NDArray[np.int64]
    """[ranks, parts], how many vertices of each part each rank has read."""
    vertex_places: npt.NDArray[np.int64]
    """[ranks, parts], the new id of the first of them."""
    edge_places: npt.NDArray[np.int64]
    """[ranks, parts], where the edges of the first of them begin among all."""
    num_edges: int
    """Of the graph."""

    @staticmethod
    def of(world: World, piece: GraphPiece, assignment: npt.NDArray[np.int32], num_parts: int) -> "_Layout":
        """By the parts of all vertices, int32 [N]. Collective."""
        chunks = range(0, len(assignment), VERTICES_AT_ONCE)
        of_chunks = [np.bincount(assignment[first : first + VERTICES_AT_ONCE], minlength=num_parts) for first in chunks]
        offsets = np.array(offsets_from_counts(np.sum(of_chunks, 0).tolist()))
        dtype: type[np.integer] = np.int32 if len(assignment) < 2**31 else np.int64
        old_to_new, following = np.empty(len(assignment), dtype), offsets[:-1].copy()
        for first, numbers in zip(chunks, of_chunks, strict=True):
            in_order = np.argsort(assignment[first : first + VERTICES_AT_ONCE], kind="stable")
            before = np.repeat(following - (np.cumsum(numbers) - numbers), numbers)
            old_to_new[first + in_order] = np.arange(len(in_order)) + before
            following += numbers
        own = assignment[slice(*piece.own_range)]
        degrees = piece.indptr.diff().numpy()
        counts = np.bincount(own, minlength=num_parts), np.bincount(own, degrees, num_parts).astype(np.int64)
        vertices, edges = np.stack(world.all_gather_object(counts, stage=STAGE), axis=1)
        # Part by part, and in a part rank by rank, as ranges of the user's ids follow one another.
        places = [(some.T.ravel().cumsum() - some.T.ravel()).reshape(num_parts, -1).T for some in (vertices, edges)]
        return _Layout(
            offsets=offsets,
            old_to_new=old_to_new,
            order=np.argsort(own, kind="stable"),
            vertices=vertices,
            vertex_places=places[0],
            edge_places=places[1],
            num_edges=int(edges.sum()),
        )


def _write_whole(store: StoreOnRanks, world: World, piece: GraphPiece, layout: _Layout) -> None:
    """Write what stands in the user's order, and make the files that parts are written into. Collective."""
    num_vertices = int(layout.offsets[-1])
    store.write_shared("part_offsets", layout.offsets if world.rank == 0 else layout.offsets[:0])
    store.write_shared("old_to_new", layout.old_to_new[slice(*piece.own_range)].astype(np.int64))
    for name in SPLITS:
        store.write_shared(name, layout.old_to_new[getattr(piece, name).numpy()].astype(np.int64))
    if piece.feature_scaling is not None:
        scaling = piece.feature_scaling.numpy()
        store.write_shared("feature_scaling", scaling if world.rank == 0 else scaling[:0])
    ids = np.dtype(np.int64)
    store.make_shared("new_to_old", ids, (num_vertices,))
    store.make_shared("indptr", ids, (num_vertices + 1,))
    if world.rank == 0:
        store.fill_shared("indptr", num_vertices, np.array([layout.num_edges]))
    if piece.labels is not None:
        store.make_shared("labels", piece.labels.numpy().dtype, (num_vertices, *piece.labels.shape[1:]))
    for name, rows in {"indices": piece.indices, **_of_edges(piece)}.items():
        store.make_shared(name, rows.numpy().dtype, (layout.num_edges, *rows.shape[1:]))


def _of_edges(piece: GraphPiece) -> dict[str, Tensor]:
    return {name: rows for name in EDGE_ARRAYS if (rows := getattr(piece, name)) is not None}


def _write_parts(store: StoreOnRanks, world: World, piece: GraphPiece, layout: _Layout, progress: Progress) -> Tensor:
    """Send each part to a rank, which writes it, some vertices of each at a time. Collective.

    Returns:
        int64 [parts, 3], of the parts that this rank has written: in-neighbours, those that are remote, and how many
        different ones these are (the halo); 0 of the others.
    """
    num_parts, size = len(layout.offsets) - 1, world.size
    counts = torch.zeros(num_parts, 3, dtype=torch.int64)
    for first in range(0, num_parts, size):
        last = min(first + size, num_parts)
        slices = int(layout.vertices[:, first:last].sum(axis=1).max()) // VERTICES_AT_ONCE + 1
        part = first + world.rank
        writer = _PartWriter(store, layout, part) if part < num_parts else None
        if writer is not None and piece.features is not None:
            writer.make_features(piece.features)
        for number in range(slices):
            for arrays in _slices(world, piece, layout, (first, last), (number, slices)):
                if writer is not None:
                    writer.write(*arrays)
            progress.report("writing parts", (first + (last - first) * (number + 1) / slices) / num_parts)
        if writer is not None:
            counts[part] = torch.tensor(writer.counts())
    return counts


def _slices(
    world: World, piece: GraphPiece, layout: _Layout, parts: tuple[int, int], share: tuple[int, int]
) -> Iterator[tuple[str, list[npt.NDArray[Any]]]]:
    """Send a share (k, n) of the own vertices of each of some parts to the ranks that write these. Collective.

    Yields:
        The name of an array, and what has come of it from each rank: in-degrees first.
    """
    first, last = parts
    number, slices = share
    own = offsets_from_counts(layout.vertices[world.rank].tolist())
    cuts = [
        tuple(own[part] + (own[part + 1] - own[part]) * place // slices for place in (number, number + 1))
        for part in range(first, last)
    ]
    chosen = np.concatenate([layout.order[start:stop] for start, stop in cuts])
    indptr, indices = relabel(piece.indptr.numpy(), piece.indices.numpy(), chosen, layout.old_to_new)
    rows = offsets_from_counts([stop - start for start, stop in cuts] + [0] * (world.size - len(cuts)))
    edges = indptr[rows].tolist()
    degrees = np.diff(indptr)
    yield "degrees", _sent(world, degrees, rows)
    yield "new_to_old", _sent(world, piece.own_range[0] + chosen, rows)
    for name in ("labels", "features"):
        if (values := getattr(piece, name)) is not None:
            yield name, _sent(world, values.numpy()[chosen], rows)
    yield "indices", _sent(world, indices, edges)
    if known := _of_edges(piece):
        starts = piece.indptr.numpy()[chosen]
        _, places = numbers_in_ranges(starts, starts + degrees)
        for name, values in known.items():
            yield name, _sent(world, values.numpy()[places], edges)


def _sent(world: World, rows: npt.NDArray[Any], bounds: Sequence[int]) -> list[npt.NDArray[Any]]:
    """Send rank r the rows bounds[r] .. bounds[r + 1] - 1: what has come from each. Collective."""
    counts = np.diff(bounds).tolist()
    arriving = world.all_to_all_counts(counts, stage=STAGE)
    received = world.all_to_all(torch.from_numpy(rows), counts, arriving, stage=STAGE)
    return [some.numpy() for some in received.split(arriving)]


class _PartWriter:
    """Writes a part as its vertices come, some of each rank at a time."""

    def __init__(self, store: StoreOnRanks, layout: _Layout, part: int) -> None:
        self._store, self._part = store, part
        self._range = layout.offsets[part : part + 2].tolist()
        self._vertices, self._edges = layout.vertex_places[:, part].tolist(), layout.edge_places[:, part].tolist()
        self._degrees: list[npt.NDArray[np.int64]] = []
        self._entries = self._remote = 0
        self._in_halo = np.zeros(int(layout.offsets[-1]), np.bool_)
        store.make_part(part)

    def make_features(self, like: Tensor) -> None:
        """Make the file of the features."""
        start, stop = self._range
        self._store.make_part_array(self._part, "features", like.numpy().dtype, (stop - start, *like.shape[1:]))

    def write(self, name: str, rows: list[npt.NDArray[Any]]) -> None:
        """Write what has come of an array from each rank; degrees come first, and say where the rest goes."""
        if name == "degrees":
            for source, before in enumerate(self._degrees):
                self._vertices[source] += len(before)
                self._edges[source] += int(before.sum())
            self._degrees = rows
        for source, some in enumerate(rows):
            at = self._vertices[source]
            if name == "degrees":
                self._store.fill_shared("indptr", at, self._edges[source] + np.cumsum(some) - some)
            elif name == "features":
                self._store.fill_part_array(self._part, name, at - self._range[0], some)
            elif name in ("labels", "new_to_old"):
                self._store.fill_shared(name, at, some)
            else:
                self._store.fill_shared(name, self._edges[source], some)
        if name == "indices":
            self._count(np.concatenate(rows))

    def _count(self, neighbours: npt.NDArray[np.integer]) -> None:
        start, stop = self._range
        remote = neighbours[(neighbours < start) | (neighbours >= stop)]
        self._entries += len(neighbours)
        self._remote += len(remote)
        self._in_halo[remote] = True

    def counts(self) -> list[int]:
        """In-neighbours, remote ones, and different remote ones."""
        return [self._entries, self._remote, int(self._in_halo.sum())]


def _balance(world: World, piece: GraphPiece, parts: npt.NDArray[np.int32], num_parts: int) -> dict[str, float]:
    """For each constraint the heaviest part's weight over the mean, as `PartitionQuality.balance`. Collective."""
    names = (*SALIENT_CONSTRAINTS, "vertices")
    mine = vertex_weights(
        piece.indptr.numpy(),
        train_ids=piece.split_places("train_ids"),
        validation_ids=piece.split_places("validation_ids"),
        balance=names,
    )
    columns = stack_weights(mine, names)
    sums = world.all_reduce(torch.from_numpy(weigh_parts(columns, parts, num_parts)), stage=STAGE).numpy()
    return {
        name: float(weights.max() * num_parts / weights.sum())
        for name, weights in zip(names, sums.T, strict=True)
        if weights.any()
    }


def _fingerprint(options: GraphOptions, world: World) -> str:
    """Digest of the files and how they are read, SHA-256 in hexadecimal, whatever the number of ranks. Collective.

    Another one than `Graph.fingerprint`, which reads all arrays in order.
    """
    pieces = [
        (path, start)
        for path in filter(None, (options.path, options.edge_list.vertex_file))
        for start in range(0, Path(path).stat().st_size, DIGESTED_BYTES)
    ]
    mine = []
    for path, start in pieces[world.rank :: world.size]:
        with Path(path).open("rb") as file:
            file.seek(start)
            mine.append(hashlib.sha256(file.read(DIGESTED_BYTES)).hexdigest())
    found = world.all_gather_object(mine, stage=STAGE)
    digests = [found[place % world.size][place // world.size] for place in range(len(pieces))]
    how = {name: value for name, value in dataclasses.asdict(options).items() if name != "path"}
    how["edge_list"].pop("vertex_file")
    return hashlib.sha256(json.dumps([how, digests], sort_keys=True).encode()).hexdigest()
