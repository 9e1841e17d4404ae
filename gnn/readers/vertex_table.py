"""The vertex file beside an edge list: features, labels and split of each vertex."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from windrow.comm.errors import DataError
from windrow.gnn.readers.options import EdgeListOptions
from windrow.gnn.readers.table_files import ColumnType, TableStyle, column_names, iterate_batches
from windrow.gnn.splits import VertexSplit, split_from_masks

__all__ = ["VertexTable", "read_vertex_ids", "read_vertex_table"]

SPLIT_WORDS = {"train": 0, "validation": 1, "valid": 1, "val": 1, "test": 2, "": -1}


@dataclass(frozen=True, kw_only=True, slots=True)
class VertexTable:
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


def read_vertex_table(options: EdgeListOptions) -> VertexTable:
    """Read the vertex file.

    Args:
        options: names of the file and its columns.

    Returns:
        The rows in the order of the vertices: with `ids` "rows" that of the ids, else that of the file.

    Raises:
        DataError: a column is missing, a cell has the wrong type, an id is missing or repeated, or a split
            has another name than train, validation, valid, val, test.
    """
    import pyarrow as pa

    path = Path(options.vertex_file)
    style = TableStyle(delimiter=options.delimiter, has_header=options.has_header)
    features = _feature_columns(path, style, options)
    types: dict[str, ColumnType] = dict.fromkeys(features, "float32")
    types |= dict.fromkeys(options.label_columns, "float64")
    if options.split_column:
        types[options.split_column] = "string"
    if options.vertex_id_column:
        types[options.vertex_id_column] = "string" if options.ids == "names" else "int64"
    if not types:
        raise DataError(f"{path}: there is nothing to read; name a column of features, labels, split or ids.")
    batches = list(iterate_batches(path, types, style, missing_allowed=True))
    columns = {
        name: pa.chunked_array([batch[name] for batch in batches], pa.type_for_alias(kind))
        for name, kind in types.items()
    }
    num_vertices = len(next(iter(columns.values())))
    order = np.arange(num_vertices)
    names = None
    if options.vertex_id_column:
        names = columns[options.vertex_id_column].combine_chunks()
        _check_ids(path, names)
        if options.ids == "rows":
            order = _order_of_rows(path, names.to_numpy())
            names = None
    return VertexTable(
        num_vertices=num_vertices,
        names=names,
        features=_matrix(columns, features, np.float32)[order] if features else None,
        labels=_matrix(columns, options.label_columns, np.float64)[order] if options.label_columns else None,
        split=_split(path, columns[options.split_column], order) if options.split_column else None,
    )


def read_vertex_ids(options: EdgeListOptions) -> Any:
    """Read nothing but the ids by which the vertex file knows its vertices.

    Args:
        options: names of the file and its columns.

    Returns:
        ``pyarrow.Array`` of int64 or strings [N], entry i the id of vertex i; None where a vertex's id is its number,
        or there is no vertex file.

    Raises:
        DataError: the file is missing or has no such column, or an id is missing or repeated.
    """
    import pyarrow as pa

    if options.ids == "rows" or not options.vertex_file:
        return None
    path = Path(options.vertex_file)
    style = TableStyle(delimiter=options.delimiter, has_header=options.has_header)
    kind: ColumnType = "string" if options.ids == "names" else "int64"
    name = options.vertex_id_column
    batches = list(iterate_batches(path, {name: kind}, style, missing_allowed=True))
    ids = pa.chunked_array([batch[name] for batch in batches], pa.type_for_alias(kind)).combine_chunks()
    _check_ids(path, ids)
    return ids


def _feature_columns(path: Path, style: TableStyle, options: EdgeListOptions) -> tuple[str, ...]:
    if options.feature_columns:
        return options.feature_columns
    used = {options.vertex_id_column, options.split_column, *options.label_columns}
    return tuple(name for name in column_names(path, style) if name not in used)


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
            f"{path}, row {row + 1}: vertex {names[row].as_py()!r} is in row {first[row] + 1} already; keep "
            "one."
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
