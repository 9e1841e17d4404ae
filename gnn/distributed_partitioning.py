"""From an edge list to a partition store by several ranks, none of which ever has the whole graph.

    GraphPiece                   this rank's vertices, with their neighbour lists and rows
      | partition_on_ranks       part of every vertex, on every rank
      v
    lists and rows by part       new ids in place of the user's
      | all-to-all               part p goes to rank p % size, as many parts at a time as there are ranks
      v
    StoreOnRanks                 each rank writes the parts that have come to it

With the same parts the arrays are those that `windrow.gnn.partitioning.graph_to_store` writes, byte for byte.
"""

import dataclasses
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.comm.errors import RecipeError, StoreError, from_here
from windrow.comm.rows import offsets_from_counts
from windrow.comm.world import World
from windrow.gnn.graph_piece import SPLITS, GraphPiece, check_readable_on_ranks, read_piece
from windrow.gnn.partitioning import PartitionJob, check_place
from windrow.gnn.readers.options import GraphOptions
from windrow.gnn.types import EDGE_ARRAYS
from windrow.partition.constraints import SALIENT_CONSTRAINTS, vertex_weights, weigh_parts
from windrow.partition.graph_kernels import relabel
from windrow.partition.partitioners import METHODS_ON_RANKS, partition_on_ranks
from windrow.partition.quality import PartitionQuality
from windrow.partition.store import StoreOnRanks
from windrow.training.terminal import Progress, duration

__all__ = ["check_job_on_ranks", "partition_to_store_on_ranks"]

STAGE = "partition"
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

    Memory: see `windrow.gnn.graph_piece.read_piece`, and then, on each rank, 8 bytes for each vertex of the graph, 16
    where it has 2**31 of them, the own lists twice, and rows three times.
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
    old_to_new, offsets = _numbered_by_part(assignment, job.partition.num_parts)
    by_part = _ByPart.of(world, piece, assignment[slice(*piece.own_range)], old_to_new, offsets)
    del assignment
    # Its lists stand in the order of the parts now.
    piece = dataclasses.replace(piece, indices=piece.indices[:0].clone(), edge_weight=None, edge_attr=None)
    try:
        with StoreOnRanks(world, job.store, overwrite=overwrite) as store:
            _write_whole(store, world, piece, by_part, old_to_new)
            del old_to_new
            counts = _write_parts(store, world, by_part, progress)
            entries, remote, halo = world.all_reduce(counts, stage=STAGE).T.numpy()
            quality = PartitionQuality(
                num_edges=num_edges,
                cut_edges=int(remote.sum()),
                balance=balance,
                part_sizes=tuple(np.diff(by_part.offsets).tolist()),
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
class _ByPart:
    """The own vertices in the order of their parts, neighbours by new ids."""

    offsets: npt.NDArray[np.int64]
    """[parts + 1], of the book."""
    edge_offsets: npt.NDArray[np.int64]
    """[parts + 1], where the edges of each part begin among all."""
    order: Tensor
    """[own], the vertices, counted from the first of the piece."""
    bounds: list[int]
    """[parts + 1], where the vertices of each part begin among the own ones."""
    indptr: Tensor
    """[own + 1]."""
    indices: Tensor
    """[own edges]."""
    of_edges: Mapping[str, Tensor]
    """Rows [own edges, ...]."""
    of_vertices: Mapping[str, Tensor]
    """Rows [own, ...] of the piece, in its own order, the user's ids among them."""

    @staticmethod
    def of(
        world: World,
        piece: GraphPiece,
        parts: npt.NDArray[np.int32],
        old_to_new: npt.NDArray[np.integer],
        offsets: npt.NDArray[np.int64],
    ) -> "_ByPart":
        """Order a piece by the parts of its vertices, int32 [own]; of the book [N] and [parts + 1]. Collective."""
        order = np.argsort(parts, kind="stable")
        new_indptr, new_indices = relabel(piece.indptr.numpy(), piece.indices.numpy(), order, old_to_new)
        indptr, rows = torch.from_numpy(new_indptr), torch.from_numpy(order)
        bounds = offsets_from_counts(np.bincount(parts, minlength=len(offsets) - 1).tolist())
        edges = world.all_reduce(indptr[bounds].diff(), stage=STAGE)
        known = {name: some for name in EDGE_ARRAYS if (some := getattr(piece, name)) is not None}
        if known:
            shifts = (piece.indptr[:-1][rows] - indptr[:-1]).repeat_interleave(indptr.diff())
            places = shifts + torch.arange(len(shifts))
            known = {name: values[places] for name, values in known.items()}
        of_vertices = {name: some for name in ("features", "labels") if (some := getattr(piece, name)) is not None}
        return _ByPart(
            offsets=offsets,
            edge_offsets=np.array(offsets_from_counts(edges.tolist())),
            order=rows,
            bounds=bounds,
            indptr=indptr,
            indices=torch.from_numpy(new_indices),
            of_edges=known,
            of_vertices=of_vertices | {"new_to_old": torch.arange(*piece.own_range)},
        )


def _numbered_by_part(
    assignment: npt.NDArray[np.int32], num_parts: int
) -> tuple[npt.NDArray[np.integer], npt.NDArray[np.int64]]:
    """`old_to_new` [N] and `offsets` of `PartitionBook`, the first in 32 bits where ids fit."""
    offsets = np.array(offsets_from_counts(np.bincount(assignment, minlength=num_parts).tolist()))
    dtype: type[np.integer] = np.int32 if len(assignment) < 2**31 else np.int64
    old_to_new = np.empty(len(assignment), dtype)
    for part in range(num_parts):
        old_to_new[np.flatnonzero(assignment == part)] = np.arange(offsets[part], offsets[part + 1])
    return old_to_new, offsets


def _write_whole(
    store: StoreOnRanks, world: World, piece: GraphPiece, by_part: _ByPart, old_to_new: npt.NDArray[np.integer]
) -> None:
    """Write what stands in the user's order, and make the files that parts are written into. Collective."""
    num_vertices, num_edges = int(by_part.offsets[-1]), int(by_part.edge_offsets[-1])
    mine = slice(*piece.own_range)
    store.write_shared("part_offsets", by_part.offsets if world.rank == 0 else by_part.offsets[:0])
    store.write_shared("old_to_new", old_to_new[mine].astype(np.int64))
    for name in SPLITS:
        store.write_shared(name, old_to_new[getattr(piece, name).numpy()].astype(np.int64))
    if piece.feature_scaling is not None:
        scaling = piece.feature_scaling.numpy()
        store.write_shared("feature_scaling", scaling if world.rank == 0 else scaling[:0])
    store.make_shared("indptr", by_part.indptr.numpy().dtype, (num_vertices + 1,))
    if world.rank == 0:
        store.fill_shared("indptr", num_vertices, by_part.edge_offsets[-1:])
    for length, arrays in (
        (num_edges, {"indices": by_part.indices, **by_part.of_edges}),
        (num_vertices, {name: rows for name, rows in by_part.of_vertices.items() if name != "features"}),
    ):
        for name, rows in arrays.items():
            store.make_shared(name, rows.numpy().dtype, (length, *rows.shape[1:]))


def _write_parts(store: StoreOnRanks, world: World, by_part: _ByPart, progress: Progress) -> Tensor:
    """Send each part to a rank, which writes it. Collective.

    Returns:
        int64 [parts, 3], of the parts that this rank has written: in-neighbours, those that are remote, and how many
        different ones these are (the halo); 0 of the others.
    """
    num_parts, size = len(by_part.offsets) - 1, world.size
    counts = torch.zeros(num_parts, 3, dtype=torch.int64)
    degrees = by_part.indptr.diff()
    for first in range(0, num_parts, size):
        places = [min(first + rank, num_parts) for rank in range(size + 1)]
        bounds = [by_part.bounds[place] for place in places]
        edge_bounds = by_part.indptr[bounds].tolist()
        part = first + world.rank
        start, stop = by_part.offsets[part : part + 2].tolist() if part < num_parts else (0, 0)
        begin = int(by_part.edge_offsets[part]) if part < num_parts else 0
        lists = _sent(world, degrees[bounds[0] : bounds[-1]], bounds)
        if part < num_parts:
            store.fill_shared("indptr", start, begin + np.cumsum(lists) - lists)
            store.make_part(part)
        # One array after another, so that no two are here twice.
        chosen = by_part.order[bounds[0] : bounds[-1]]
        for name, own in by_part.of_vertices.items():
            rows = _sent(world, own[chosen], bounds)
            if part < num_parts and name == "features":
                store.write_part(part, name, rows)
            elif part < num_parts:
                store.fill_shared(name, start, rows)
        for name, own in {"indices": by_part.indices, **by_part.of_edges}.items():
            rows = _sent(world, own[edge_bounds[0] : edge_bounds[-1]], edge_bounds)
            if part < num_parts:
                store.fill_shared(name, begin, rows)
                if name == "indices":
                    remote = rows[(rows < start) | (rows >= stop)]
                    counts[part] = torch.tensor([len(rows), len(remote), len(np.unique(remote))])
        progress.report("writing parts", min(first + size, num_parts) / num_parts)
    return counts


def _sent(world: World, rows: Tensor, bounds: Sequence[int]) -> npt.NDArray[Any]:
    """Send rank r the rows from bounds[r] on, less bounds[0]: what has come from all, in rank order. Collective."""
    counts = np.diff(bounds).tolist()
    return world.all_to_all(rows, counts, world.all_to_all_counts(counts, stage=STAGE), stage=STAGE).numpy()


def _balance(world: World, piece: GraphPiece, parts: npt.NDArray[np.int32], num_parts: int) -> dict[str, float]:
    """For each constraint the heaviest part's weight over the mean, as `PartitionQuality.balance`. Collective."""
    names = (*SALIENT_CONSTRAINTS, "vertices")
    mine = vertex_weights(
        piece.indptr.numpy(),
        train_ids=piece.split_places("train_ids"),
        validation_ids=piece.split_places("validation_ids"),
        balance=names,
    )
    nothing = np.zeros(len(parts), np.int32)
    columns = np.stack([mine.get(name, nothing) for name in names], axis=1)
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
