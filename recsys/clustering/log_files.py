"""The Parquet files of a log as one table: found, checked to be alike, and read a few rows at a time."""

import difflib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from windrow.comm.errors import DataError
from windrow.recsys.clustering.log_schema import as_schema, check_alike, common_schema, without_dictionaries

__all__ = ["DESCRIPTION_NAME", "LogFiles", "find_files", "is_utf8"]

DESCRIPTION_NAME = "_clustered.json"
"""What says that a folder is a clustered log. Engines that read a folder leave out names with an underscore."""

BATCH_BYTES = 4 << 20
"""Rows decoded at a time have about as many bytes: a small part of the least memory that may be allowed."""
MOST_BATCH_ROWS = 1 << 16
SAMPLED_GROUPS = 8
"""Row groups, spread over the log, that the size of a row is estimated from: rows often grow as a log goes on."""
SAMPLED_ROWS = 1024
"""Rows of each."""
READ_BUFFER_BYTES = 1 << 20
"""Of each column that is being read. Without a buffer, Arrow reads the whole column of a row group at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogFiles:
    """Parquet files with the same columns, whose rows follow one another."""

    files: tuple[Path, ...]
    """In their order."""
    file_rows: tuple[int, ...]
    """Rows of each."""
    schema: Any
    """``pyarrow.Schema`` of all: columns in the order of the first one."""
    num_bytes: int
    """Of all files."""
    row_bytes: float
    """Of a row in memory, decoded, dictionaries too: the mean over a sample."""
    packed_row_bytes: float
    """Of a row in a file for passing use (Arrow, lz4): the mean over the sample."""

    @property
    def rows(self) -> int:
        """Of all files."""
        return sum(self.file_rows)

    @property
    def row_schema(self) -> Any:
        """``pyarrow.Schema`` of the rows as they are read: that of the log, without its dictionaries."""
        return without_dictionaries(self.schema)

    @classmethod
    def open(cls, inputs: Sequence[Path]) -> Self:
        """Find the files of a log and read their footers.

        Args:
            inputs: files, patterns or folders.

        Raises:
            DataError: there are none, one cannot be read, they differ in their columns, or have no rows.
        """
        files = find_files(inputs)
        file_rows = []
        groups: list[tuple[Path, int]] = []
        schemas: list[Any] = []
        for path in files:
            with _open(path) as opened:
                schema = opened.schema_arrow
                footer = opened.metadata
                file_rows.append(footer.num_rows)
                groups += [
                    (path, group)
                    for group in range(footer.num_row_groups)
                    if footer.row_group(group).num_rows
                ]
            schemas.append(schema)
            check_alike(path, schema, files[0], schemas[0])
        if not any(file_rows):
            raise DataError(f"{', '.join(map(str, files[:3]))}: there are no rows in the log")
        row_bytes, packed_row_bytes = _sampled_sizes(groups)
        return cls(
            files=files,
            file_rows=tuple(file_rows),
            schema=common_schema(schemas[0], schemas[1:]),
            num_bytes=sum(path.stat().st_size for path in files),
            row_bytes=row_bytes,
            packed_row_bytes=packed_row_bytes,
        )

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Read all rows in their order.

        Args:
            columns: to read; all of them by default, in the order of the first file.

        Yields:
            ``pyarrow.RecordBatch`` of some MB, columns in the order asked for and of the types of `row_schema`.

        Raises:
            DataError: a file cannot be decoded.
        """
        import pyarrow as pa

        wanted = list(self.schema.names if columns is None else columns)
        types = self.row_schema
        schema = pa.schema([types.field(name) for name in wanted], metadata=types.metadata)
        # A column alone is smaller than a row; the rows of a batch are the same for all, which is simple.
        rows = max(1, min(MOST_BATCH_ROWS, int(BATCH_BYTES / self.row_bytes)))
        for path in self.files:
            with _open(path) as opened:
                try:
                    # Group by group: Arrow cannot put lists with dictionaries of two groups into one batch.
                    for group in range(opened.num_row_groups):
                        for batch in opened.iter_batches(rows, row_groups=[group], columns=wanted):
                            yield as_schema(batch.select(wanted), schema)
                except (OSError, pa.ArrowException) as error:
                    raise DataError(f"{path} cannot be decoded ({error}): write the file again") from error

    def check_column(self, name: str, option: str) -> Any:
        """The type of a column.

        Args:
            name: of the column.
            option: of the command that names it, for the message.

        Raises:
            DataError: there is no such column.
        """
        if name not in self.schema.names:
            nearest = difflib.get_close_matches(name, self.schema.names, n=1, cutoff=0.5)
            meant = f" Did you mean {nearest[0]!r}?" if nearest else ""
            raise DataError(
                f"{self.files[0]}: {option} names {name!r}, but there is no such column.{meant} Columns: "
                f"{', '.join(self.schema.names)}"
            )
        return self.schema.field(name).type


def find_files(inputs: Sequence[Path]) -> tuple[Path, ...]:
    """Turn files, patterns and folders into files.

    Args:
        inputs: of a folder every ``*.parquet`` below it counts, except where a name on the way begins with a dot or an
            underscore: other engines keep what is no data under such names.

    Returns:
        The files in the order of `inputs`; those of a pattern or a folder by path.

    Raises:
        DataError: one is not there or empty, a pattern or folder has no files or those of a clustered log that was not
            named itself, a file is named twice, or its path is no UTF-8.
    """
    found: list[Path] = []
    for path in inputs:
        if path.is_file():
            matches = [path]
        elif path.is_dir():
            matches = [
                file for file in sorted(path.rglob("*.parquet")) if file.is_file() and _is_data(file, path)
            ]
            if not matches:
                raise DataError(
                    f"{path}: there is no *.parquet in the folder; name another one, or its files"
                )
        else:
            anchor = Path(path.anchor)
            matches = sorted(file for file in anchor.glob(str(path.relative_to(anchor))) if file.is_file())
            if not matches:
                raise DataError(f"{path}: there is no such file, and it matches none; correct the path")
        _check_named(path, matches)
        found += matches
    once: set[Path] = set()
    for path in found:
        if not is_utf8(path):
            raise DataError(f"the path {os.fsencode(path)!r} is no UTF-8, which Arrow needs: rename it")
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty: write it again, or leave it out")
        if path.resolve() in once:
            raise DataError(f"{path} is named twice: its rows would count twice; name it once")
        once.add(path.resolve())
    return tuple(found)


def is_utf8(path: Path) -> bool:
    """Whether a path is text: Arrow and DuckDB take no other."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_named(path: Path, matches: Sequence[Path]) -> None:
    """Refuse a clustered log that is come upon: the log it was made from is often beside it, and would count twice."""
    named = path if path.is_dir() else path.parent
    for folder in dict.fromkeys(file.parent for file in matches):
        if folder != named and (folder / DESCRIPTION_NAME).is_file():
            raise DataError(
                f"{path} takes in the clustered log {folder}, whose rows would count twice if they come from files "
                "beside it: name that folder itself, or choose a pattern or folder without it"
            )


def _is_data(file: Path, folder: Path) -> bool:
    return not any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)


def _sampled_sizes(groups: Sequence[tuple[Path, int]]) -> tuple[float, float]:
    """Mean bytes of a row, decoded in memory and packed in a file for passing use."""
    import pyarrow as pa

    rows = plain = packed = 0
    for place in range(min(SAMPLED_GROUPS, len(groups))):
        path, group = groups[place * len(groups) // min(SAMPLED_GROUPS, len(groups))]
        try:
            with _open(path) as opened:
                batch = next(opened.iter_batches(SAMPLED_ROWS, row_groups=[group]))
                batch = as_schema(batch, without_dictionaries(common_schema(batch.schema, [])))
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path} cannot be decoded ({error}): write the file again") from error
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
            writer.write_batch(batch)
        rows += batch.num_rows
        plain += batch.nbytes
        packed += sink.getvalue().size
    return max(1.0, plain / rows), packed / rows


def _open(path: Path) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path, pre_buffer=False, buffer_size=READ_BUFFER_BYTES)
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"{path}: no readable Parquet file ({error}): correct the path or write it again"
        ) from error
