"""CSV and Parquet files read in batches with pyarrow: memory for one batch at a time."""

import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError

__all__ = ["ColumnType", "TableStyle", "column_names", "is_parquet", "iterate_batches", "read_matrix", "read_table"]

ColumnType = Literal["int64", "float32", "float64", "string"]
"""The type a column must have or be convertible to without loss."""

BLOCK_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class TableStyle:
    """How a CSV file is laid out; of no consequence for Parquet."""

    delimiter: str = ""
    """What separates columns; empty for a tab in .tsv files and a comma in others."""
    has_header: bool = True
    """Whether the first row names the columns; without it they are named f0, f1, ..."""
    skip_rows: int = 0
    """Lines to pass over before the header or first row."""


def column_names(path: Path, style: TableStyle) -> list[str]:
    """List the columns of a CSV file (also gzipped) or a Parquet file.

    Raises:
        DataError: the file is missing or is no such table.
    """
    if is_parquet(path):
        return list(_open_parquet(path).schema_arrow.names)
    return list(_open_csv(path, style, {}).schema.names)


def iterate_batches(
    path: Path, columns: Mapping[str, ColumnType], style: TableStyle, *, missing_allowed: bool = False
) -> Iterator[dict[str, Any]]:
    """Read some columns of a CSV file (also gzipped) or a Parquet file, each of a type, batch by batch.

    Yields:
        For each batch of rows, a ``pyarrow.Array`` by column. Where `missing_allowed`, an empty cell is null in it.

    Raises:
        DataError: the file is missing, a column is not there, or a cell is empty or of another type; the
            message names the file and the row, of which the first of data is 1.
    """
    import pyarrow as pa

    present = column_names(path, style)
    for name in columns:
        if name not in present:
            raise DataError(f"{path}: there is no column {name!r}; the columns are {present}. Correct the name.")
    if is_parquet(path):
        batches = _open_parquet(path).iter_batches(columns=list(columns))
    else:
        batches = _open_csv(path, style, columns)
    row = 1
    try:
        for batch in batches:
            converted = {}
            for name, kind in columns.items():
                array = batch.column(batch.schema.get_field_index(name))
                converted[name] = array.cast(pa.type_for_alias(kind))
                if converted[name].null_count and not missing_allowed:
                    position = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
                    raise DataError(f"{path}, row {row + position}: column {name!r} is empty; fill it in.")
            yield converted
            row += batch.num_rows
    except pa.ArrowInvalid as error:
        _check_encoding(path)
        raise DataError(
            f"{path}, at or after row {row}: {error}. Correct that row; every row needs the same columns, "
            f"each of the type {dict(columns)}."
        ) from error


def read_matrix(path: Path, dtype: Literal["int64", "float32", "float64"]) -> npt.NDArray[Any]:
    """Read a CSV file without header into a matrix [rows, columns].

    An empty cell is NaN, and refused in integers; errors are those of `iterate_batches`.
    """
    style = TableStyle(has_header=False)
    types: dict[str, ColumnType] = dict.fromkeys(column_names(path, style), dtype)
    parts = [
        np.stack([column.to_numpy(zero_copy_only=False) for column in batch.values()], axis=1)
        for batch in iterate_batches(path, types, style, missing_allowed=dtype != "int64")
    ]
    return np.concatenate(parts) if parts else np.empty((0, len(types)), dtype=dtype)


def read_table(path: Path, style: TableStyle, *, whole: bool) -> dict[str, Any]:
    """Read all columns as what they look like, or their first rows: ``pyarrow.ChunkedArray`` by name.

    Raises:
        DataError: the file is missing, has no rows or is no such table.
    """
    import pyarrow as pa

    reader = _open_parquet(path).iter_batches() if is_parquet(path) else _open_csv(path, style, {})
    try:
        table = pa.Table.from_batches(reader if whole else [next(reader)])
    except (StopIteration, ValueError) as error:
        raise DataError(
            f"{path}: not understood as columns with {style.delimiter!r} between them ({error}): correct the row"
        ) from error
    return dict(zip(table.column_names, table.columns, strict=True))


def is_parquet(path: Path) -> bool:
    """Whether a file is called as Parquet files are; else it is CSV."""
    return path.suffix in (".parquet", ".pq")


def _open_parquet(path: Path) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{path}: no readable Parquet file ({error}); correct the path or write it again.") from error


def _open_csv(path: Path, style: TableStyle, columns: Mapping[str, ColumnType]) -> Any:
    import pyarrow as pa
    from pyarrow import csv

    endings = [suffix for suffix in path.suffixes if suffix != ".gz"]
    delimiter = style.delimiter or ("\t" if endings[-1:] == [".tsv"] else ",")
    options = {
        "read_options": csv.ReadOptions(
            use_threads=False,
            block_size=BLOCK_BYTES,
            skip_rows=style.skip_rows,
            autogenerate_column_names=not style.has_header,
        ),
        "parse_options": csv.ParseOptions(delimiter=delimiter),
        "convert_options": csv.ConvertOptions(
            column_types={name: pa.type_for_alias(kind) for name, kind in columns.items()},
            include_columns=list(columns),
            null_values=[""],
            strings_can_be_null=True,
        ),
    }
    try:
        reader = csv.open_csv(path, **options)
        _ = reader.schema.names  # Only here are they decoded.
    except (OSError, UnicodeDecodeError, pa.ArrowInvalid) as error:
        _check_encoding(path)
        raise DataError(
            f"{path}: no readable CSV file ({error}); correct the path, the row, or the delimiter {delimiter!r}."
        ) from error
    return reader


def _check_encoding(path: Path) -> None:
    """Refuse a text file that is not UTF-8, which pyarrow's errors do not say: DataError with line and byte."""
    if is_parquet(path) or not path.is_file():
        return
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}, line {number}, byte {error.start + 1} is 0x{line[error.start]:02x}, which is not UTF-8; "
                    "save the file as UTF-8: if it is Latin-1, by iconv -f LATIN1 -t UTF-8."
                ) from error
