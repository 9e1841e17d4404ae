"""Edge lists in CSV or Parquet, with an optional vertex file beside them.

::

    edges.csv           vertices.csv
    source,destination  id,age,income,class,split
    anna,bert           bert,0.3,1.5,1,train
    bert,carl           anna,0.7,0.2,0,test

The vertex file holds features, label and split of each vertex. Vertices may be known by names, which are numbered.
Columns of the edge list may hold weights and features of edges; those that no option names are skipped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from windrow.comm.errors import DataError
from windrow.gnn.build import assemble_graph
from windrow.gnn.graph import Graph
from windrow.gnn.readers.options import EdgeListOptions, GraphOptions
from windrow.gnn.readers.table_files import ColumnType, TableStyle, column_names, iterate_batches
from windrow.gnn.vertex_data import VertexSplit, split_from_masks

__all__ = ["read_edge_list_and_names", "read_vertex_ids"]

SPLIT_WORDS = {"train": 0, "validation": 1, "valid": 1, "val": 1, "test": 2, "": -1}


@dataclass(frozen=True, kw_only=True, slots=True)
class _VertexTable:
    """What a vertex file says; row i belongs to vertex i."""

    num_vertices: int
    """N, the number of rows."""
    names: Any
    """``pyarrow.Array`` of the ids [N], or None where a vertex's id is its number."""
    features: npt.NDArray[np.float32] | None
    """[N, F]."""
    labels: npt.NDArray[np.float64] | None
    """[N, columns], NaN where a cell is empty."""
    split: VertexSplit | None
    """The splits of the file."""


def _read_vertex_table(options: EdgeListOptions) -> _VertexTable:
    """Read the vertex file.

    Rows come in the order of the vertices: with `ids` "rows" that of the ids, else that of the file.

    Raises:
        DataError: a column is missing, a cell has the wrong type, an id is missing or repeated, or a split
            has another name than train, validation, valid, val, test.
    """
    path = Path(options.vertex_file)
    style = TableStyle(delimiter=options.delimiter, has_header=options.has_header)
    features = options.feature_columns
    if not features:
        used = {options.vertex_id_column, options.split_column, *options.label_columns}
        features = tuple(name for name in column_names(path, style) if name not in used)
    types: dict[str, ColumnType] = dict.fromkeys(features, "float32")
    types |= dict.fromkeys(options.label_columns, "float64")
    if options.split_column:
        types[options.split_column] = "string"
    if options.vertex_id_column:
        types[options.vertex_id_column] = "string" if options.ids == "names" else "int64"
    if not types:
        raise DataError(f"{path}: there is nothing to read; name a column of features, labels, split or ids.")
    columns = _whole_columns(path, types, style)
    num_vertices = len(next(iter(columns.values())))
    order = np.arange(num_vertices)
    names = None
    if options.vertex_id_column:
        names = columns[options.vertex_id_column].combine_chunks()
        _check_ids(path, names)
        if options.ids == "rows":
            order = _order_of_rows(path, names.to_numpy())
            names = None
    return _VertexTable(
        num_vertices=num_vertices,
        names=names,
        features=_matrix(columns, features, np.float32)[order] if features else None,
        labels=_matrix(columns, options.label_columns, np.float64)[order] if options.label_columns else None,
        split=_split(path, columns[options.split_column], order) if options.split_column else None,
    )


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
    path, name = Path(options.vertex_file), options.vertex_id_column
    style = TableStyle(delimiter=options.delimiter, has_header=options.has_header)
    kind: ColumnType = "string" if options.ids == "names" else "int64"
    ids = _whole_columns(path, {name: kind}, style)[name].combine_chunks()
    _check_ids(path, ids)
    return ids


def _whole_columns(path: Path, types: dict[str, ColumnType], style: TableStyle) -> dict[str, Any]:
    """A ``pyarrow.ChunkedArray`` by column; cells may be empty."""
    import pyarrow as pa

    batches = list(iterate_batches(path, types, style, missing_allowed=True))
    return {
        name: pa.chunked_array([batch[name] for batch in batches], pa.type_for_alias(kind))
        for name, kind in types.items()
    }


def _matrix(columns: dict[str, Any], names: tuple[str, ...], dtype: type[np.floating]) -> npt.NDArray[Any]:
    return np.stack([columns[name].to_numpy() for name in names], axis=1).astype(dtype, copy=False)


def _check_ids(path: Path, names: Any) -> None:
    import pyarrow.compute as pc

    if names.null_count:
        row = pc.index(pc.is_null(names), True).as_py()
        raise DataError(f"{path}, row {row + 1}: the vertex's id is empty; fill it in.")
    first = pc.index_in(names, value_set=names).to_numpy()
    repeats = np.flatnonzero(first != np.arange(len(first)))
    if repeats.size:
        row = int(repeats[0])
        raise DataError(
            f"{path}, row {row + 1}: vertex {names[row].as_py()!r} is in row {first[row] + 1} already; keep one."
        )


def _order_of_rows(path: Path, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    wrong = np.flatnonzero((ids < 0) | (ids >= len(ids)))
    if wrong.size:
        row = int(wrong[0])
        raise DataError(
            f"{path}, row {row + 1}: vertex id {ids[row]} is not one of 0 to {len(ids) - 1}, though the "
            f"file has {len(ids)} rows; number the vertices from 0, or set ids to 'integers'."
        )
    return np.argsort(ids)


def _split(path: Path, column: Any, order: npt.NDArray[np.int64]) -> VertexSplit:
    words = column.combine_chunks().fill_null("").dictionary_encode()
    unknown = [word for word in words.dictionary.to_pylist() if word not in SPLIT_WORDS]
    if unknown:
        row = column.to_pylist().index(unknown[0])
        raise DataError(
            f"{path}, row {row + 1}: split {unknown[0]!r} is unknown; use train, validation, test or nothing."
        )
    meaning = np.array([SPLIT_WORDS[word] for word in words.dictionary.to_pylist()], dtype=np.int64)
    member = torch.from_numpy(meaning[words.indices.to_numpy()][order])
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
    table = _read_vertex_table(columns) if columns.vertex_file else None
    sources, destinations, names, edge_rows = _read_edges(Path(options.path), columns, table)
    graph = assemble_graph(
        sources,
        destinations,
        len(names),
        features=None if table is None else table.features,
        labels=None if table is None else table.labels,
        split=None if table is None else table.split,
        edge_weight=edge_rows[:, 0] if columns.weight_column else None,
        edge_attr=edge_rows[:, bool(columns.weight_column) :] if columns.edge_feature_columns else None,
        describe_edge=lambda edge: f"{options.path}, row {edge + 1}",
        **options.assembly,
    )
    return graph, names


def _read_edges(
    path: Path, options: EdgeListOptions, table: _VertexTable | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.generic], npt.NDArray[np.float32]]:
    """Return (sources, destinations, names, edge rows).

    The first two are vertex numbers, the last is float32 [E, columns]: the weight, where there is one, then features.
    """
    style = TableStyle(delimiter=options.delimiter, has_header=options.has_header, skip_rows=options.skip_rows)
    source, destination = _edge_columns(path, style, options)
    kind: ColumnType = "string" if options.ids == "names" else "int64"
    types: dict[str, ColumnType] = {source: kind, destination: kind}
    numbers = [name for name in (options.weight_column, *options.edge_feature_columns) if name]
    types |= dict.fromkeys(numbers, "float32")
    batches = list(iterate_batches(path, types, style))
    edge_rows = _edge_rows(batches, numbers)
    ends = [[batch[name] for batch in batches] for name in (source, destination)]
    if table is not None and table.names is not None:
        found = [
            _look_up(table.names, end, f"{path}, column {name!r}")
            for name, end in zip((source, destination), ends, strict=True)
        ]
        return found[0], found[1], table.names.to_numpy(zero_copy_only=False), edge_rows
    if options.ids != "rows":
        names, sources, destinations = _number_names(ends[0], ends[1], options.order)
        return sources, destinations, names.to_numpy(zero_copy_only=False), edge_rows
    sources, destinations = (
        np.concatenate([np.empty(0, dtype=np.int64), *(batch.to_numpy() for batch in end)]) for end in ends
    )
    largest = max(sources.max(initial=-1), destinations.max(initial=-1))
    num_vertices = int(largest) + 1 if table is None else table.num_vertices
    return sources, destinations, np.arange(num_vertices), edge_rows


def _edge_rows(batches: Sequence[Mapping[str, Any]], names: Sequence[str]) -> npt.NDArray[np.float32]:
    """[E, names]."""
    rows = [np.stack([batch[name].to_numpy() for name in names], 1) for batch in batches if names]
    return np.concatenate([np.empty((0, len(names)), np.float32), *rows])


def _edge_columns(path: Path, style: TableStyle, options: EdgeListOptions) -> tuple[str, str]:
    present = column_names(path, style)
    if len(present) < 2:
        raise DataError(f"{path}: the only column is {present}; an edge needs two. Is the delimiter right?")
    source = options.source_column or present[0]
    destination = options.destination_column or present[1]
    if source == destination:
        raise DataError(f"{path}: source and destination are both column {source!r}; name two columns.")
    return source, destination


def _number_names(
    sources: Sequence[Any], destinations: Sequence[Any], order: Literal["first-appearance", "sorted"]
) -> tuple[Any, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Number every name that an edge mentions, in the order of the edges, source before destination, or "sorted".

    Sources and destinations are a ``pyarrow.Array`` for each batch of edges.

    Returns:
        (names: a ``pyarrow.Array``, entry i the name of vertex i; sources and destinations as numbers, int64 [E]).
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not sources:
        empty = np.empty(0, dtype=np.int64)
        return pa.array([], pa.int64()), empty, empty
    chunks = []
    for ends in zip(sources, destinations, strict=True):
        alternately = np.arange(2 * len(ends[0])).reshape(2, -1).T.reshape(-1)
        chunks.append(pa.concat_arrays(ends).take(pa.array(alternately)).dictionary_encode())
    unified = pa.chunked_array(chunks).unify_dictionaries()
    names = unified.chunk(0).dictionary
    numbers = np.concatenate([chunk.indices.to_numpy() for chunk in unified.chunks]).astype(np.int64)
    if order == "sorted":
        ascending = pc.sort_indices(names)
        rank = np.empty(len(names), dtype=np.int64)
        rank[ascending.to_numpy()] = np.arange(len(names))
        names, numbers = names.take(ascending), rank[numbers]
    return names, numbers[0::2], numbers[1::2]


def _look_up(names: Any, wanted: Sequence[Any], place: str) -> npt.NDArray[np.int64]:
    """Find the number of each name; `names` is a ``pyarrow.Array``, entry i the name of vertex i.

    Raises:
        DataError: a name is not there; the message names it and its row, of which the first is 1, in `place`.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    values = pa.chunked_array(wanted, type=names.type)
    found = pc.index_in(values, value_set=names)
    if found.null_count:
        row = pc.index(pc.is_null(found), True).as_py()
        raise DataError(
            f"{place}, row {row + 1}: {values[row].as_py()!r} is not in the vertex file; add it there or "
            "remove the edge."
        )
    numbers: npt.NDArray[np.int64] = found.to_numpy().astype(np.int64)
    return numbers
