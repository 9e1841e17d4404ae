"""CSV and Parquet files, read with pyarrow."""

import contextlib
import ctypes
import gzip
import itertools
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError

__all__ = ["ColumnType", "Share", "TableFile", "read_matrix", "release_freed_memory"]

BLOCK_BYTES = 16 << 20
"""Read at once: a line must fit, and types are inferred from the first."""

FIRST_BYTES = 1 << 20
"""That the names of columns are read from."""

ColumnType = Literal["int64", "float32", "float64", "string"]
"""The type a column must have or be convertible to without loss."""

Share: TypeAlias = tuple[int, int]
"""(k, n): the k-th, from 0, of n near-equal pieces of a file that follow one another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableFile:
    """A CSV file (also gzipped) or a Parquet file, to which `path` alone applies."""

    path: Path
    """Where it is; the ending tells which it is."""
    delimiter: str = ""
    """What separates columns; empty for a tab in .tsv files and a comma in others."""
    has_header: bool = True
    """Whether the first row names the columns; without it they are named f0, f1, ..."""
    skip_rows: int = 0
    """Lines to skip before the header or first row."""

    def column_names(self) -> list[str]:
        """List the columns; DataError where the file is missing or is no such table."""
        import pyarrow as pa
        from pyarrow import csv, parquet

        with self._readable():
            if self.is_parquet:
                return list(parquet.read_schema(self.path).names)
            options = self._csv_options({})
            with contextlib.suppress(pa.ArrowInvalid):
                # Enough, where lines are not very long.
                return list(csv.open_csv(self.path, **options | self._lines(block_size=FIRST_BYTES)).schema.names)
            return list(csv.open_csv(self.path, **options).schema.names)

    def read(
        self, columns: Mapping[str, ColumnType], *, missing_allowed: bool = False, share: Share | None = None
    ) -> dict[str, Any]:
        """Read some columns, each of a type, of all rows or of a share of them, which may be none.

        A share of a Parquet file costs the row groups that hold it, of a CSV file its bytes, in memory at once.

        Returns:
            A ``pyarrow.ChunkedArray`` by column. Where `missing_allowed`, an empty cell is null in it.

        Raises:
            DataError: the file is missing, a column is not there, or a cell is empty or of another type; the message
                names the file and the row, of which the first of data is 1.
        """
        import pyarrow.compute as pc

        present = self.column_names()
        for name in columns:
            if name not in present:
                raise DataError(f"{self.path}: there is no column {name!r}; the columns are {present}. Correct it.")
        wanted = f", of columns {dict(columns)}" if columns else ""
        if share is not None and not self.is_parquet:
            wanted += f", rows counted from byte {self._bytes_of(share)[0]}"
        with self._readable(wanted):
            table = self._table(columns, share, present)
            found = {name: table[name].cast(kind) for name, kind in columns.items()}
        for name, array in found.items():
            if array.null_count and not missing_allowed:
                row = pc.index(pc.is_null(array), True).as_py()
                raise DataError(f"{self.place(row, share)}: column {name!r} is empty; fill it in.")
        return found

    def place(self, row: int, share: Share | None = None) -> str:
        """Where a row of what was read stands, for messages: the file, and the row, of which the first is 1."""
        if share is None:
            return f"{self.path}, row {row + 1}"
        if self.is_parquet:
            return f"{self.path}, row {self._rows_of(share)[0] + row + 1}"
        return f"{self.path}, row {row + 1} behind byte {self._bytes_of(share)[0]}"

    def _table(self, columns: Mapping[str, ColumnType], share: Share | None, present: list[str]) -> Any:
        import pyarrow as pa
        from pyarrow import csv, parquet

        if share is None and self.is_parquet:
            return parquet.read_table(self.path, columns=list(columns))
        options = self._csv_options(columns)
        if share is None:
            return csv.read_csv(self.path, **options)
        if not self.is_parquet:
            start, stop = self._bytes_of(share)
            with self.path.open("rb") as file:
                file.seek(start)
                text = file.read(stop - start)
            if text.isspace() or not text:
                return pa.table({name: pa.array([], pa.type_for_alias(kind)) for name, kind in columns.items()})
            lines = csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES, column_names=present)
            return csv.read_csv(pa.BufferReader(text), **{**options, "read_options": lines})
        start, stop = self._rows_of(share)
        tables, row = [], 0
        with parquet.ParquetFile(self.path) as file:
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                first, last = max(start - row, 0), min(stop - row, rows)
                if first < last:
                    tables.append(file.read_row_group(group, columns=list(columns)).slice(first, last - first))
                row += rows
            return pa.concat_tables(tables or [file.schema_arrow.empty_table()])

    def _rows_of(self, share: Share) -> tuple[int, int]:
        """The rows of a share of a Parquet file: first, and one past the last."""
        from pyarrow import parquet

        rows, (number, shares) = parquet.read_metadata(self.path).num_rows, share
        return rows * number // shares, rows * (number + 1) // shares

    def _bytes_of(self, share: Share) -> tuple[int, int]:
        """The lines of a share of a CSV file: first byte, and one past the last. No value may hold a line's end."""
        number, shares = share
        with self.path.open("rb") as file:
            for _ in range(self.skip_rows + self.has_header):
                file.readline()
            begin, size = file.tell(), self.path.stat().st_size
            bounds = []
            for place in (number, number + 1):
                bound = begin + (size - begin) * place // shares
                if bound > begin:
                    # The line that the byte before belongs to, or ends.
                    file.seek(bound - 1)
                    file.readline()
                    bound = file.tell()
                bounds.append(bound)
        return bounds[0], bounds[1]

    def sample(self, *, whole: bool) -> dict[str, Any]:
        """All columns as what they look like, of all rows or the first ones: ``pyarrow.ChunkedArray`` by name.

        Raises:
            DataError: the file is missing, has no rows or is no such table.
        """
        import pyarrow as pa
        from pyarrow import csv, parquet

        with self._readable():
            reader = (
                parquet.ParquetFile(self.path).iter_batches()
                if self.is_parquet
                else csv.open_csv(self.path, **self._csv_options({}))
            )
            batches = list(reader if whole else itertools.islice(reader, 1))
            if not batches:
                raise DataError(f"{self.path}: there are no rows")
            table = pa.Table.from_batches(batches)
        return dict(zip(table.column_names, table.columns, strict=True))

    @property
    def is_parquet(self) -> bool:
        """Whether the file is called as Parquet files are; else it is CSV."""
        return self.path.suffix in (".parquet", ".pq")

    def _csv_options(self, columns: Mapping[str, ColumnType]) -> dict[str, Any]:
        import pyarrow as pa
        from pyarrow import csv

        endings = [suffix for suffix in self.path.suffixes if suffix != ".gz"]
        delimiter = self.delimiter or ("\t" if endings[-1:] == [".tsv"] else ",")
        return {
            **self._lines(block_size=BLOCK_BYTES),
            "parse_options": csv.ParseOptions(delimiter=delimiter),
            "convert_options": csv.ConvertOptions(
                column_types={name: pa.type_for_alias(kind) for name, kind in columns.items()},
                include_columns=list(columns),
                null_values=[""],
                strings_can_be_null=True,
            ),
        }

    def _lines(self, *, block_size: int) -> dict[str, Any]:
        from pyarrow import csv

        # One thread alone counts the rows for errors.
        lines = csv.ReadOptions(
            use_threads=False,
            block_size=block_size,
            skip_rows=self.skip_rows,
            autogenerate_column_names=not self.has_header,
        )
        return {"read_options": lines}

    @contextlib.contextmanager
    def _readable(self, wanted: str = "") -> Iterator[None]:
        import pyarrow as pa

        try:
            yield
        except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
            if not self.is_parquet:
                _check_encoding(self.path)
            kind = "Parquet" if self.is_parquet else "CSV"
            raise DataError(
                f"{self.path}: no readable {kind} file{wanted} ({error}); correct the path, that row or value, or the "
                "delimiter."
            ) from error


def release_freed_memory() -> None:
    """Give back to the system what Arrow and the C library keep of freed memory for later.

    Arrow keeps as much as the largest file read; glibc all that was in pieces too small for a mapping of their own.
    """
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def read_matrix(path: Path, dtype: Literal["int64", "float32", "float64"]) -> npt.NDArray[Any]:
    """Read a CSV file without header into a matrix [rows, columns].

    An empty cell is NaN, and refused in integers; errors are those of `TableFile.read`.
    """
    file = TableFile(path=path, has_header=False)
    columns = file.read(dict.fromkeys(file.column_names(), dtype), missing_allowed=dtype != "int64")
    return np.stack([column.to_numpy() for column in columns.values()], axis=1)


def _check_encoding(path: Path) -> None:
    """Refuse a text file that is not UTF-8, which pyarrow's errors do not say: DataError with line and byte."""
    if not path.is_file():
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
