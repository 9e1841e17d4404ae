"""Readers of click logs in each format: Criteo, libfm, CSV and Parquet, as streams of Arrow record batches.

Criteo's advertising logs, of the Kaggle contest and of the terabyte, are lines of 40 fields with tabs between them::

    label  I1 ... I13   decimal counts, may be empty      C1 ... C26   32-bit hashes in hexadecimal, may be empty

libfm's and libsvm's layout is a label and pairs, as in ``-1 204:1 4798:1 5041:0.5``. As columns, two views of the same
line::

    label   0                                 as it stands; where 0 and 1 are expected, -1 is taken for 0 later
    field_0 204, field_1 4798, field_2 5041   indices by position, where every line has as many pairs
    ids     [204, 4798, 5041]                 all indices as one list, and
    values  [1.0, 1.0, 0.5]                   what stands behind the colons

CSV has a header line, commas or tabs, plain or compressed.
"""

import gzip
import os
import string
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError, RecipeError
from windrow.recsys.batches.arrow_columns import one_chunk
from windrow.recsys.batches.prefetch import ordered_map, prefetch
from windrow.recsys.log.clustering.log_files import open_parquet
from windrow.recsys.log.options import LogFormat
from windrow.recsys.log.readers_kernels import parse_criteo, parse_libfm

__all__ = ["CRITEO_COLUMNS", "NUM_CATEGORICAL", "RawBlock", "TextType", "read_criteo_ids", "read_log"]

TextType = Literal["int64", "float64", "string"]
"""What the fields of a column of a text file are read as."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RawBlock:
    """Some successive rows of one file, as they are there."""

    batch: Any
    """``pyarrow.RecordBatch`` with those of the columns asked for that the file has."""
    file: Path
    """Where they come from."""
    columns_in_file: tuple[str, ...]
    """Names of all columns of the file."""
    unit: str
    """What rows are counted in, for messages: "line", or "row group 3, row"."""
    first: int
    """Number of the first row in that unit."""
    file_share: float
    """How much of the file is read once this block is, 0 to 1."""

    def where(self, row: int) -> str:
        """The place of a row, for messages, from its position in the batch."""
        return f"{self.file}, {self.unit} {self.first + row}"


class _TextBlock(NamedTuple):
    """Whole lines of one file, `data`, each with its line end; `header` without one, empty where there is none."""

    place: RawBlock
    header: bytes
    data: bytes

    def count_lines(self) -> int:
        """Lines of the block; takes a pass over it."""
        return self.data.count(b"\n")

    def parsed(self, batch: Any, columns_in_file: tuple[str, ...]) -> RawBlock:
        """The block as ``pyarrow.RecordBatch``, of a row for each line."""
        return replace(self.place, batch=batch, columns_in_file=columns_in_file)


def read_log(log_format: LogFormat, files: Sequence[Path], columns: Mapping[str, TextType]) -> Iterator[RawBlock]:
    """Read a log of samples, in bounded memory and in the order of the files.

    Args:
        log_format: of all files.
        files: that exist; text may be compressed (``.gz``), and is of tabs in ``.tsv`` files of ``format = "csv"``.
        columns: to read, and what fields of text are read as. Columns that a file lacks are left out of its blocks.
            A block of CSV in which some field is not what its column should be comes as text, all columns of it.

    Yields:
        Blocks of rows; a block may have none.

    Raises:
        RecipeError: the format holds no samples with labels.
        DataError: a file cannot be read as what it should be; the message names file and place.
    """
    readers = {"csv": _read_csv, "criteo": _read_criteo, "libfm": _read_libfm, "parquet": _read_parquet}
    if log_format not in readers:
        raise RecipeError(f'format = "{log_format}" has no labelled samples: expected parquet, csv, criteo or libfm')
    return readers[log_format](files, columns)


NUM_DENSE = 13
NUM_CATEGORICAL = 26
CRITEO_COLUMNS = (
    "label",
    *(f"I{number}" for number in range(1, NUM_DENSE + 1)),
    *(f"C{number}" for number in range(1, NUM_CATEGORICAL + 1)),
)
"""The columns of such a log, in their order."""


def _read_criteo(files: Sequence[Path], columns: Mapping[str, TextType]) -> Iterator[RawBlock]:
    """All columns are int64, null where a field is empty."""
    import pyarrow as pa

    def parse(block: _TextBlock) -> RawBlock:
        rows = block.count_lines()
        values = np.empty((len(CRITEO_COLUMNS), rows), np.int64)
        valid = np.zeros((len(CRITEO_COLUMNS), (rows + 7) // 8), np.uint8)
        line, field = parse_criteo(np.frombuffer(block.data, np.uint8), NUM_DENSE, values, valid)
        if line >= 0:
            raise DataError(_criteo_message(block, line, field))
        found = {
            name: pa.Array.from_buffers(
                pa.int64(), rows, [pa.py_buffer(valid[position]), pa.py_buffer(values[position])]
            )
            for position, name in enumerate(CRITEO_COLUMNS)
            if name in columns
        }
        return block.parsed(pa.RecordBatch.from_pydict(found), CRITEO_COLUMNS)

    yield from ordered_map(parse, prefetch(_text_blocks(files)), workers=_parsers())


def read_criteo_ids(texts: Any) -> Any:
    """Categories as they stand in a log of Criteo's, ``pyarrow`` text, as ids: int64, null where one is empty.

    Raises:
        DataError: one is not up to 16 hexadecimal digits.
    """
    import pyarrow as pa

    def id_of(text: str | None) -> int | None:
        if not text:
            return None
        if len(text) > 16 or set(text) - set(string.hexdigits):
            raise DataError(f"{text!r} is no category of Criteo's: expected up to 16 hexadecimal digits or nothing")
        return int(np.uint64(int(text, 16)).astype(np.int64))

    return pa.array([id_of(text) for text in texts.to_pylist()], pa.int64())


def _criteo_message(block: _TextBlock, line: int, field: int) -> str:
    fields = block.data.split(b"\n", line + 1)[line].rstrip(b"\r").split(b"\t")
    where = block.place.where(line)
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


def _read_libfm(files: Sequence[Path], columns: Mapping[str, TextType]) -> Iterator[RawBlock]:
    """Fields need the same number of pairs in every line of all files."""
    import pyarrow as pa

    by_position = any(name.startswith(FIELD_PREFIX) for name in columns)

    def parse(block: _TextBlock) -> RawBlock:
        capacity = block.data.count(b":")
        rows = block.count_lines()
        labels = np.empty(rows)
        offsets = np.empty(rows + 1, np.int64)
        ids = np.empty(capacity, np.int64)
        weights = np.empty(capacity, np.float32)
        line, position = parse_libfm(np.frombuffer(block.data, np.uint8), labels, offsets, ids, weights)
        if line >= 0:
            text = block.data[max(position - 10, 0) : position + 10].decode("utf-8", "replace")
            raise DataError(
                f"{block.place.where(line)}: not understood near {text!r}; expected a label and pairs index:value with "
                "blanks between them"
            )
        found = {"label": pa.array(labels)} | (_libfm_fields(block, offsets, ids) if by_position else {})
        found |= {IDS_COLUMN: _lists(offsets, ids), VALUES_COLUMN: _lists(offsets, weights)}
        wanted = {name: array for name, array in found.items() if name in columns}
        return block.parsed(pa.RecordBatch.from_pydict(wanted), tuple(found))

    first: tuple[str, int] | None = None
    for block in ordered_map(parse, prefetch(_text_blocks(files)), workers=_parsers()):
        found = block.where(0), sum(name.startswith(FIELD_PREFIX) for name in block.columns_in_file)
        first = first or found
        if found[1] != first[1]:
            raise _unequal_pairs(*found, *first)
        yield block


def _unequal_pairs(where: str, pairs: int, other: str, other_pairs: int) -> DataError:
    return DataError(
        f"{where}: {pairs} pairs, but {other} has {other_pairs}; columns {FIELD_PREFIX}0 ... need as many in every "
        f"line: read column {IDS_COLUMN!r} with multi_hot = true instead"
    )


def _libfm_fields(block: _TextBlock, offsets: npt.NDArray[np.int64], ids: npt.NDArray[np.int64]) -> dict[str, Any]:
    import pyarrow as pa

    lengths = np.diff(offsets)
    other = np.flatnonzero(lengths != lengths[0])
    if len(other):
        where = block.place.where(int(other[0]))
        raise _unequal_pairs(where, lengths[other[0]], f"line {block.place.first}", lengths[0])
    matrix = ids[: offsets[-1]].reshape(len(lengths), -1)
    return {
        f"{FIELD_PREFIX}{field}": pa.array(np.ascontiguousarray(matrix[:, field])) for field in range(matrix.shape[1])
    }


def _lists(offsets: npt.NDArray[np.int64], values: npt.NDArray[Any]) -> Any:
    import pyarrow as pa

    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values[: offsets[-1]]))


def _read_csv(files: Sequence[Path], columns: Mapping[str, TextType]) -> Iterator[RawBlock]:
    """A header line for each file; tabs in ``.tsv`` and ``.tsv.gz``, else commas. No field holds a line end."""
    import pyarrow as pa

    def parse(block: _TextBlock) -> RawBlock:
        names = _csv_names(block)
        try:
            batch = _csv_rows(block, names, columns)
        except pa.ArrowInvalid:
            # Read as text, the block is refused where its columns are needed as numbers: by line and value.
            try:
                batch = _csv_rows(block, names, dict.fromkeys(columns, "string"))
            except pa.ArrowInvalid as error:
                first = block.place.first
                raise DataError(
                    f"{block.place.file}, lines {first} to {first + block.count_lines() - 1}: {error}. Correct the "
                    f"line (rows of this message are counted from line {first}); every line needs the {len(names)} "
                    "fields of the header"
                ) from error
        return block.parsed(batch, names)

    yield from ordered_map(parse, prefetch(_text_blocks(files, has_header=True)), workers=_parsers())


def _csv_rows(block: _TextBlock, names: Sequence[str], columns: Mapping[str, TextType]) -> Any:
    import pyarrow as pa
    from pyarrow import csv

    wanted = [name for name in columns if name in names]
    # Without a column to include, Arrow would read all of them.
    included = wanted or [names[0]]
    convert = csv.ConvertOptions(
        column_types={name: pa.type_for_alias(columns.get(name, "string")) for name in included},
        include_columns=included,
        null_values=[""],
        strings_can_be_null=True,
    )
    table = csv.read_csv(
        pa.BufferReader(block.data),
        # In one piece: Arrow refuses a line that is longer than that.
        read_options=csv.ReadOptions(column_names=list(names), block_size=len(block.data), use_threads=False),
        parse_options=csv.ParseOptions(delimiter=_delimiter(block.place.file)),
        convert_options=convert,
    )
    return pa.RecordBatch.from_pydict({name: one_chunk(table, name) for name in included})


def _csv_names(block: _TextBlock) -> tuple[str, ...]:
    import csv

    file = block.place.file
    try:
        text = block.header.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{file}, line 1: the header is no UTF-8 ({error}): convert the file") from error
    fields = next(csv.reader([text], delimiter=_delimiter(file)), [])
    repeated = {name for name in fields if fields.count(name) > 1 and name}
    if repeated:
        raise DataError(f"{file}, line 1: the header names {sorted(repeated)} twice; rename one of each")
    # An unnamed column (pandas writes one for its index) gets a name that no recipe has.
    return tuple(name or f"unnamed {position}" for position, name in enumerate(fields))


def _delimiter(file: Path) -> str:
    endings = [suffix for suffix in file.suffixes if suffix != ".gz"]
    return "\t" if endings[-1:] == [".tsv"] else ","


BATCH_ROWS = 1 << 16
"""Rows decoded at a time."""


def _read_parquet(files: Sequence[Path], columns: Mapping[str, TextType]) -> Iterator[RawBlock]:
    """Schemas may differ in columns that nobody asks for. Columns of structs are read whole."""
    import pyarrow as pa

    for file in files:
        with open_parquet(file) as opened:
            if opened.metadata.num_rows == 0:
                raise DataError(f"{file} has no rows: write it again, or leave it out of paths")
            names = opened.schema_arrow.names
            if repeated := sorted({name for name in names if name in columns and names.count(name) > 1}):
                raise DataError(f"{file} has columns {repeated} twice: rename one of each, and write it again")
    for file in files:
        with open_parquet(file) as opened:
            names = tuple(opened.schema_arrow.names)
            wanted = [name for name in columns if name in names]
            for group in range(opened.num_row_groups):
                first = 0
                try:
                    for batch in opened.iter_batches(BATCH_ROWS, row_groups=[group], columns=wanted):
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


BLOCK_BYTES = 8 << 20
"""Large enough that a block's fixed costs vanish, small enough to hold several."""


def _text_blocks(files: Sequence[Path], *, has_header: bool = False) -> Iterator[_TextBlock]:
    """Cut files, plain or compressed (``.gz``), into blocks of whole lines, of about `BLOCK_BYTES` decompressed."""
    for file in files:
        line = 1
        header = b""
        try:
            with file.open("rb") as raw, gzip.open(raw) if file.suffix == ".gz" else raw as stream:
                if has_header:
                    header = stream.readline().rstrip(b"\r\n")
                    line = 2
                for data in _whole_lines(stream):
                    place = RawBlock(
                        batch=None,
                        file=file,
                        columns_in_file=(),
                        unit="line",
                        first=line,
                        file_share=raw.tell() / file.stat().st_size,
                    )
                    yield _TextBlock(place, header, data)
                    line += data.count(b"\n")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(
                f"{file}: the compressed stream is damaged or cut short at or after line {line} ({error}): "
                "fetch the file again"
            ) from error
        except OSError as error:
            raise DataError(
                f"{file}, line {line}: cannot be read ({error.strerror}): correct the path or its permissions, or "
                "fetch the file again"
            ) from error
        if line == 1 + has_header:
            raise DataError(f"{file} has no lines of data: write it again, or leave it out of paths")


def _whole_lines(stream: BufferedIOBase) -> Iterator[bytes]:
    """The rest of a stream in pieces that end at line ends; a missing last line end is added."""
    started: list[bytes] = []
    while chunk := stream.read(BLOCK_BYTES):
        cut = chunk.rfind(b"\n") + 1
        if cut == 0:
            started.append(chunk)
            continue
        yield b"".join((*started, memoryview(chunk)[:cut]))
        started = [chunk[cut:]] if cut < len(chunk) else []
    if started:
        yield b"".join((*started, b"\n"))


MOST_PARSERS = 4
"""More threads than these parse faster than a disk or a decompressor delivers."""


def _parsers() -> int:
    return min(len(os.sched_getaffinity(0)), MOST_PARSERS)
