"""The Parquet files of a log as one table: found, checked to be alike, and read a few rows at a time.

A log's files must have the same columns, of types that can be brought to one. Two columns, session and time, decide on
the order of a clustered log: here is what they may hold, and how they are compared.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from windrow.comm.errors import DataError, nearest_name
from windrow.recsys.log.files import resolve_files

__all__ = [
    "DESCRIPTION_NAME",
    "LogFiles",
    "check_session_type",
    "check_time_type",
    "is_text",
    "is_text_or_bytes",
    "is_utf8",
    "open_parquet",
    "plain_sessions",
    "plain_times",
]

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

    @classmethod
    def open(cls, inputs: Sequence[Path]) -> Self:
        """Find the files of a log and read their footers.

        Args:
            inputs: files, patterns or folders.

        Raises:
            DataError: there are none, one cannot be read, they differ in their columns, or have no rows.
        """
        files = _find_files(inputs)
        file_rows = []
        groups: list[tuple[Path, int]] = []
        schemas: list[Any] = []
        for path in files:
            with _opened(path) as opened:
                schema = opened.schema_arrow
                footer = opened.metadata
                file_rows.append(footer.num_rows)
                groups += [(path, group) for group in range(footer.num_row_groups) if footer.row_group(group).num_rows]
            schemas.append(schema)
            _check_alike(path, schema, files[0], schemas[0])
        if not any(file_rows):
            raise DataError(f"{', '.join(map(str, files[:3]))}: there are no rows in the log")
        row_bytes, packed_row_bytes = _sampled_sizes(groups)
        return cls(
            files=files,
            file_rows=tuple(file_rows),
            schema=_common_schema(schemas[0], schemas[1:]),
            num_bytes=sum(path.stat().st_size for path in files),
            row_bytes=row_bytes,
            packed_row_bytes=packed_row_bytes,
        )

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Read all rows in their order.

        Args:
            columns: to read; all of them by default, in the order of the first file.

        Yields:
            ``pyarrow.RecordBatch`` of some MB, columns in the order asked for and of the types of `schema`, with
            values in place of dictionaries that are not ordered.

        Raises:
            DataError: a file cannot be decoded.
        """
        import pyarrow as pa

        wanted = list(self.schema.names if columns is None else columns)
        types = _without_dictionaries(self.schema)
        schema = pa.schema([types.field(name) for name in wanted], metadata=types.metadata)
        # A column alone is smaller than a row; the rows of a batch are the same for all, which is simple.
        rows = max(1, min(MOST_BATCH_ROWS, int(BATCH_BYTES / self.row_bytes)))
        for path in self.files:
            with _opened(path) as opened:
                # Group by group: Arrow cannot put lists with dictionaries of two groups into one batch.
                for group in range(opened.num_row_groups):
                    for batch in opened.iter_batches(rows, row_groups=[group], columns=wanted):
                        yield _as_schema(batch.select(wanted), schema)


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
    for path in found:
        if not is_utf8(path):
            raise DataError(f"the path {os.fsencode(path)!r} is no UTF-8, which Arrow needs: rename it")
    return resolve_files(found)


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


def _sampled_sizes(groups: Sequence[tuple[Path, int]]) -> tuple[float, float]:
    """Mean bytes of a row, decoded in memory and packed in a file for passing use."""
    import pyarrow as pa

    rows = plain = packed = 0
    for place in range(min(SAMPLED_GROUPS, len(groups))):
        path, group = groups[place * len(groups) // min(SAMPLED_GROUPS, len(groups))]
        with _opened(path) as opened:
            batch = next(opened.iter_batches(SAMPLED_ROWS, row_groups=[group]))
            batch = _as_schema(batch, _without_dictionaries(_common_schema(batch.schema, [])))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
            writer.write_batch(batch)
        rows += batch.num_rows
        plain += batch.nbytes
        packed += sink.getvalue().size
    return max(1.0, plain / rows), packed / rows


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


def _check_alike(path: Path, schema: Any, first_path: Path, first: Any) -> None:
    """Refuse a file whose columns are not those of the first one, in any order."""
    found, wanted = (dict(zip(one.names, one.types, strict=True)) for one in (schema, first))
    if len(found) != len(schema.names):
        raise DataError(f"{path} has two columns of one name: {', '.join(schema.names)}; rename one")
    for name in [*wanted, *found]:
        if found.get(name) != wanted.get(name):
            raise DataError(
                f"{path} and {first_path} differ in column {name!r}: {found.get(name, 'there is none')} and "
                f"{wanted.get(name, 'there is none')}; give all files the same columns, or cluster them apart"
            )


def _common_schema(first: Any, others: Iterable[Any]) -> Any:
    """The columns of a log: those of its first file.

    One may hold nulls where it may in any file. Views of text and bytes, which rows cannot be taken from, are text and
    bytes: in Parquet there is no difference.
    """
    import pyarrow as pa

    nullable = {field.name for schema in (first, *others) for field in schema if field.nullable}
    fields = [_plain(field, keep_dictionaries=True) for field in first]
    return pa.schema([field.with_nullable(field.name in nullable) for field in fields], metadata=first.metadata)


def _without_dictionaries(schema: Any) -> Any:
    """The columns of a log as its rows are moved about: with values in place of positions in a dictionary.

    A dictionary belongs to a whole row group, and a few rows of it would take all of its values along. An ordered one
    stays: it is small, and the order of values is known from nothing else.
    """
    import pyarrow as pa

    return pa.schema([_plain(field, keep_dictionaries=False) for field in schema], metadata=schema.metadata)


def _as_schema(batch: Any, schema: Any) -> Any:
    """Rows of a file with the types of the log; columns that have theirs already are not copied."""
    import pyarrow as pa

    columns = [
        column if column.type == kind else column.cast(kind)
        for column, kind in zip(batch.columns, schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _plain(field: Any, *, keep_dictionaries: bool) -> Any:
    """A field with text and bytes in place of views, and perhaps values in place of dictionaries, at any depth."""
    import pyarrow as pa
    from pyarrow import types

    def inner(part: Any) -> Any:
        return _plain(part, keep_dictionaries=keep_dictionaries)

    def dictionary() -> Any:
        values = inner(pa.field("values", kind.value_type)).type
        is_kept = keep_dictionaries or kind.ordered
        return pa.dictionary(kind.index_type, values, kind.ordered) if is_kept else values

    kind = field.type
    rules: tuple[tuple[Callable[[Any], bool], Callable[[], Any]], ...] = (
        (types.is_string_view, pa.string),
        (types.is_binary_view, pa.binary),
        (types.is_dictionary, dictionary),
        (types.is_struct, lambda: pa.struct([inner(part) for part in kind])),
        (types.is_map, lambda: pa.map_(inner(kind.key_field), inner(kind.item_field), keys_sorted=kind.keys_sorted)),
        (types.is_list, lambda: pa.list_(inner(kind.value_field))),
        (types.is_large_list, lambda: pa.large_list(inner(kind.value_field))),
        (types.is_fixed_size_list, lambda: pa.list_(inner(kind.value_field), kind.list_size)),
    )
    return field.with_type(next((make() for is_kind, make in rules if is_kind(kind)), kind))


def check_session_type(log: LogFiles, by: str) -> None:
    """Refuse sessions that are neither whole numbers nor text nor bytes.

    Raises:
        DataError: names column, type and cure.
    """
    from pyarrow import types

    kind = _value_type(_column_type(log, by, "--by"))
    if not (types.is_integer(kind) or is_text_or_bytes(kind) or types.is_fixed_size_binary(kind)):
        raise DataError(
            f"{log.files[0]}: --by names {by!r} of type {kind}, expected whole numbers, text or bytes: convert the "
            "column, or name another one"
        )


def check_time_type(log: LogFiles, time: str) -> None:
    """Refuse times without an order that is certain, such as text.

    Raises:
        DataError: names column, type and cure.
    """
    from pyarrow import types

    kind = _column_type(log, time, "--time")
    # DuckDB, which sorts, has neither floats of 16 bits nor decimals of more than 38 digits.
    is_number = types.is_integer(kind) or types.is_float32(kind) or types.is_float64(kind)
    is_instant = types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind)
    if not (is_number or is_instant or types.is_decimal128(kind)):
        raise DataError(
            f"{log.files[0]}: --time names {time!r} of type {kind}, expected numbers, dates or times: convert the "
            "column, name another one, or leave rows in their order with --no-sort"
        )


def is_text(kind: Any) -> bool:
    """Whether values of a ``pyarrow.DataType`` are text."""
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_text_or_bytes(kind: Any) -> bool:
    """Whether values of a ``pyarrow.DataType`` are text or bytes of any length."""
    from pyarrow import types

    return is_text(kind) or types.is_binary(kind) or types.is_large_binary(kind)


def plain_sessions(column: Any) -> Any:
    """Sessions, perhaps with a dictionary or of fixed size, as int64, uint64, large_string or large_binary."""
    import pyarrow as pa
    from pyarrow import types

    kind = _value_type(column.type)
    if types.is_integer(kind):
        return column.cast(pa.uint64() if types.is_unsigned_integer(kind) else pa.int64())
    if types.is_dictionary(column.type):
        column = column.cast(kind)
    return column.cast(pa.large_string() if is_text(kind) else pa.large_binary())


def plain_times(column: Any) -> Any:
    """Times as numbers of the same order: dates and times as int32 or int64, in their unit; numbers as they are.

    DuckDB 1.1 cuts nanoseconds off times of the day and off those with a zone; newer ones do not.
    """
    import pyarrow as pa
    from pyarrow import types

    if not types.is_temporal(column.type):
        return column
    return column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())


def _value_type(kind: Any) -> Any:
    from pyarrow import types

    return kind.value_type if types.is_dictionary(kind) else kind


def _column_type(log: LogFiles, name: str, option: str) -> Any:
    """The type of a column that an option of the command names."""
    if name not in log.schema.names:
        raise DataError(
            f"{log.files[0]}: {option} names {name!r}, but there is no such column. "
            f"{nearest_name(name, log.schema.names)}"
        )
    return log.schema.field(name).type
