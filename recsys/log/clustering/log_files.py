"""The Parquet files of a log as one table: found, checked to be alike, and read a few rows at a time.

A log's files must have the same columns, of types that can be brought to one.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from windrow.comm.errors import DataError, nearest_name
from windrow.recsys.log.files import resolve_files

__all__ = ["DESCRIPTION_NAME", "LogFiles", "is_text", "is_text_or_bytes", "open_parquet"]

DESCRIPTION_NAME = "_clustered.json"
"""What says that a folder is a clustered log. Engines that read a folder leave out names with an underscore."""

BATCH_BYTES = 4 << 20
"""Rows decoded at a time have about as many bytes: a small part of the least memory that may be allowed."""
MOST_BATCH_ROWS = 1 << 16
SAMPLED_GROUPS = 8
"""Row groups, spread over the log, that the size of a row is estimated from: rows often grow as a log goes on."""
SAMPLED_ROWS = 1024
"""Rows of each."""
BUFFERED = {"pre_buffer": False, "buffer_size": 1 << 20}
"""How files are read: without a buffer for each column, Arrow reads the whole column of a row group at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogFiles:
    """Parquet files with the same columns, whose rows follow one another."""

    files: tuple[Path, ...]
    """In their order."""
    rows: int
    """Of all files."""
    schema: Any
    """``pyarrow.Schema`` of all: columns in the order of the first one, which may hold nulls where they may in any.
    Views of text and bytes, which rows cannot be taken from, are text and bytes: Parquet has no difference."""
    num_bytes: int
    """Of all files."""
    row_bytes: float
    """Of a row in memory, decoded, dictionaries too: the mean over a sample."""

    @classmethod
    def open(cls, inputs: Sequence[Path]) -> Self:
        """Find the files of a log, by files, patterns or folders, and read their footers.

        Raises:
            DataError: there are none, one cannot be read, they differ in their columns, or have no rows.
        """
        import pyarrow as pa

        files = _find_files(inputs)
        groups: list[tuple[Path, int]] = []
        schema: Any = None
        rows = 0
        for path in files:
            with _opened(path) as opened:
                found = _plain(opened.schema_arrow, keep_dictionaries=True)
                footer = opened.metadata
            if schema is not None and sorted(found.names) != sorted(schema.names):
                raise DataError(_difference(path, f"columns {', '.join(found.names)}, not {', '.join(schema.names)}"))
            try:
                schema = pa.unify_schemas([found if schema is None else schema, found])
            except pa.ArrowException as error:
                raise DataError(_difference(path, str(error))) from error
            rows += footer.num_rows
            groups += [(path, group) for group in range(footer.num_row_groups) if footer.row_group(group).num_rows]
        if not rows:
            raise DataError(f"{', '.join(map(str, files[:3]))}: there are no rows in the log")
        return cls(
            files=files,
            rows=rows,
            schema=schema,
            num_bytes=sum(path.stat().st_size for path in files),
            row_bytes=_sampled_row_bytes(groups),
        )

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Read all rows in their order: of some columns; all of them by default, in the order of the first file.

        Yields:
            ``pyarrow.RecordBatch`` of some MB, columns in the order asked for and of the types of `schema`, with
            values in place of dictionaries that are not ordered.

        Raises:
            DataError: a file cannot be decoded.
        """
        import pyarrow as pa

        wanted = list(self.schema.names if columns is None else columns)
        schema = _plain(self.schema, keep_dictionaries=False)
        schema = pa.schema([schema.field(name) for name in wanted], metadata=schema.metadata)
        # A column alone is smaller than a row; the rows of a batch are the same for all, which is simple.
        rows = max(1, min(MOST_BATCH_ROWS, int(BATCH_BYTES / self.row_bytes)))
        for path in self.files:
            with _opened(path) as opened:
                # Group by group: Arrow cannot put lists with dictionaries of two groups into one batch.
                for group in range(opened.num_row_groups):
                    for batch in opened.iter_batches(rows, row_groups=[group], columns=wanted):
                        yield _as_schema(batch.select(wanted), schema)

    def check_column(self, name: str, option: str, expected: str, tests: Sequence[Callable[[Any], bool]]) -> None:
        """Refuse a column that an option of the command names and that no test of its type lets pass.

        Raises:
            DataError: names column, type and cure.
        """
        if name not in self.schema.names:
            raise DataError(
                f"{self.files[0]}: {option} names {name!r}, but there is no such column. "
                f"{nearest_name(name, self.schema.names)}"
            )
        kind = self.schema.field(name).type
        if not any(test(kind) for test in tests):
            raise DataError(
                f"{self.files[0]}: {option} names {name!r} of type {kind}, expected {expected}: convert the column, or "
                "name another one"
            )


def _find_files(inputs: Sequence[Path]) -> tuple[Path, ...]:
    """The files of a log, those of a pattern or a folder by path.

    Other engines keep what is no data under names that begin with a dot or an underscore.
    """
    found: list[Path] = []
    for path in inputs:
        matches = [path]
        if path.is_dir():
            matches = [
                file
                for file in sorted(path.rglob("*.parquet"))
                if file.is_file() and not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
            ]
            if not matches:
                raise DataError(f"{path}: there is no *.parquet in the folder; name another one, or its files")
        matches = list(resolve_files(matches))
        _check_named(path, matches)
        found += matches
    return resolve_files(found)


def _check_named(path: Path, matches: Sequence[Path]) -> None:
    """Refuse a clustered log that is come upon: the log it was made from is often beside it, and would count twice."""
    named = path if path.is_dir() else path.parent
    for folder in dict.fromkeys(file.parent for file in matches):
        if folder != named and (folder / DESCRIPTION_NAME).is_file():
            raise DataError(
                f"{path} takes in the clustered log {folder}, whose rows would count twice if they come from files "
                "beside it: name that folder itself, or choose a pattern or folder without it"
            )


def _difference(path: Path, how: str) -> str:
    return f"{path} is unlike the files before ({how}): give all files the same columns, or cluster them apart"


def _sampled_row_bytes(groups: Sequence[tuple[Path, int]]) -> float:
    """Mean bytes of a row, decoded in memory."""
    num_sampled = min(SAMPLED_GROUPS, len(groups))
    rows = num_bytes = 0
    for place in range(num_sampled):
        path, group = groups[place * len(groups) // num_sampled]
        with _opened(path) as opened:
            batch = next(opened.iter_batches(SAMPLED_ROWS, row_groups=[group]))
            num_bytes += _as_schema(batch, _plain(batch.schema, keep_dictionaries=False)).nbytes
        rows += batch.num_rows
    return max(1.0, num_bytes / rows)


def open_parquet(path: Path, **options: Any) -> Any:
    """Open a ``pyarrow.parquet.ParquetFile``, with its options.

    Raises:
        DataError: it is none.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path, **options)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: no readable Parquet file ({error}): correct the path or write it again") from error


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A Parquet file that may turn out to be damaged."""
    import pyarrow as pa

    with open_parquet(path, **BUFFERED) as opened:
        try:
            yield opened
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path} cannot be decoded ({error}): write the file again") from error


def _as_schema(batch: Any, schema: Any) -> Any:
    """Rows of a file with the types of the log; columns that have theirs already are not copied."""
    import pyarrow as pa

    columns = [
        column if column.type == kind else column.cast(kind)
        for column, kind in zip(batch.columns, schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _plain(schema: Any, *, keep_dictionaries: bool) -> Any:
    """A schema with text and bytes in place of views, and perhaps values in place of dictionaries, at any depth.

    A dictionary belongs to a whole row group, and a few rows of it would take all of its values along. An ordered one
    stays: it is small, and the order of values is known from nothing else.
    """
    import pyarrow as pa
    from pyarrow import types

    def plain(field: Any) -> Any:
        kind = field.type
        if types.is_string_view(kind):
            kind = pa.string()
        elif types.is_binary_view(kind):
            kind = pa.binary()
        elif types.is_dictionary(kind):
            values = plain(pa.field("", kind.value_type)).type
            is_kept = keep_dictionaries or kind.ordered
            kind = pa.dictionary(kind.index_type, values, kind.ordered) if is_kept else values
        elif types.is_struct(kind):
            kind = pa.struct([plain(part) for part in kind])
        elif types.is_map(kind):
            kind = pa.map_(plain(kind.key_field), plain(kind.item_field), keys_sorted=kind.keys_sorted)
        elif types.is_fixed_size_list(kind):
            kind = pa.list_(plain(kind.value_field), kind.list_size)
        elif types.is_list(kind) or types.is_large_list(kind):
            make = pa.list_ if types.is_list(kind) else pa.large_list
            kind = make(plain(kind.value_field))
        return field.with_type(kind)

    return pa.schema([plain(field) for field in schema], metadata=schema.metadata)


def is_text(kind: Any) -> bool:
    """Whether values of a ``pyarrow.DataType`` are text."""
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_text_or_bytes(kind: Any) -> bool:
    """Whether values of a ``pyarrow.DataType`` are text or bytes of any length."""
    from pyarrow import types

    return is_text(kind) or types.is_binary(kind) or types.is_large_binary(kind)
