"""The first rows of a log whose recipe is still to be written: its format, and what its columns hold."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windrow.comm.errors import DataError
from windrow.launch.starter_recipe import KINDS, first_lines, kind_of
from windrow.recsys.log.options import LogFormat
from windrow.recsys.log.readers import CRITEO_COLUMNS, read_log

__all__ = ["LogColumn", "LogSample", "log_format", "read_sample"]

SAMPLE_ROWS = 1 << 17
"""Rows that are looked at, and those that come with them."""
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
        distinct: different values.
        lengths: of lists.
        separator: of lists in text.
    """

    name: str
    kind: str
    values: Any
    rows: int
    empty: int
    distinct: int
    lengths: Any = None
    separator: str = ""

    @property
    def range(self) -> tuple[float, float]:
        """The least and the largest value."""
        from pyarrow import compute

        found = compute.min_max(self.values).as_py()
        return found["min"], found["max"]

    def holds_only(self, *allowed: float) -> bool:
        """Whether it holds nothing but these numbers."""
        return self.distinct <= len(allowed) and set(self.values.unique().to_pylist()) <= {*allowed}

    def described(self) -> str:
        """For messages and comments."""
        empty = f", {self.empty / self.rows:.0%} empty" if self.empty else ""
        if self.kind in ("whole", "fraction"):
            if not self.distinct:
                return f"no values{empty}"
            low, high = self.range
            bounds = f"{low:,} to {high:,}" if self.kind == "whole" else f"{low:.4g} to {high:.4g}"
            return f"{KINDS[self.kind]}, {bounds}, {self.distinct:,} different{empty}"
        what = {**KINDS, "numbers": "lists of numbers"}.get(self.kind, self.kind)
        return f"{what}, {self.distinct:,} different{empty}"


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSample:
    """The first rows of a log."""

    form: LogFormat
    """Of the files."""
    columns: Mapping[str, LogColumn]
    log_rows: int
    """About how many rows there are in all."""

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
    by_ending: dict[str, LogFormat] = {".parquet": "parquet", ".npz": "interactions"}
    if found := by_ending.get(endings.pop()):
        return found
    lines = [line for line in first_lines(files[0])[:20] if line] or [""]
    if all(re.fullmatch(r"(-?\d*\t){14}[^\t]*(\t[^\t]*){25}", line) for line in lines):
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


def read_sample(form: LogFormat, files: Sequence[Path]) -> LogSample:
    """Read the first rows.

    Raises:
        DataError: a file cannot be read, has no rows, or has a column of another type than the one before.
    """
    import pyarrow as pa
    from pyarrow import parquet

    rows, batches = 0, []
    sizes = [file.stat().st_size for file in files]
    for block in read_log(form, files, dict.fromkeys(_column_names(form, files[0]), "string")):
        batches.append(pa.Table.from_batches([block.batch]))
        rows += block.batch.num_rows
        if rows >= SAMPLE_ROWS:
            break
    before = files.index(block.file)
    log_rows = rows * sum(sizes) / (sum(sizes[:before]) + block.file_share * sizes[before])
    if form == "parquet":
        log_rows = sum(parquet.read_metadata(file).num_rows for file in files)
    try:
        whole = pa.concat_tables(batches, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"the files differ in the type of a column ({error}): convert them to one") from error
    if not rows:
        raise DataError(f"{files[0]}: there is not a single row")
    columns = {name: _column(name, whole[name]) for name in whole.column_names}
    return LogSample(form=form, columns=columns, log_rows=round(log_rows))


def _column_names(form: LogFormat, file: Path) -> tuple[str, ...]:
    """Those to look at; of libfm's layout single fields, or where lines differ or have values one list with weights."""
    if form != "libfm":
        return CRITEO_COLUMNS if form == "criteo" else next(iter(read_log(form, [file], {}))).columns_in_file
    try:
        block = next(iter(read_log(form, [file], {"field_0": "string", "values": "string"})))
    except DataError:
        # Lines of different lengths.
        return ("label", "ids", "values")
    if block.batch.column("values").flatten().unique().to_pylist() != [1.0]:
        return ("label", "ids", "values")
    return tuple(name for name in block.columns_in_file if name not in ("ids", "values"))


def _column(name: str, column: Any) -> LogColumn:
    import pyarrow as pa
    from pyarrow import compute, types

    rows = len(column)
    array = pa.concat_arrays(column.chunks)
    if types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    values, lengths, separator = array.drop_null(), None, ""
    kind = kind_of(values.type)
    if isinstance(values, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        kind = {"whole": "lists", "text": "lists", "fraction": "numbers"}.get(kind_of(values.type.value_type), kind)
        lengths = compute.list_value_length(values).to_numpy(zero_copy_only=False)
        values = values.flatten().drop_null()
    elif kind == "text":
        values, lengths, separator = _parsed_text(values.filter(compute.not_equal(compute.binary_length(values), 0)))
        kind = "lists" if separator else kind_of(values.type)
    if kind == "fraction":
        values = values.cast(pa.float64())
        values = values.filter(compute.is_finite(values))
        if len(values) and compute.all(compute.equal(values, compute.floor(values))).as_py():
            # pandas turns whole numbers into floats where one is missing.
            values, kind = values.cast(pa.int64(), safe=False), "whole"
    empty = rows - len(values if lengths is None else lengths)
    return LogColumn(name, kind, values, rows, empty, len(values.unique()), lengths, separator)


def _parsed_text(values: Any) -> tuple[Any, Any, str]:
    """Text as what all of it can be read as: numbers, times, or lists with a mark between values."""
    import pyarrow as pa
    from pyarrow import compute

    if not len(values):
        return values, None, ""
    # Codes such as 007 are no numbers.
    if not compute.any(compute.match_substring_regex(values, r"^-?0\d")).as_py():
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
