"""The first rows of a log whose recipe is still to be written: its format, and what its columns hold."""

import gzip
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from windrow.comm.errors import DataError
from windrow.recsys.log.options import LogFormat
from windrow.recsys.log.readers import CRITEO_COLUMNS, read_log

__all__ = ["LogColumn", "LogSample", "log_format", "read_sample"]

SAMPLE_ROWS = 1 << 17
"""Rows that are looked at, of all files together."""
LEAST_ROWS_PER_FILE = 1 << 10
SHARE_OF_LISTS = 0.3
"""Text is a list where so many rows have a mark between values."""


@dataclass(frozen=True, slots=True)
class LogColumn:
    """A column as it was found in the sample.

    Attributes:
        name: of it.
        kind: "whole", "fraction", "truth", "text", "time", "lists", "numbers" (lists of them), or Arrow's type.
        values: ``pyarrow.Array`` of it without nulls; of lists their elements.
        rows: in the sample.
        empty: of these, without a value.
        counts: how often each value occurs.
        lengths: of lists.
        separator: of lists in text.
    """

    name: str
    kind: str
    values: Any
    rows: int
    empty: int
    counts: Any
    lengths: Any = None
    separator: str = ""

    @property
    def distinct(self) -> int:
        """Different values in the sample."""
        return len(self.counts)

    @property
    def range(self) -> tuple[float, float]:
        """The least and the largest value."""
        from pyarrow import compute

        found = compute.min_max(self.values).as_py()
        return found["min"], found["max"]

    @property
    def is_zero_or_one(self) -> bool:
        """Whether it holds 0 and 1, in every row."""
        if self.empty or self.kind not in ("whole", "truth", "fraction"):
            return False
        return set(self.values.unique().to_pylist()) == {0, 1}

    def distinct_in(self, factor: float) -> int:
        """Different values in a log so many times as long: sqrt(factor) f1 + f2 + f3 ..., where f1 occur once.

        The estimator of Charikar et al., Towards estimation error guarantees for distinct values (PODS 2000).
        """
        once = int((self.counts == 1).sum())
        return int(round(max(factor, 1.0) ** 0.5 * once) + self.distinct - once)

    def described(self) -> str:
        """For messages and comments."""
        empty = f", {self.empty / self.rows:.0%} empty" if self.empty else ""
        if self.kind in ("whole", "fraction") and len(self.values):
            low, high = self.range
            bounds = f"{low:,} to {high:,}" if self.kind == "whole" else f"{low:.4g} to {high:.4g}"
            return f"{self.kind} numbers, {bounds}, {self.distinct:,} different{empty}"
        if self.kind == "fraction":
            return f"no values{empty}"
        if self.kind == "lists":
            return f"lists of {self.lengths.mean():.1f}, {self.distinct:,} different{empty}"
        what = {"truth": "true and false", "time": "dates and times", "numbers": "lists of numbers"}
        return f"{what.get(self.kind, self.kind)}, {self.distinct:,} different{empty}"


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSample:
    """The first rows of every file."""

    columns: Mapping[str, LogColumn]
    optional: tuple[str, ...]
    """Columns that some files lack."""
    rows: int
    """Of the sample."""
    log_rows: int
    """About how many rows there are in all."""

    @property
    def factor(self) -> float:
        """Rows of the log for each row of the sample."""
        return self.log_rows / self.rows

    def listed(self) -> str:
        """All columns, for messages."""
        return "; ".join(f"{name} ({column.described()})" for name, column in self.columns.items())


def log_format(files: Sequence[Path]) -> LogFormat:
    """How a log is stored: by the ending of its files, or by what their first lines look like.

    Raises:
        DataError: they are of no known format; the message shows the first line and names the cure.
    """
    endings = {"".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix for path in files}
    if len(endings) > 1:
        raise DataError(f"files with different endings, {', '.join(sorted(endings))}: a log has files of one format")
    ending = endings.pop()
    if ending == ".parquet":
        return "parquet"
    if ending == ".npz":
        return "interactions"
    lines = _first_lines(files[0])
    fields = [line.split("\t") for line in lines]
    if all(
        len(line) == len(CRITEO_COLUMNS) and all(not field or _is_whole(field) for field in line[:14])
        for line in fields
    ):
        return "criteo"
    if all(re.fullmatch(r"[-+]?[\d.]+([eE][-+]?\d+)?( +\d+:[-+\d.eE]+)* *", line) and ":" in line for line in lines):
        return "libfm"
    separator, name = ("\t", "tabs") if ".tsv" in files[0].suffixes else (",", "commas")
    names = lines[0].split(separator)
    if len(names) < 2:
        raise DataError(
            f"{files[0]}: the first line, {lines[0][:80]!r}, is one column: in a file of this name columns have "
            f"{name} between them. Write it with commas, or call it .tsv where there are tabs"
        )
    if any(re.fullmatch(r"[-+]?\d+(\.\d+)?", field) for field in names):
        raise DataError(
            f"{files[0]}: the first line, {lines[0][:80]!r}, has numbers, so it is no header, and the file neither has "
            f"Criteo's {len(CRITEO_COLUMNS)} columns nor libfm's layout: put a line with the names of the columns first"
        )
    return "csv"


def _first_lines(file: Path) -> list[str]:
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            raw = stream.read(1 << 16)
        lines = raw.decode("utf-8-sig", errors="strict" if len(raw) < 1 << 16 else "ignore").splitlines()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(
            f"{file}: no text that can be read ({error}); a log is Parquet, CSV, TSV, libfm or Criteo's layout, "
            "plain or .gz"
        ) from error
    # The last line may be cut.
    return [line for line in (lines[:-1] or lines)[:20] if line] or [""]


def _is_whole(text: str) -> bool:
    return re.fullmatch(r"-?\d+", text) is not None


def read_sample(form: LogFormat, files: Sequence[Path]) -> LogSample:
    """Read the first rows of every file.

    Raises:
        DataError: a file cannot be read, has no rows, or has a column of another type than the one before.
    """
    import pyarrow as pa
    from pyarrow import parquet

    tables = []
    log_rows = 0.0
    wanted = max(SAMPLE_ROWS // len(files), LEAST_ROWS_PER_FILE)
    for file in files[: SAMPLE_ROWS // LEAST_ROWS_PER_FILE]:
        names = _column_names(form, file)
        blocks = []
        rows, share = 0, 1.0
        for block in read_log(form, [file], dict.fromkeys(names, "string")):
            blocks.append(block.batch)
            rows, share = rows + block.batch.num_rows, block.file_share
            if rows >= wanted:
                break
        if form == "parquet":
            log_rows += parquet.read_metadata(file).num_rows
        else:
            log_rows += rows / share
        tables.append(pa.Table.from_batches(blocks).slice(0, wanted))
    log_rows *= len(files) / len(tables)
    if not any(table.num_rows for table in tables):
        raise DataError(f"{files[0]}: there is not a single row")
    try:
        whole = pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"the files differ in the type of a column ({error}): convert them to one") from error
    everywhere = set.intersection(*(set(table.column_names) for table in tables))
    columns = {
        name: _column(name, column.combine_chunks())
        for name, column in zip(whole.column_names, whole.columns, strict=True)
    }
    return LogSample(
        columns=columns,
        optional=tuple(name for name in columns if name not in everywhere),
        rows=whole.num_rows,
        log_rows=max(round(log_rows), whole.num_rows),
    )


def _column_names(form: LogFormat, file: Path) -> tuple[str, ...]:
    """Those to look at; of libfm's layout single fields, or where lines differ or have values one list with weights."""
    if form == "criteo":
        return CRITEO_COLUMNS
    if form != "libfm":
        return next(iter(read_log(form, [file], {}))).columns_in_file
    try:
        block = next(iter(read_log(form, [file], {"field_0": "string", "values": "string"})))
    except DataError:
        # Lines of different lengths.
        return ("label", "ids", "values")
    if block.batch.column("values").flatten().unique().to_pylist() != [1.0]:
        return ("label", "ids", "values")
    return tuple(name for name in block.columns_in_file if name not in ("ids", "values"))


def _column(name: str, array: Any) -> LogColumn:
    import pyarrow as pa
    from pyarrow import compute, types

    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    rows = len(array)
    if types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if types.is_list(array.type) or types.is_large_list(array.type) or types.is_fixed_size_list(array.type):
        present = array.drop_null()
        lengths = compute.list_value_length(present).to_numpy(zero_copy_only=False)
        inner = present.flatten().drop_null()
        kind = "lists" if _kind_of(inner.type) in ("whole", "text") else str(array.type)
        kind = "numbers" if _kind_of(inner.type) == "fraction" else kind
        return LogColumn(name, kind, inner, rows, rows - len(present), _counts(inner), lengths=lengths)
    if _kind_of(array.type) == "text":
        array = compute.if_else(compute.equal(compute.binary_length(array), 0), pa.scalar(None, array.type), array)
    values = array.drop_null()
    if _kind_of(values.type) == "text":
        values, lengths, separator = _parsed_text(values)
        if separator:
            return LogColumn(name, "lists", values, rows, array.null_count, _counts(values), lengths, separator)
    elif _kind_of(values.type) == "fraction":
        values = values.cast(pa.float64())
        values = values.filter(compute.is_finite(values))
        if len(values) and compute.all(compute.equal(values, compute.floor(values))).as_py():
            # pandas turns whole numbers into floats where one is missing.
            values = values.cast(pa.int64(), safe=False)
    return LogColumn(name, _kind_of(values.type), values, rows, rows - len(values), _counts(values))


def _kind_of(kind: Any) -> str:
    from pyarrow import types

    if types.is_boolean(kind):
        return "truth"
    if types.is_integer(kind):
        return "whole"
    if types.is_floating(kind) or types.is_decimal(kind):
        return "fraction"
    if types.is_timestamp(kind) or types.is_date(kind):
        return "time"
    return "text" if types.is_string(kind) or types.is_large_string(kind) else str(kind)


def _parsed_text(values: Any) -> tuple[Any, Any, str]:
    """Text as what all of it can be read as: numbers, times, or lists with a mark between values."""
    import pyarrow as pa
    from pyarrow import compute

    # Codes such as 007 are no numbers.
    if len(values) and not compute.any(compute.match_substring_regex(values, r"^-?0\d")).as_py():
        for kind in (pa.int64(), pa.float64(), pa.timestamp("us", "UTC"), pa.timestamp("us")):
            try:
                return values.cast(kind), None, ""
            except pa.ArrowInvalid:
                continue
    for separator in "|;, ":
        parts = compute.split_pattern(values, separator)
        lengths = compute.list_value_length(parts).to_numpy(zero_copy_only=False)
        inner = parts.flatten()
        # Tokens come back in other rows; whole texts do less so.
        repeats = len(inner.unique()) < 0.5 * len(values.unique())
        if (lengths > 1).mean() >= SHARE_OF_LISTS and repeats and "" not in inner.unique().to_pylist():
            return inner, lengths, separator
    return values, None, ""


def _counts(values: Any) -> Any:
    return values.value_counts().field("counts").to_numpy(zero_copy_only=False) if len(values) else np.zeros(0, int)
