"""Readers of click logs in each format: Criteo, libfm, CSV and Parquet, as streams of Arrow record batches.

Criteo's advertising logs, of the Kaggle contest and of the terabyte, are lines of 40 fields with tabs between them::

    label  I1 ... I13   decimal counts, may be empty      C1 ... C26   32-bit hashes in hexadecimal, may be empty

libfm's and libsvm's layout is a label and pairs, as in ``-1 204:1 4798:1 5041:0.5``. As columns, two views of the same
line::

    label   0                                 -1 counts as 0
    field_0 204, field_1 4798, field_2 5041   indices by position, where every line has as many pairs
    ids     [204, 4798, 5041]                 all indices as one list, and
    values  [1.0, 1.0, 0.5]                   what stands behind the colons

CSV has a header line, commas or tabs, plain or compressed. Row groups of Parquet are dealt to ranks in contiguous,
nearly equal shares.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.rows import near_equal_split
from windrow.recsys.batches.prefetch import prefetch
from windrow.recsys.log.options import LogFormat
from windrow.recsys.log.raw_blocks import (
    BLOCK_BYTES,
    LogReader,
    RawBlock,
    TextBlock,
    TextType,
    ordered_map,
    text_blocks,
)
from windrow.recsys.log.readers_kernels import parse_criteo, parse_libfm

__all__ = [
    "CRITEO_COLUMNS",
    "FIELD_PREFIX",
    "IDS_COLUMN",
    "VALUES_COLUMN",
    "CSVLog",
    "CriteoLog",
    "LibfmLog",
    "ParquetLog",
    "make_reader",
]

NUM_DENSE = 13
NUM_CATEGORICAL = 26
CRITEO_COLUMNS = (
    "label",
    *(f"I{number}" for number in range(1, NUM_DENSE + 1)),
    *(f"C{number}" for number in range(1, NUM_CATEGORICAL + 1)),
)
"""The columns of such a log, in their order."""


class CriteoLog:
    """Reads Criteo's layout; all columns are int64, null where a field is empty.

    Args:
        files: plain, or ``.gz``.
        columns: names of `CRITEO_COLUMNS` to hand on; others are left out.
        block_bytes: text parsed at a time.
    """

    def __init__(
        self, files: Sequence[Path], columns: Sequence[str], *, block_bytes: int = BLOCK_BYTES
    ) -> None:
        self._files = tuple(files)
        self._columns = tuple(name for name in CRITEO_COLUMNS if name in columns)
        self._block_bytes = block_bytes

    @property
    def num_bytes(self) -> int:
        """Size of the files on disk."""
        return sum(file.stat().st_size for file in self._files)

    def batches(self, rank: int = 0, size: int = 1) -> Iterator[RawBlock]:
        """See `LogReader.batches`."""
        blocks = text_blocks(self._files, rank=rank, size=size, block_bytes=self._block_bytes)
        yield from ordered_map(self._parse, (block for _, block in prefetch(blocks)))

    def _parse(self, block: TextBlock) -> RawBlock:
        import pyarrow as pa

        values = np.empty((len(CRITEO_COLUMNS), block.num_lines), np.int64)
        valid = np.zeros((len(CRITEO_COLUMNS), (block.num_lines + 7) // 8), np.uint8)
        line, field = parse_criteo(np.frombuffer(block.data, np.uint8), NUM_DENSE, values, valid)
        if line >= 0:
            raise DataError(_message(block, line, field))
        arrays = [
            pa.Array.from_buffers(
                pa.int64(), block.num_lines, [pa.py_buffer(valid[position]), pa.py_buffer(values[position])]
            )
            for position, name in enumerate(CRITEO_COLUMNS)
            if name in self._columns
        ]
        return RawBlock(
            batch=pa.RecordBatch.from_arrays(arrays, names=list(self._columns)),
            file=block.file,
            columns_in_file=CRITEO_COLUMNS,
            unit="line",
            first=block.first_line,
            file_share=block.file_share,
        )


def _message(block: TextBlock, line: int, field: int) -> str:
    fields = block.data.split(b"\n", line + 1)[line].rstrip(b"\r").split(b"\t")
    where = f"{block.file}, line {block.first_line + line}"
    if len(fields) != len(CRITEO_COLUMNS):
        return (
            f"{where}: {len(fields)} fields, expected {len(CRITEO_COLUMNS)} with tabs between them (label, "
            f"{NUM_DENSE} counts, {NUM_CATEGORICAL} categories): correct the line, or the format"
        )
    kind = "a whole number" if field <= NUM_DENSE else "up to 16 hexadecimal digits"
    found = fields[field].decode("utf-8", "replace")
    return f"{where}: field {field + 1} ({CRITEO_COLUMNS[field]}) is {found!r}, expected {kind} or nothing"


FIELD_PREFIX = "field_"
IDS_COLUMN = "ids"
VALUES_COLUMN = "values"


class LibfmLog:
    """Reads libfm files.

    Args:
        files: plain, or ``.gz``.
        columns: ``label``, ``ids``, ``values``, ``field_0``, ``field_1``, ... Fields need the same number of pairs
            in every line of all files.
        block_bytes: text parsed at a time.
    """

    def __init__(
        self, files: Sequence[Path], columns: Sequence[str], *, block_bytes: int = BLOCK_BYTES
    ) -> None:
        self._files = tuple(files)
        self._columns = tuple(columns)
        self._by_position = any(name.startswith(FIELD_PREFIX) for name in columns)
        self._block_bytes = block_bytes

    @property
    def num_bytes(self) -> int:
        """Size of the files on disk."""
        return sum(file.stat().st_size for file in self._files)

    def batches(self, rank: int = 0, size: int = 1) -> Iterator[RawBlock]:
        """See `LogReader.batches`."""
        blocks = text_blocks(self._files, rank=rank, size=size, block_bytes=self._block_bytes)
        yield from ordered_map(self._parse, (block for _, block in prefetch(blocks)))

    def _parse(self, block: TextBlock) -> RawBlock:
        import pyarrow as pa

        capacity = block.data.count(b":")
        labels = np.empty(block.num_lines)
        offsets = np.empty(block.num_lines + 1, np.int64)
        ids = np.empty(capacity, np.int64)
        weights = np.empty(capacity, np.float32)
        line, position = parse_libfm(np.frombuffer(block.data, np.uint8), labels, offsets, ids, weights)
        if line >= 0:
            text = block.data[max(position - 10, 0) : position + 10].decode("utf-8", "replace")
            raise DataError(
                f"{block.file}, line {block.first_line + line}: not understood near {text!r}; expected a label "
                "and pairs index:value with blanks between them"
            )
        labels[labels == -1] = 0
        found: dict[str, Any] = {"label": pa.array(labels)}
        if self._by_position:
            found |= self._fields(block, offsets, ids)
        in_file = (*found, IDS_COLUMN, VALUES_COLUMN)
        if IDS_COLUMN in self._columns:
            found[IDS_COLUMN] = _lists(offsets, ids)
        if VALUES_COLUMN in self._columns:
            found[VALUES_COLUMN] = _lists(offsets, weights)
        wanted = {name: array for name, array in found.items() if name in self._columns}
        return RawBlock(
            batch=pa.RecordBatch.from_pydict(wanted),
            file=block.file,
            columns_in_file=in_file,
            unit="line",
            first=block.first_line,
            file_share=block.file_share,
        )

    @staticmethod
    def _fields(
        block: TextBlock, offsets: npt.NDArray[np.int64], ids: npt.NDArray[np.int64]
    ) -> dict[str, Any]:
        import pyarrow as pa

        lengths = np.diff(offsets)
        other = np.flatnonzero(lengths != lengths[0])
        if len(other):
            line = block.first_line + int(other[0])
            raise DataError(
                f"{block.file}, line {line}: {lengths[other[0]]} pairs, but line {block.first_line} has {lengths[0]}; "
                f"columns {FIELD_PREFIX}0 ... need as many in every line: read column {IDS_COLUMN!r} with "
                "multi_hot = true instead"
            )
        matrix = ids[: offsets[-1]].reshape(len(lengths), -1)
        return {
            f"{FIELD_PREFIX}{field}": pa.array(np.ascontiguousarray(matrix[:, field]))
            for field in range(matrix.shape[1])
        }


def _lists(offsets: npt.NDArray[np.int64], values: npt.NDArray[Any]) -> Any:
    import pyarrow as pa

    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values[: offsets[-1]]))


PARSE_BYTES = 1 << 20
"""What one of Arrow's threads parses at a time."""


class CSVLog:
    """Reads CSV and TSV files, each with a header line of its own. A field must not hold a line end.

    Args:
        files: tabs separate the fields of ``.tsv`` and ``.tsv.gz``, commas those of others.
        columns: columns to read, and what their fields are; empty fields are null. Others are passed over. A block
            in which some field is not what its column should be comes as text, all columns of it.
        block_bytes: text parsed at a time.
    """

    def __init__(
        self, files: Sequence[Path], columns: Mapping[str, TextType], *, block_bytes: int = BLOCK_BYTES
    ) -> None:
        self._files = tuple(files)
        self._columns = dict(columns)
        self._block_bytes = block_bytes

    @property
    def num_bytes(self) -> int:
        """Size of the files on disk."""
        return sum(file.stat().st_size for file in self._files)

    def batches(self, rank: int = 0, size: int = 1) -> Iterator[RawBlock]:
        """See `LogReader.batches`."""
        blocks = text_blocks(
            self._files, rank=rank, size=size, block_bytes=self._block_bytes, has_header=True
        )
        for header, block in prefetch(blocks):
            names = _names(header, block.file)
            yield from self._parse(block, names)

    def _parse(
        self, block: TextBlock, names: tuple[str, ...], *, all_text: bool = False
    ) -> Iterator[RawBlock]:
        import pyarrow as pa
        from pyarrow import csv

        wanted = [name for name in self._columns if name in names]
        types: Mapping[str, TextType] = {} if all_text else self._columns
        # Without a column to include, Arrow would read all of them.
        included = wanted or [names[0]]
        convert = csv.ConvertOptions(
            column_types={name: pa.type_for_alias(types.get(name, "string")) for name in included},
            include_columns=included,
            null_values=[""],
            strings_can_be_null=True,
        )
        at_a_time = len(block.data) if _may_have_long_line(block.data) else PARSE_BYTES
        read = csv.ReadOptions(column_names=list(names), block_size=at_a_time)
        parse = csv.ParseOptions(delimiter=_delimiter(block.file))
        try:
            table = csv.read_csv(
                pa.BufferReader(block.data), read_options=read, parse_options=parse, convert_options=convert
            )
        except pa.ArrowInvalid as error:
            if not all_text:
                # Read as text, the block is refused where its columns are needed as numbers: by line and value.
                yield from self._parse(block, names, all_text=True)
                return
            last = block.first_line + block.num_lines - 1
            raise DataError(
                f"{block.file}, lines {block.first_line} to {last}: {error}. Correct the line (rows of this message "
                f"are counted from line {block.first_line}); every line needs the {len(names)} fields of the header"
            ) from error
        first = block.first_line
        for batch in table.select(wanted or included).to_batches():
            yield RawBlock(
                batch=batch,
                file=block.file,
                columns_in_file=names,
                unit="line",
                first=first,
                file_share=block.file_share,
            )
            first += batch.num_rows


def _names(header: bytes, file: Path) -> tuple[str, ...]:
    try:
        text = header.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{file}, line 1: the header is no UTF-8 ({error}): convert the file") from error
    import csv

    fields = next(csv.reader([text], delimiter=_delimiter(file)), [])
    repeated = {name for name in fields if fields.count(name) > 1 and name}
    if repeated:
        raise DataError(f"{file}, line 1: the header names {sorted(repeated)} twice; rename one of each")
    # An unnamed column (pandas writes one for its index) gets a name that no recipe has.
    return tuple(name or f"unnamed {position}" for position, name in enumerate(fields))


def _delimiter(file: Path) -> str:
    endings = [suffix for suffix in file.suffixes if suffix != ".gz"]
    return "\t" if endings[-1:] == [".tsv"] else ","


def _may_have_long_line(lines: bytes) -> bool:
    """Whether some line may be longer than `PARSE_BYTES`, which Arrow refuses if it parses no more at a time.

    Such a line covers a whole one of the pieces of half that length, so that few bytes have to be looked at.
    """
    half = PARSE_BYTES // 2
    return any(lines.find(b"\n", start, start + half) < 0 for start in range(0, len(lines) - half + 1, half))


BATCH_ROWS = 1 << 16
"""Rows decoded at a time."""


class ParquetLog:
    """Reads Parquet files.

    Args:
        files: their schemas may differ in columns that nobody asks for.
        columns: to read; those that a file lacks are left out of its blocks. Columns of structs are read whole.
        batch_rows: rows decoded at a time.
    """

    def __init__(
        self, files: Sequence[Path], columns: Sequence[str], *, batch_rows: int = BATCH_ROWS
    ) -> None:
        self._files = tuple(files)
        self._columns = tuple(columns)
        self._batch_rows = batch_rows

    @property
    def num_bytes(self) -> int:
        """Size of the files on disk."""
        return sum(file.stat().st_size for file in self._files)

    def batches(self, rank: int = 0, size: int = 1) -> Iterator[RawBlock]:
        """See `LogReader.batches`."""
        counts = []
        for file in self._files:
            with _open(file) as opened:
                counts.append(opened.num_row_groups)
                if opened.metadata.num_rows == 0:
                    raise DataError(f"{file} has no rows: write it again, or leave it out of paths")
        groups = [
            (file, group) for file, count in zip(self._files, counts, strict=True) for group in range(count)
        ]
        bounds = near_equal_split(len(groups), size)
        own = groups[bounds[rank] : bounds[rank + 1]]
        for file in self._files:
            mine = [group for path, group in own if path == file]
            if mine:
                yield from self._read(file, mine)

    def _read(self, file: Path, groups: Sequence[int]) -> Iterator[RawBlock]:
        import pyarrow as pa

        with _open(file) as opened:
            names = tuple(opened.schema_arrow.names)
            wanted = [name for name in self._columns if name in names]
            for group in groups:
                first = 0
                try:
                    for batch in opened.iter_batches(self._batch_rows, row_groups=[group], columns=wanted):
                        yield RawBlock(
                            batch=batch,
                            file=file,
                            columns_in_file=names,
                            unit=f"row group {group}, row",
                            first=first,
                            file_share=(group + 1) / opened.num_row_groups,
                        )
                        first += batch.num_rows
                except (OSError, pa.ArrowInvalid) as error:
                    raise DataError(
                        f"{file}, row group {group}, at or after row {first}: cannot be read ({error}): write the "
                        "file again"
                    ) from error


def _open(file: Path) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(file)
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(
            f"{file}: no readable Parquet file ({error}): correct the path or write it again"
        ) from error


def make_reader(log_format: LogFormat, files: Sequence[Path], columns: Mapping[str, TextType]) -> LogReader:
    """Open a log of samples.

    Args:
        log_format: of all files.
        files: that exist.
        columns: to read, and what fields of text are read as.

    Raises:
        RecipeError: the format holds no samples with labels.
    """
    if log_format == "csv":
        return CSVLog(files, columns)
    if log_format == "criteo":
        return CriteoLog(files, tuple(columns))
    if log_format == "libfm":
        return LibfmLog(files, tuple(columns))
    if log_format == "parquet":
        return ParquetLog(files, tuple(columns))
    raise RecipeError(
        f'format = "{log_format}" has no labelled samples: expected parquet, csv, criteo or libfm'
    )
