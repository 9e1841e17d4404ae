"""Edge lists in CSV or Parquet, with an optional vertex file beside them.

::

    edges.csv           vertices.csv
    source,destination  id,age,income,class,split
    anna,bert           bert,0.3,1.5,1,train
    bert,carl           anna,0.7,0.2,0,test

The vertex file holds features, label and split of each vertex. Vertices may be known by names, which are numbered.
Columns of the edge list may hold weights and features of edges; those that no option names are skipped.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from windrow.comm.errors import DataError
from windrow.gnn.build import assemble_graph, check_number
from windrow.gnn.graph import Graph
from windrow.gnn.readers.options import EdgeListOptions, GraphOptions
from windrow.gnn.readers.table_files import ColumnType, Share, TableFile
from windrow.gnn.vertex_data import VertexSplit, split_from_masks

__all__ = [
    "VertexTable",
    "edge_file",
    "read_edge_columns",
    "read_edge_list_and_names",
    "read_edges",
    "read_vertex_ids",
    "read_vertex_table",
]

SPLIT_WORDS = {"train": 0, "validation": 1, "valid": 1, "val": 1, "test": 2, "": -1}


class VertexTable(NamedTuple):
    """What a vertex file says; row i belongs to vertex i."""

    num_vertices: int
    names: Any
    """``pyarrow.Array`` of the ids [N]; None where a vertex's id is its number, or row."""
    data: dict[str, Any]
    """What there is of features float32 [N, F], labels float64 [N, columns], NaN where a cell is empty, and split."""


class EdgeTable(NamedTuple):
    """What an edge list says."""

    sources: npt.NDArray[np.int64]
    """Numbers of vertices [E]."""
    destinations: npt.NDArray[np.int64]
    """Likewise."""
    names: npt.NDArray[np.generic]
    """[N], what the files call the vertices, of destinations where types differ."""
    rows: npt.NDArray[np.float32]
    """[E, columns]: the weight, where there is one, then features."""


def read_vertex_table(options: EdgeListOptions, share: Share | None = None) -> VertexTable:
    """Read the vertex file, its rows in the order of the vertices: with `ids` "rows" that of the ids.

    A share of it has its rows as they stand, and, where a column holds ids, those.
    """
    file = _vertex_file(options)
    features = options.feature_columns
    if not features:
        used = {options.vertex_id_column, options.split_column, *options.label_columns}
        features = tuple(name for name in file.column_names() if name not in used)
    types: dict[str, ColumnType] = dict.fromkeys(features, "float32")
    types |= dict.fromkeys(options.label_columns, "float64")
    if options.split_column:
        types[options.split_column] = "string"
    if options.vertex_id_column:
        types[options.vertex_id_column] = _id_type(options)
    if not types:
        raise DataError(f"{file.path}: there is nothing to read; name a column of features, labels, split or ids.")
    columns = file.read(types, missing_allowed=True, share=share)
    num_vertices = len(next(iter(columns.values())))
    order = np.arange(num_vertices)
    names = None
    if options.vertex_id_column:
        names = _checked_ids(file, columns[options.vertex_id_column], share)
        if options.ids == "rows" and share is None:
            order = _order_of_rows(file.path, names.to_numpy())
            names = None
    data: dict[str, Any] = {}
    for key, chosen, dtype in (("features", features, np.float32), ("labels", options.label_columns, np.float64)):
        if chosen:
            matrix = np.stack([columns[name].to_numpy() for name in chosen], axis=1).astype(dtype, copy=False)
            data[key] = matrix if share is not None else matrix[order]
    if options.split_column:
        data["split"] = _split(file, columns[options.split_column], order, share)
    return VertexTable(num_vertices, names, data)


def _vertex_file(options: EdgeListOptions) -> TableFile:
    return TableFile(path=Path(options.vertex_file), delimiter=options.delimiter, has_header=options.has_header)


def _id_type(options: EdgeListOptions) -> ColumnType:
    return "string" if options.ids == "names" else "int64"


def read_vertex_ids(options: EdgeListOptions) -> Any:
    """Read nothing but the ids by which the vertex file knows its vertices.

    Returns:
        ``pyarrow.Array`` of int64 or strings [N], entry i the id of vertex i; None where a vertex's id is its number,
        or there is no vertex file.

    Raises:
        DataError: the file is missing or has no such column, or an id is missing or repeated.
    """
    if options.ids == "rows" or not options.vertex_file:
        return None
    file, name = _vertex_file(options), options.vertex_id_column
    return _checked_ids(file, file.read({name: _id_type(options)}, missing_allowed=True)[name])


def _checked_ids(file: TableFile, column: Any, share: Share | None = None) -> Any:
    import pyarrow.compute as pc

    names = column.combine_chunks()
    if names.null_count:
        row = pc.index(pc.is_null(names), True).as_py()
        raise DataError(f"{file.place(row, share)}: the vertex's id is empty; fill it in.")
    first = pc.index_in(names, value_set=names).to_numpy()
    repeats = np.flatnonzero(first != np.arange(len(first)))
    if repeats.size:
        row = int(repeats[0])
        before = file.place(int(first[row]), share).removeprefix(f"{file.path}, ")
        raise DataError(f"{file.place(row, share)}: vertex {names[row].as_py()!r} is in {before} already; keep one.")
    return names


def _order_of_rows(path: Path, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    wrong = np.flatnonzero((ids < 0) | (ids >= len(ids)))
    if wrong.size:
        row = int(wrong[0])
        raise DataError(
            f"{path}, row {row + 1}: vertex id {ids[row]} is not one of 0 to {len(ids) - 1}, though the "
            f"file has {len(ids)} rows; number the vertices from 0, or set ids to 'integers'."
        )
    return np.argsort(ids)


def _split(file: TableFile, column: Any, order: npt.NDArray[np.int64], share: Share | None) -> VertexSplit:
    import pyarrow as pa
    import pyarrow.compute as pc

    words = column.fill_null("").combine_chunks()
    found = pc.index_in(words, value_set=pa.array(SPLIT_WORDS))
    if found.null_count:
        row = pc.index(pc.is_null(found), True).as_py()
        raise DataError(
            f"{file.place(row, share)}: split {words[row].as_py()!r} is unknown; use train, validation, test or "
            "nothing."
        )
    member = torch.from_numpy(np.array(list(SPLIT_WORDS.values()))[found.to_numpy()][order])
    return split_from_masks(member == 0, member == 1, member == 2)


def read_edge_list_and_names(options: GraphOptions) -> tuple[Graph, npt.NDArray[np.generic]]:
    """Read an edge list, and the ids by which its files know the vertices.

    Returns:
        (graph, names): `names[v]` is the id of vertex v in the files, int64 [N] or, with `ids` "names", str
        [N] (dtype object).

    Raises:
        DataError: a file is unreadable or breaks a law; the message names the file and the row.

    Cost:
        The edges as 64-bit numbers (or as strings, for "names") and what `csc_from_edges` needs.
    """
    columns = options.edge_list
    table = read_vertex_table(columns) if columns.vertex_file else None
    sources, destinations, names, edge_rows = read_edges(Path(options.path), columns, (table, table))
    graph = assemble_graph(
        sources,
        destinations,
        len(names),
        **({} if table is None else table.data),
        edge_weight=edge_rows[:, 0] if columns.weight_column else None,
        edge_attr=edge_rows[:, bool(columns.weight_column) :] if columns.edge_feature_columns else None,
        describe_edge=lambda edge: f"{options.path}, row {edge + 1}",
        **options.assembly,
    )
    return graph, names


def read_edges(
    path: Path, options: EdgeListOptions, tables: tuple[VertexTable | None, VertexTable | None]
) -> EdgeTable:
    """Read the edges; DataError as `read_edge_list_and_names`.

    Args:
        path: of the file.
        options: its columns.
        tables: of the vertices of sources and of destinations; None where these have no file.
    """
    ends, source, destination, edge_rows = read_edge_columns(edge_file(path, options), options)
    if options.ids != "rows":
        known = [table.names for table in tables if table is not None]
        if not known:
            names, sources, destinations = _number_names(source, destination)
            return EdgeTable(sources, destinations, names.to_numpy(zero_copy_only=False), edge_rows)
        sources, destinations = (
            _look_up(own, column, f"{path}, column {name!r}")
            for own, column, name in zip(known, (source, destination), ends, strict=True)
        )
        return EdgeTable(sources, destinations, known[1].to_numpy(zero_copy_only=False), edge_rows)
    sources, destinations = (np.array(end.to_numpy()) for end in (source, destination))
    largest = max(sources.max(initial=-1), destinations.max(initial=-1))
    num_vertices = int(largest) + 1 if tables[1] is None else tables[1].num_vertices
    check_number(num_vertices)
    return EdgeTable(sources, destinations, np.arange(num_vertices), edge_rows)


def edge_file(path: Path, options: EdgeListOptions) -> TableFile:
    """The file of the edges."""
    return TableFile(path=path, delimiter=options.delimiter, has_header=options.has_header, skip_rows=options.skip_rows)


def read_edge_columns(
    file: TableFile, options: EdgeListOptions, share: Share | None = None
) -> tuple[tuple[str, str], Any, Any, npt.NDArray[np.float32]]:
    """Names of the columns of sources and destinations, what they hold, and the edges' `EdgeTable.rows`."""
    ends = _end_columns(file, options)
    types: dict[str, ColumnType] = dict.fromkeys(ends, _id_type(options))
    numbers = [name for name in (options.weight_column, *options.edge_feature_columns) if name]
    columns = file.read(types | dict.fromkeys(numbers, "float32"), share=share)
    source, destination = (columns[name] for name in ends)
    edge_rows = np.empty((len(source), len(numbers)), np.float32)
    for place, name in enumerate(numbers):
        edge_rows[:, place] = columns[name].to_numpy()
    return ends, source, destination, edge_rows


def _end_columns(file: TableFile, options: EdgeListOptions) -> tuple[str, str]:
    present = file.column_names()
    if len(present) < 2:
        raise DataError(f"{file.path}: the only column is {present}; an edge needs two. Is the delimiter right?")
    source = options.source_column or present[0]
    destination = options.destination_column or present[1]
    if source == destination:
        raise DataError(f"{file.path}: source and destination are both column {source!r}; name two columns.")
    return source, destination


def _number_names(sources: Any, destinations: Any) -> tuple[Any, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Number every name that an edge mentions, in the order of the edges, source before destination.

    Returns the names, a ``pyarrow.Array`` by number, and sources and destinations as numbers, int64 [E].
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    ends = pa.chunked_array([*sources.chunks, *destinations.chunks], sources.type)
    names = ends.unique()
    numbers = pc.index_in(ends, value_set=names).to_numpy().reshape(2, -1)
    met = numbers.T.reshape(-1)
    first = np.empty(len(names), np.int64)
    # Of equal numbers the last one written counts: backwards, the first.
    first[met[::-1]] = np.arange(met.size)[::-1]
    order = np.argsort(first)
    place = np.empty(len(names), np.int64)
    place[order] = np.arange(len(names))
    return names.take(pa.array(order)), place[numbers[0]], place[numbers[1]]


def _look_up(names: Any, wanted: Any, place: str) -> npt.NDArray[np.int64]:
    """The number of each name, int64; DataError where it is not among `names`, with its row, from 1, in `place`."""
    import pyarrow.compute as pc

    found = pc.index_in(wanted, value_set=names)
    if found.null_count:
        row = pc.index(pc.is_null(found), True).as_py()
        raise DataError(
            f"{place}, row {row + 1}: {wanted[row].as_py()!r} is not in the vertex file; add it there or "
            "remove the edge."
        )
    numbers: npt.NDArray[np.int64] = found.to_numpy().astype(np.int64)
    return numbers
