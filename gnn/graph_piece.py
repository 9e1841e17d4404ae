"""A graph read from an edge list by several ranks: each ends up with consecutive vertices, and their neighbour lists.

    edges.csv     read in shares            keys = destination * N + source
    rank 0        lines    0 ..  999        sent to the rank that has the destination;  lists of vertices 0 .. 499
    rank 1        lines 1000 .. 1999                                                    lists of vertices 500 .. 999

The vertex file is read in the same way. No rank ever has all edges, or all features. What comes of it is what
`windrow.gnn.readers.read_graph` gives, cut into ranges of vertices.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.rows import group_by_owner, near_equal_split
from windrow.comm.world import World
from windrow.gnn.build import check_edges, check_self_loops, csc_from_keys, index_dtype, keys_of_edges
from windrow.gnn.graph import Graph, GraphData, Task, known_labels
from windrow.gnn.readers.edge_list import VertexTable, edge_file, read_edge_columns, read_vertex_table
from windrow.gnn.readers.options import EdgeListOptions, GraphOptions
from windrow.gnn.readers.read import check_fitting, format_of
from windrow.gnn.readers.table_files import release_freed_memory
from windrow.gnn.vertex_data import (
    COLUMNS_PER_CHUNK,
    VertexSplit,
    float_features,
    prepare_labels,
    random_split,
    scale_features,
    standardise_features,
)

__all__ = ["GraphPiece", "check_readable_on_ranks", "read_piece"]

STAGE = "reading"
VERTEX_CHUNK_BYTES = 64 << 20
"""Of a vertex file, read by a rank at once."""
CHUNK_BYTES = 16 << 20
"""Of a file of edges, read by a rank at once: in memory they take some 20 times as much on their way."""
RANGES = 16
"""Of the own vertices: lists of one after another are made."""
SPLITS = ("train_ids", "validation_ids", "test_ids")


@dataclass(frozen=True, kw_only=True)
class GraphPiece(GraphData):
    """The vertices bounds[rank] .. bounds[rank + 1] - 1 of a graph, by the user's ids.

    `indptr` and rows are theirs alone; neighbours and splits are ids of the whole graph.
    """

    bounds: tuple[int, ...]
    """[ranks + 1]."""
    rank: int
    """Whose vertices these are."""
    features: Tensor | None
    """float32 [own, F], or None."""
    feature_scaling: Tensor | None = None
    """See `windrow.gnn.graph.Graph`."""

    @property
    def own_range(self) -> tuple[int, int]:
        """First of these vertices, and the one after the last."""
        return self.bounds[self.rank], self.bounds[self.rank + 1]

    def split_places(self, split: str) -> npt.NDArray[np.int64]:
        """The vertices of a split, "train_ids" and so on, counted from the first of these."""
        ids: Tensor = getattr(self, split)
        return (ids - self.own_range[0]).numpy()


def check_readable_on_ranks(options: GraphOptions) -> None:
    """Refuse what ranks cannot read in shares: RecipeError with the cure."""
    check_fitting(options)
    form, columns = format_of(options), options.edge_list
    cure = "or partition it by one process, without mpirun"
    if form != "edge-list":
        raise RecipeError(
            f"{options.path}: several ranks read edge lists (CSV, Parquet), not {form}: write one, {cure}"
        )
    if columns.ids != "rows":
        raise RecipeError(
            f'graph.edge_list.ids = "{columns.ids}": for several ranks vertices are numbered from 0: number them and '
            f'set "rows", {cure}'
        )
    if columns.edge_feature_columns:
        check_self_loops(options.self_loops)
    for path in filter(None, (options.path, columns.vertex_file)):
        if path.endswith(".gz"):
            raise RecipeError(f"{path}: a gzipped file cannot be read in shares: unpack it or write Parquet, {cure}")


def read_piece(options: GraphOptions, world: World) -> GraphPiece:
    """Read this rank's piece of a graph. Collective; files and options must be the same for all.

    Raises:
        RecipeError: see `check_readable_on_ranks`.
        DataError: as `windrow.gnn.readers.read_graph`; edges and vertices that break a law are named.

    Memory: about 10 bytes for each of the own edges, or while it reads them twice the own features, and, where a random
    split is drawn, 40 bytes for each vertex of the graph.
    """
    check_readable_on_ranks(options)
    for path in filter(None, (options.path, options.edge_list.vertex_file)):
        if not Path(path).exists():
            raise DataError(f"{path}: no such file; correct the path.")
    if options.edge_list.vertex_file:
        table = _read_vertices(options.edge_list, world)
        counts = world.all_gather_object(table.num_vertices, stage=STAGE)
        bounds = near_equal_split(sum(counts), world.size)
        vertices = _deal_vertices(options, world, bounds, table, sum(counts[: world.rank]))
    else:
        bounds = near_equal_split(_largest_id(options, world) + 1, world.size)
        vertices = VertexTable(bounds[world.rank + 1] - bounds[world.rank], None, {})
    edges = _read_edges(options, world, bounds)
    try:
        piece = _assemble(options, world, tuple(bounds), edges, vertices)
        _check_vertices(piece)
    except DataError as error:
        raise DataError(
            f"{options.edge_list.vertex_file}, counted from its vertex {bounds[world.rank]}: {error}"
        ) from error
    _check_edge_rows(options.path, piece)
    if piece.labels is not None and not int(world.all_reduce(torch.tensor([len(piece.train_ids)]), stage=STAGE)):
        raise DataError(
            f"{options.edge_list.vertex_file}: the training set is empty; put at least one labelled vertex into the "
            "train split."
        )
    if piece.features is None:
        return piece
    return replace(piece, feature_scaling=_standardise(world, piece.features, options, bounds[-1]))


def _deal(world: World, bounds: Sequence[int], ids: Tensor, *rows: Tensor) -> list[Tensor]:
    """Send ids, and rows that belong to them, to the ranks whose ranges the ids are in: what came, in rank order."""
    order, counts = group_by_owner(ids, bounds)
    arriving = world.all_to_all_counts(counts, stage=STAGE)
    return [
        world.all_to_all(some if order is None else some[order], counts, arriving, stage=STAGE) for some in (ids, *rows)
    ]


def _read_vertices(options: EdgeListOptions, world: World) -> VertexTable:
    """This rank's share of the vertex file, a piece at a time; ids int64, the split as int8, -1: none."""
    tables = []
    for share in _chunks(options.vertex_file, world, VERTEX_CHUNK_BYTES):
        table = read_vertex_table(options, share)
        if "split" in table.data:
            roles = np.full(table.num_vertices, -1, np.int8)
            for number, members in enumerate(table.data["split"]):
                roles[members] = number
            table.data["split"] = roles
        tables.append(table if table.names is None else table._replace(names=np.array(table.names.to_numpy())))
        release_freed_memory()
    data = {name: np.concatenate([table.data.pop(name) for table in tables]) for name in list(tables[0].data)}
    names = None if tables[0].names is None else np.concatenate([table.names for table in tables])
    return VertexTable(sum(table.num_vertices for table in tables), names, data)


def _deal_vertices(
    options: GraphOptions, world: World, bounds: Sequence[int], table: VertexTable, first_row: int
) -> VertexTable:
    """What is known of the own vertices, by what each rank has read."""
    path, total = options.edge_list.vertex_file, bounds[-1]
    ids = torch.arange(first_row, first_row + table.num_vertices)
    if table.names is not None:
        ids = torch.from_numpy(table.names)
        outside = ids[(ids < 0) | (ids >= total)]
        if len(outside):
            raise DataError(
                f"{path}: vertex id {int(outside[0])} is not one of 0 to {total - 1}, though the file has {total} "
                "rows; number the vertices from 0."
            )
    (mine,) = _deal(world, bounds, ids)
    first, stop = bounds[world.rank], bounds[world.rank + 1]
    times = torch.bincount(mine - first, minlength=stop - first)
    if len(mine) and int(times.max()) > 1:
        raise DataError(f"{path}: vertex {first + int(times.argmax())} is in more than one row; keep one.")
    order = None if bool((mine.diff() > 0).all()) else mine.argsort()
    found = {}
    for name in list(table.data):
        # One after another, since features may be most of the memory.
        _, rows = _deal(world, bounds, ids, torch.from_numpy(table.data.pop(name)))
        found[name] = rows if order is None else rows[order]
    return VertexTable(stop - first, None, found)


def _chunks(path: str, world: World, chunk_bytes: int) -> list[tuple[int, int]]:
    """The shares of a file that this rank reads one after another; every rank has as many."""
    pieces = Path(path).stat().st_size // (world.size * chunk_bytes) + 1
    return [(world.rank * pieces + piece, world.size * pieces) for piece in range(pieces)]


def _largest_id(options: GraphOptions, world: World) -> int:
    """Of all vertices that edges name. Collective."""
    file, largest = edge_file(Path(options.path), options.edge_list), -1
    for share in _chunks(options.path, world, CHUNK_BYTES):
        _, source, destination, _ = read_edge_columns(file, options.edge_list, share)
        largest = max(largest, *(int(ends.to_numpy().max(initial=-1)) for ends in (source, destination)))
    return _over_ranks(world, largest)


def _over_ranks(world: World, largest: int) -> int:
    return int(world.all_reduce(torch.tensor([largest]), stage=STAGE, op="max"))


def _read_edges(
    options: GraphOptions, world: World, bounds: Sequence[int]
) -> tuple[Tensor, Tensor, list[npt.NDArray[np.floating]]]:
    """The neighbour lists of the own vertices, and the rows of their edges: see `csc_from_edges`."""
    num_vertices, path = bounds[-1], Path(options.path)
    has_rows = bool(options.edge_list.weight_column or options.edge_list.edge_feature_columns)
    adds_loops = options.self_loops == "add"
    # By ranges of vertices, whose lists are made one after another: so most edges are in memory once alone.
    begin, end = bounds[world.rank], bounds[world.rank + 1]
    ranges = [begin + place for place in near_equal_split(end - begin, RANGES)]
    arrived = _receive_edges(options, world, bounds, ranges, numbered=has_rows)
    release_freed_memory()
    most = sum(len(keys) for keys, *_ in arrived) + adds_loops * (end - begin)
    # Memory that is not written yet takes none; joining lists would take twice theirs.
    lists = torch.empty(most, dtype=index_dtype(num_vertices))
    places, found_rows, stored = [torch.zeros(1, dtype=torch.int64)], [], 0
    for first, stop in pairwise(ranges):
        keys, *edge_rows = arrived.pop(0)
        release_freed_memory()
        numbers = np.arange(len(keys)) if has_rows else None
        if adds_loops:
            keys = np.append(keys, np.arange(first, stop) * (num_vertices + 1))
            numbers = None if numbers is None else np.append(numbers, np.full(stop - first, -1))
        indptr, indices, rows = csc_from_keys(
            keys,
            numbers,
            num_vertices,
            own=(first, stop),
            describe_edge=partial(_edge_text, path, keys, num_vertices, edge_rows),
            edge_rows=edge_rows,
        )
        places.append(stored + indptr[1:])
        lists[stored : stored + len(indices)] = indices
        stored += len(indices)
        found_rows += rows
    return torch.cat(places), lists[:stored], [np.concatenate(found_rows)] if has_rows else []


def _receive_edges(
    options: GraphOptions, world: World, bounds: Sequence[int], ranges: Sequence[int], *, numbered: bool
) -> list[list[npt.NDArray[Any]]]:
    """Keys of the edges of each of the `ranges` of own vertices, and, where they have any, their rows."""
    num_vertices, file = bounds[-1], edge_file(Path(options.path), options.edge_list)
    of_keys = [bound * num_vertices for bound in bounds]
    # Its own vertices' loops each rank adds itself.
    loops = "remove" if options.self_loops == "add" else options.self_loops
    arrived: list[list[npt.NDArray[Any]]] = [[] for _ in range(len(ranges) - 1)]
    for share in _chunks(options.path, world, CHUNK_BYTES):
        _, source, destination, of_edges = read_edge_columns(file, options.edge_list, share)
        ends = check_edges(
            np.array(source.to_numpy()),
            np.array(destination.to_numpy()),
            num_vertices,
            partial(file.place, share=share),
        )
        made, numbers = keys_of_edges(
            *ends, num_vertices, symmetrise=options.symmetrise, self_loops=loops, numbered=numbered
        )
        along = [] if numbers is None else [torch.from_numpy(of_edges[numbers])]
        keys, *rows = (some.numpy() for some in _deal(world, of_keys, torch.from_numpy(made), *along))
        if numbered:
            order = keys.argsort()
            keys, rows = keys[order], [rows[0][order]]
        else:
            keys.sort()
        cuts = np.searchsorted(keys, np.array(ranges) * num_vertices)
        for of_range, cut in zip(arrived, map(slice, cuts, cuts[1:]), strict=True):
            _extend(of_range, [some[cut] for some in (keys, *rows)])
    return arrived


def _extend(arrays: list[npt.NDArray[Any]], more: Sequence[npt.NDArray[Any]]) -> None:
    """Add rows to each of some arrays, or begin them: the system moves their pages, so none is in memory twice."""
    if not arrays:
        arrays += [some.copy() for some in more]
        return
    for array, some in zip(arrays, more, strict=True):
        before = len(array)
        array.resize((before + len(some), *some.shape[1:]), refcheck=False)
        array[before:] = some


def _edge_text(
    path: Path, keys: npt.NDArray[np.int64], num_vertices: int, rows: Sequence[npt.NDArray[np.floating]], edge: int
) -> str:
    ends = f"{keys[edge] % num_vertices}, {keys[edge] // num_vertices}"
    return f"{path}: an edge {ends} with {[float(value) for some in rows for value in some[edge]]}"


def _assemble(
    options: GraphOptions,
    world: World,
    bounds: tuple[int, ...],
    edges: tuple[Tensor, Tensor, list[npt.NDArray[np.floating]]],
    vertices: VertexTable,
) -> GraphPiece:
    indptr, indices, edge_rows = edges
    first, known = bounds[world.rank], vertices.data
    labels: Tensor | None = None
    task: Task = "single-label"
    num_classes = 0
    split = VertexSplit(*torch.empty((3, 0), dtype=torch.int64))
    if "labels" in known:
        labels, task, num_classes = prepare_labels(
            known["labels"], options.task, largest_of_all=lambda largest: _over_ranks(world, largest)
        )
    if "split" in known:
        split = VertexSplit(*(first + (known["split"] == number).nonzero().flatten() for number in range(3)))
    elif labels is not None:
        # Of a label of several columns, whether it is known is enough.
        several = labels.dim() == 2
        enough = torch.where(known_labels(labels), 0.0, torch.nan).unsqueeze(1) if several else labels
        everyone = torch.cat(world.all_gather(enough, stage=STAGE))
        drawn = random_split(everyone, options.random_split, seed=options.split_seed)
        split = VertexSplit(*(ids[(ids >= first) & (ids < bounds[world.rank + 1])] for ids in drawn))
    has_weight = bool(options.edge_list.weight_column)
    rows = torch.from_numpy(edge_rows[0]) if edge_rows else torch.empty(len(indices), 0)
    return GraphPiece(
        indptr=indptr,
        indices=indices,
        edge_weight=rows[:, 0].contiguous() if has_weight else None,
        edge_attr=rows[:, has_weight:].contiguous() if rows.shape[1] > has_weight else None,
        labels=labels,
        task=task,
        num_classes=num_classes,
        **split._asdict(),
        features=float_features(known["features"]) if "features" in known else None,
        bounds=bounds,
        rank=world.rank,
    )


def _standardise(world: World, features: Tensor, options: GraphOptions, num_vertices: int) -> Tensor | None:
    """`standardise_features` of a graph whose rows are on all ranks; collective."""
    if options.standardise != "standard":
        return standardise_features(features, options.standardise)
    found = []
    for start in range(0, features.shape[1], COLUMNS_PER_CHUNK):
        columns = features[:, start : start + COLUMNS_PER_CHUNK].double()
        nothing = columns.new_full((1, columns.shape[1]), torch.inf)
        mean = world.all_reduce(columns.sum(dim=0), stage=STAGE) / num_vertices
        variance = world.all_reduce((columns - mean).square().sum(dim=0), stage=STAGE) / num_vertices
        least = world.all_reduce(torch.cat([columns, nothing]).amin(dim=0), stage=STAGE, op="min")
        most = world.all_reduce(torch.cat([columns, -nothing]).amax(dim=0), stage=STAGE, op="max")
        found.append(torch.stack([mean, variance.sqrt().masked_fill(least == most, torch.inf)]))
    scaling = torch.cat(found, dim=1)
    scale_features(features, scaling)
    return scaling


def _check_edge_rows(path: str, piece: GraphPiece) -> None:
    """The law of `Graph.validate` about rows of edges; those of edges themselves were kept as they were read."""
    for name, rows in (("edge_weight", piece.edge_weight), ("edge_attr", piece.edge_attr)):
        wrong = None if rows is None else (~rows.isfinite()).view(len(rows), -1).any(dim=1).nonzero()
        if wrong is not None and len(wrong):
            edge = int(wrong[0])
            vertex = piece.own_range[0] + int(torch.searchsorted(piece.indptr, edge, right=True)) - 1
            raise DataError(
                f"{path}: {name} of the edge {int(piece.indices[edge])}, {vertex} is no finite number. Replace it."
            )


def _check_vertices(piece: GraphPiece) -> None:
    """The laws of `Graph.validate` about vertices, counted from the first of the piece."""
    first, stop = piece.own_range
    of_vertices = {field.name: getattr(piece, field.name) for field in fields(GraphData)}
    of_vertices |= {name: torch.from_numpy(piece.split_places(name)) for name in SPLITS}
    of_vertices |= {"indptr": torch.zeros(stop - first + 1, dtype=torch.int64), "indices": piece.indices[:0]}
    Graph(**{**of_vertices, "edge_weight": None, "edge_attr": None}, features=piece.features).validate(training=False)
