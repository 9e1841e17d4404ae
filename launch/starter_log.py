"""A recipe for a log of a user's own: what each column is, and settings by the number of samples.

Columns are told apart by name, type and values, over the first rows of each file::

    label      --label; else a name such as click or rating; else the only column of 0 and 1
    time       dates; text of dates; whole numbers of a name such as timestamp
    session    a name such as session_id
    dense      numbers with a fraction; whole numbers of many values that are not called as ids are
    sparse     text, other whole numbers, lists; text of several values with one mark between them
    left out   one value only; another value in every row; other labels; what no reader takes
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from windrow.comm.errors import DataError
from windrow.launch.starter_recipe import RecipeText, StarterRecipe, relative_to_recipe
from windrow.recsys.batches.interactions import read_interactions
from windrow.recsys.log.files import resolve_files
from windrow.recsys.log.options import RESERVED_NAMES, LogFormat
from windrow.recsys.log.readers import CRITEO_COLUMNS, read_log

__all__ = ["log_recipe"]

SAMPLE_ROWS = 1 << 17
"""Rows that are looked at, of all files together."""
LEAST_ROWS_PER_FILE = 1 << 10

LABELS = (
    "label", "labels", "target", "click", "clicked", "is_click", "is_clicked", "clk", "y", "conversion", "converted",
    "is_conversion", "purchase", "purchased", "is_purchase", "like", "liked", "is_like", "is_attributed", "is_installed",
    "response", "outcome", "rating", "score",
)  # fmt: skip
"""Names of labels, the likeliest first."""
TIMES = {"time", "timestamp", "ts", "date", "datetime", "unixtime", "when"}
"""Last words of names of times; only where a column is whole numbers."""
SESSIONS = {"session", "session_id", "sessionid", "sess_id", "visit", "visit_id"}
USERS = ("user", "user_id", "userid", "uid", "customer_id", "member_id")
ITEMS = ("item", "item_id", "itemid", "iid", "product_id", "movie_id", "sku")
ID_WORDS = {
    "id", "ids", "uid", "user", "item", "product", "sku", "ad", "ads", "advertiser", "campaign", "category", "cat", "c",
    "brand", "shop", "store", "seller", "page", "zip", "postcode", "code", "type", "device", "country", "city", "region",
    "hash", "segment", "carrier", "cell", "cohort", "group", "cluster", "language", "lang", "app", "site", "domain", "query", "movie", "video", "article", "author", "artist", "album", "track", "genre",
    "tag", "session", "field", "slot", "weekday", "hour", "month", "channel", "browser", "os",
}  # fmt: skip
"""Words in names of columns whose whole numbers are no quantities."""
SPLIT_WORDS = {"train": 0, "training": 0, "dev": 1, "val": 1, "valid": 1, "validation": 1, "test": 2}
"""Words in names of files that are splits already."""

MOST_CATEGORIES = 32
"""Whole numbers of so few values are categories, whatever they are called."""
ROWS_PER_CATEGORY = 100
"""So are those that come again so often: enough samples to learn each by itself."""
LARGEST_QUANTITY = 1 << 31
"""Whole numbers beyond are hashes."""
UNIQUE_SHARE = 0.95
"""A column with another value in nearly every row tells nothing of others."""
SHARE_OF_LISTS = 0.3
"""Text is a list where so many rows have a mark between values."""
MOST_IN_LIST = 100
LARGEST_VOCABULARY = 10_000_000
"""Beyond, values share rows by a hash: a vocabulary has to be sorted and kept."""
RARE_FROM_SAMPLES = 1_000_000
"""From so many samples on, values need several of them to get a row."""

VALIDATION_SHARE = 0.1

ROW_NUMBER = re.compile(r"unnamed.*|index|row|row_?id|row_?number", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Column:
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
        return len(self.counts)

    @property
    def range(self) -> tuple[float, float]:
        from pyarrow import compute

        found = compute.min_max(self.values).as_py()
        return found["min"], found["max"]

    @property
    def is_zero_or_one(self) -> bool:
        if self.empty or self.kind not in ("whole", "truth", "fraction"):
            return False
        return set(self.values.unique().to_pylist()) == {0, 1}

    def distinct_in(self, factor: float) -> int:
        """Different values in a log so many times as long: sqrt(factor) f1 + f2 + f3 ..., where f1 occur once.

        The estimator of Charikar et al., Towards estimation error guarantees for distinct values (PODS 2000).
        """
        once = int((self.counts == 1).sum())
        return round(max(factor, 1.0) ** 0.5 * once + self.distinct - once)

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
class _Sample:
    """The first rows of every file."""

    columns: Mapping[str, _Column]
    optional: tuple[str, ...]
    """Columns that some files lack."""
    rows: int
    """Of the sample."""
    log_rows: int
    """About how many rows there are in all."""

    @property
    def factor(self) -> float:
        return self.log_rows / self.rows

    def listed(self) -> str:
        return "; ".join(f"{name} ({column.described()})" for name, column in self.columns.items())


def log_recipe(paths: Sequence[Path], out: Path, *, labels: Sequence[str] = ()) -> StarterRecipe:
    """Look at a log and write a recipe for it.

    Args:
        paths: its files or patterns.
        out: file that the recipe will stand in; it is not written.
        labels: columns of labels; none: found by name and values.

    Raises:
        DataError: the files cannot be understood; the message lists what was found and names the option that helps.
    """
    files = resolve_files([path.absolute() for path in paths])
    form = _format_of(files)
    if form == "interactions":
        return _interactions_recipe(files, out, "", "")
    sample = _read_sample(form, files)
    chosen = _labels(sample, labels, form)
    if not chosen:
        user, item = (_named(sample, names) for names in (USERS, ITEMS))
        assert user and item
        return _interactions_recipe(files, out, user, item)
    return _LogWriter(files, form, sample, chosen, out).write()


def _format_of(files: Sequence[Path]) -> LogFormat:
    """By the ending, or by what the first lines look like."""
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
    import gzip

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


def _read_sample(form: LogFormat, files: Sequence[Path]) -> _Sample:
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
    return _Sample(
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


def _column(name: str, array: Any) -> _Column:
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
        return _Column(name, kind, inner, rows, rows - len(present), _counts(inner), lengths=lengths)
    if _kind_of(array.type) == "text":
        array = compute.if_else(compute.equal(compute.binary_length(array), 0), pa.scalar(None, array.type), array)
    values = array.drop_null()
    if _kind_of(values.type) == "text":
        values, lengths, separator = _parsed_text(values)
        if separator:
            return _Column(name, "lists", values, rows, array.null_count, _counts(values), lengths, separator)
    elif _kind_of(values.type) == "fraction":
        values = values.cast(pa.float64())
        values = values.filter(compute.is_finite(values))
        if len(values) and compute.all(compute.equal(values, compute.floor(values))).as_py():
            # pandas turns whole numbers into floats where one is missing.
            values = values.cast(pa.int64(), safe=False)
    return _Column(name, _kind_of(values.type), values, rows, rows - len(values), _counts(values))


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


def _labels(sample: _Sample, given: Sequence[str], form: LogFormat) -> tuple[str, ...]:
    """Columns of labels; none for pairs of users and items."""
    columns = sample.columns
    for name in given:
        if name not in columns:
            raise DataError(f"--label {name}: there is no such column. Columns: {sample.listed()}")
    found = tuple(given) or (("label",) if form in ("criteo", "libfm") else ())
    if not found:
        named = [name for label in LABELS for name in columns if name.lower() == label]
        found = tuple(named[:1])
    if not found:
        candidates = [name for name, column in columns.items() if column.is_zero_or_one]
        if not candidates and _named(sample, USERS) and _named(sample, ITEMS):
            return ()
        if len(candidates) != 1:
            what = "several columns of 0 and 1" if candidates else "no column has the name of a label or holds 0 and 1"
            raise DataError(f"which column is the label? {what}. Name it by --label. Columns: {sample.listed()}")
        found = tuple(candidates)
    for name in found:
        column = columns[name]
        if column.kind not in ("whole", "fraction", "truth"):
            raise DataError(
                f"label {name!r} is {column.described()}, but a label is a number: name another column by --label, or "
                f"turn it into numbers. Columns: {sample.listed()}"
            )
        if column.empty:
            raise DataError(
                f"label {name!r} is empty in {column.empty:,} of the {column.rows:,} rows looked at: leave such rows "
                "out of the file, or name another column by --label"
            )
    return found


def _named(sample: _Sample, names: Sequence[str]) -> str:
    return next((column for name in names for column in sample.columns if column.lower() == name), "")


@dataclass(frozen=True, slots=True)
class _Feature:
    """A sparse feature: its column, and what to say of it."""

    name: str
    column: _Column
    values: Mapping[str, Any]
    why: str


class _LogWriter:
    """Decides on the columns that are no labels, and writes."""

    def __init__(
        self, files: Sequence[Path], form: LogFormat, sample: _Sample, labels: Sequence[str], out: Path
    ) -> None:
        self._files = files
        self._form = form
        self._sample = sample
        self._labels = labels
        self._out = out
        self._left_out: dict[str, str] = {}
        self._time = self._session = self._weight = ""
        rest = [column for name, column in sample.columns.items() if name not in labels]
        rest = [column for column in rest if not self._is_role(column)]
        self._dense: list[str] = []
        self._features: list[_Feature] = []
        for column in rest:
            self._place(column)
        if not self._features:
            raise DataError(
                "no column could become a sparse feature (text, whole numbers of few values, or lists), and models "
                f"need at least one. Columns: {sample.listed()}"
            )

    def _is_role(self, column: _Column) -> bool:
        """Whether a column says when, in which session, or how much a sample counts."""
        if self._form in ("criteo", "libfm"):
            return False
        name, words = column.name, _words(column.name)
        if not self._time and not column.empty and column.distinct >= MOST_CATEGORIES:
            named = bool(words) and (words[-1] in TIMES or "".join(words) in TIMES or words[-1] == "at")
            if column.kind == "time" or (column.kind == "whole" and named):
                self._time = name
                return True
        if not self._session and not column.empty and name.lower() in SESSIONS and column.kind in ("whole", "text"):
            self._session = name
            return True
        if name == "sample_weight" and not column.empty and column.kind in ("whole", "fraction"):
            self._weight = name
            return column.range[0] >= 0
        return False

    def _place(self, column: _Column) -> None:
        """Make a column a dense one, a sparse feature, or leave it out."""
        name = column.name
        present = column.rows - column.empty
        if self._form not in ("criteo", "libfm"):
            if name.lower() in LABELS and column.kind in ("whole", "fraction", "truth"):
                self._left_out[name] = "called as labels are, which a model must not see"
                return
            if column.kind == "time":
                self._left_out[name] = "dates and times"
                return
            unique = column.kind in ("whole", "text") and column.distinct >= UNIQUE_SHARE * present and present > 100
            if ROW_NUMBER.fullmatch(name) or (unique and (column.kind == "text" or _is_called_id(name))):
                self._left_out[name] = "another value in nearly every row"
                return
        if column.distinct < 2 and column.kind != "lists":
            self._left_out[name] = "one value only" if column.distinct else "no values"
        elif self._is_dense(column):
            self._dense.append(name)
        elif column.kind in ("whole", "text", "truth", "lists"):
            self._features.append(self._feature(column))
        else:
            self._left_out[name] = f"no reader takes {column.kind}"

    def _is_dense(self, column: _Column) -> bool:
        if self._form == "criteo":
            return column.name.startswith("I")
        if column.kind != "whole" or self._form == "libfm":
            return column.kind == "fraction"
        low, high = column.range
        if low < -1:
            return True
        few = column.distinct <= MOST_CATEGORIES or column.rows >= ROWS_PER_CATEGORY * column.distinct
        return not few and high < LARGEST_QUANTITY and not _is_called_id(column.name)

    def _feature(self, column: _Column) -> _Feature:
        values: dict[str, Any] = {}
        safe = re.sub(r"[./\\\0]", "_", column.name) or "feature"
        taken = {*RESERVED_NAMES, *(feature.name.casefold() for feature in self._features)}
        while safe.casefold() in taken:
            safe += "_id"
        if safe != column.name:
            values["column"] = column.name
        distinct = column.distinct_in(self._sample.factor)
        why = column.described()
        if distinct > LARGEST_VOCABULARY:
            values |= {"ids": "hash", "rows": 1 << (distinct - 1).bit_length()}
            why += f"; about {distinct:,} in all: rows are shared by a hash"
        elif self._sample.log_rows >= RARE_FROM_SAMPLES:
            values["min_count"] = 5
        if column.kind == "lists":
            values["multi_hot"] = True
            longest = int(column.lengths.max(initial=1))
            if longest > MOST_IN_LIST:
                values["max_length"] = MOST_IN_LIST
            if column.separator and column.separator != "|":
                values["separator"] = column.separator
            weights = self._weights_of(column)
            if weights:
                values["weights"] = weights
                self._left_out.pop(weights, None)
        return _Feature(safe, column, values, why)

    def _weights_of(self, column: _Column) -> str:
        """The column of weights of a column of lists."""
        if self._form == "libfm":
            ones = self._sample.columns["values"].values
            return "" if set(ones.unique().to_pylist()) == {1.0} else "values"
        name = f"{column.name}_weights"
        found = self._sample.columns.get(name)
        alike = found is not None and found.kind == "numbers" and np.array_equal(found.lengths, column.lengths)
        return name if alike else ""

    @property
    def _is_binary(self) -> bool:
        allowed = {-1, 0, 1} if self._form == "libfm" else {0, 1}
        return all(set(self._sample.columns[name].values.unique().to_pylist()) <= allowed for name in self._labels)

    def write(self) -> StarterRecipe:
        """The recipe."""
        sample, out = self._sample, self._out
        weights = {feature.values.get("weights") for feature in self._features}
        for name in weights:
            self._left_out.pop(name, None)
        settings = log_settings(sample.log_rows)
        about = f"{sample.log_rows:,} samples" if sample.factor == 1 else f"about {sample.log_rows:,} samples"
        text = RecipeText()
        text.comment(
            f"{', '.join(path.name for path in self._files[:3])}{' ...' if len(self._files) > 3 else ''}: {about}, as "
            "windrow init found them.",
            "",
            f"  windrow prepare {out}",
            f"  mpirun -n 2 windrow train {out}",
            "",
        )
        text.value("store", f"stores/{out.stem}", "folder that windrow prepare writes, from this file's folder")
        split, files = self._split()
        self._write_log(text, files)
        text.section("log.features", "Sparse features: each value gets a row of a table of embeddings.")
        for feature in self._features:
            text.value(feature.name, feature.values, feature.why)
        text.section("split", "Which samples train, choose the best epoch, and are measured at the end.")
        for key, value, why in split:
            text.value(key, value, why)
        self._write_learning(text, settings, about)
        return StarterRecipe(
            text=str(text),
            understood=self._understood(about, split),
            commands=(f"windrow prepare {out}", f"mpirun -n 2 windrow train {out}"),
        )

    def _write_log(self, text: RecipeText, files: Sequence[Path]) -> None:
        sample = self._sample
        text.section("log", "Where the log is, and what its columns are.")
        text.value("paths", [relative_to_recipe(path, self._out) for path in files])
        text.value("format", self._form)
        if self._form not in ("criteo", "libfm") or not self._is_binary:
            label = self._labels[0] if len(self._labels) == 1 else list(self._labels)
            text.value("label", label, "; ".join(sample.columns[name].described() for name in self._labels))
            others = [name for name in self._left_out if name.lower() in LABELS]
            if others:
                text.alternative("label", [*self._labels, *others], "several labels, one output each")
        if not self._is_binary:
            text.value("label_kind", "real", "learnt by squared error; 0 and 1 alone would be learnt as clicks")
        if self._weight:
            text.value("sample_weight", self._weight, "what the loss of a sample is multiplied by")
        if self._dense:
            text.value("dense", self._dense)
            transform, why, other, otherwise = self._dense_transform()
            text.value("dense_transform", transform, why)
            text.alternative("dense_transform", other, otherwise)
        if self._time:
            text.value("time", self._time, sample.columns[self._time].described())
        if self._session:
            text.value("session", self._session, sample.columns[self._session].described())
        used = {*self._labels, *self._dense, *(feature.column.name for feature in self._features)}
        used |= {self._time, self._session, self._weight}
        optional = [name for name in sample.optional if name in used]
        if optional:
            text.value("optional", optional, "some files lack them")
        for name, why in self._left_out.items():
            text.comment(f"left out: {name} ({why})")

    def _dense_transform(self) -> tuple[str, str, str, str]:
        """Skewed counts by their logarithm, all else by mean and deviation; and the other way."""
        skewed = 0
        for name in self._dense:
            values = self._sample.columns[name].values.to_numpy(zero_copy_only=False)
            low, middle, high = np.quantile(values, (0.01, 0.5, 0.99))
            skewed += bool(low >= -1 and high > 10 * max(middle, 1))
        if 2 * skewed >= len(self._dense):
            return "log1p", "log(1 + x): counts that span decades", "standard", "mean 0 and deviation 1"
        return "standard", "mean 0 and deviation 1", "log1p", "log(1 + x), for counts that span decades"

    def _split(self) -> tuple[list[tuple[str, Any, str]], Sequence[Path]]:
        """Keys of the section, and the files of [log]."""
        by_name: tuple[list[Path], list[Path], list[Path]] = ([], [], [])
        for path in self._files:
            found = {SPLIT_WORDS[word] for word in _words(path.name) if word in SPLIT_WORDS}
            if len(found) == 1:
                by_name[found.pop()].append(path)
        if by_name[0] and by_name[1] and sum(map(len, by_name)) == len(self._files):
            rows: list[tuple[str, Any, str]] = [("by", "files", "as the names of the files say")]
            for key, paths in zip(("validation_paths", "test_paths"), by_name[1:], strict=True):
                if paths:
                    rows.append((key, [relative_to_recipe(path, self._out) for path in paths], ""))
            return rows, by_name[0]
        fractions = ("fractions", [0.8, 0.1, 0.1], "train, validation, test")
        if self._time:
            why = "earlier samples train, later ones are measured, as in use; hash: at random"
            return [("by", "time", why), fractions], self._files
        if self._session:
            why = "samples of a session stay together"
            return [("by", "hash", "at random"), fractions, ("column", self._session, why)], self._files
        return [("by", "hash", "at random; time: the last samples measure, needs log.time"), fractions], self._files

    def _write_learning(self, text: RecipeText, settings: "LogSettings", about: str) -> None:
        text.section("tables", "Embedding tables: a row of so many numbers for each value of a sparse feature.")
        text.value("dim", settings.dim, f"for {about}; more for more samples, and slower")
        text.value("optimizer", "adagrad", "rowwise_adagrad: a fraction of its memory")
        text.value("learning_rate", settings.table_rate, "of the tables alone")
        text.value("initial_scale", settings.initial_scale, "rare values begin close to nothing")
        text.alternative("weight_decay", 1e-5, "where training learns by heart: loss falls, validation does too")
        text.section("model", "What is computed from embeddings and dense values.")
        text.value("kind", "dlrm", "dot products of embeddings")
        if self._dense:
            text.value("bottom", list(settings.bottom), "layers for dense values")
        text.value("top", list(settings.top), "layers from dot products to the result")
        text.value("embeddings_in_top", True, "they see the embeddings too")
        text.value("dropout", settings.dropout, "0.5 for less learning by heart, 0.0 for millions of samples")
        text.alternative("kind", "dcn", "a cross network; then deep = [...] in place of bottom, top, embeddings_in_top")
        text.section("training", "How weights are learnt.")
        text.value("epochs", settings.epochs, "at most: [evaluation] ends it before")
        text.value("batch_size", settings.batch_size, f"over all ranks, for {about}; more for speed")
        text.value("learning_rate", settings.rate, "of the layers; with a larger batch_size try more")
        text.section("evaluation", "When it is measured, and when it ends.")
        text.value(
            "patience_epochs", settings.patience, "end after so many epochs without a better validation; 0: never"
        )
        if self._is_binary:
            text.alternative("metric", "normalised_entropy", "instead of auc: for probabilities that are right in size")

    def _understood(self, about: str, split: Sequence[tuple[str, Any, str]]) -> tuple[str, ...]:
        kind = "0 and 1" if self._is_binary else "real"
        lines = [
            f"{about}, format {self._form}",
            f"label: {', '.join(self._labels)} ({kind})",
            f"split: by {split[0][1]}" + (f" of {self._time}" if split[0][1] == "time" else ""),
        ]
        if self._session:
            lines.append(f"session: {self._session}")
        if self._dense:
            lines.append(f"dense: {', '.join(self._dense)}")
        lines.append(f"sparse: {', '.join(feature.name for feature in self._features)}")
        return (*lines, *(f"left out: {name} ({why})" for name, why in self._left_out.items()))


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSettings:
    """What depends on the number of samples; see `log_settings`."""

    dim: int
    table_rate: float
    initial_scale: float
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    dropout: float
    epochs: int
    batch_size: int
    rate: float
    patience: int


def log_settings(samples: int) -> LogSettings:
    """Settings for a log of so many samples."""
    train = 0.8 * samples
    small = train < 1_000_000
    return LogSettings(
        dim=16 if train < 100_000 else 32 if small else 64,
        table_rate=0.02,
        initial_scale=0.01,
        bottom=(128,) if small else (512, 256),
        top=(128, 64) if small else (512, 256),
        dropout=0.2 if small else 0.0,
        epochs=20 if train < 100_000 else 10 if small else 3,
        batch_size=2 ** int(np.clip(round(np.log2(train / 32)), 6, 11)),
        rate=0.001,
        patience=2 if small else 1,
    )


def _words(name: str) -> list[str]:
    """The words of a name, in lower case, without digits."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def _is_called_id(name: str) -> bool:
    return any(word in ID_WORDS for word in _words(name))


def _interactions_recipe(files: Sequence[Path], out: Path, user: str, item: str) -> StarterRecipe:
    """A recipe for two towers; the columns are empty for npz files."""
    if len(files) > 1:
        raise DataError(
            f"{len(files)} files of users and items without labels are read one at a time: put them into one, or name "
            "a label by --label"
        )
    columns = {"user_column": user, "item_column": item} if user else {}
    try:
        found = read_interactions(files[0], validation_fraction=VALIDATION_SHARE, seed=0, **columns)
    except DataError as error:
        raise DataError(
            f"{error}. (No label was found, so this was taken for pairs of users and items, each pair once; where a "
            "column is a label, name it by --label)"
        ) from error
    pairs = sum(len(lists.values) for lists in found.splits().values())
    epochs, batch_size, dim = _ranking_settings(pairs)
    about = f"{found.num_users:,} users, {found.num_items:,} items, {pairs:,} interactions"
    text = RecipeText()
    text.comment(f"{files[0].name}: {about}, as windrow init found them.", "", f"  mpirun -n 2 windrow train {out}", "")
    text.section("log", "Which user took which item, and nothing else: every item not taken counts against.")
    text.value("paths", [relative_to_recipe(files[0], out)])
    text.value("format", "interactions")
    text.section("interactions", "How pairs become minibatches.")
    for key, name in columns.items():
        text.value(key, name)
    text.value("validation_fraction", VALIDATION_SHARE, "of each user's items, to choose the best epoch by")
    text.value("num_negatives", min(512, found.num_items), "items that each positive is told apart from")
    text.alternative("max_history", 20, "items of a user's past that are looked at: 50; fewer are quicker")
    if user:
        text.section("split", "A file of later interactions with the same columns would be the test split.")
        text.alternative("by", "files", "and then")
        text.alternative("test_paths", ["later.parquet"], "measured at the end")
    text.section("tables", "Embedding tables: a row of so many numbers for each user and each item.")
    text.value("dim", dim, "more for more interactions, and slower")
    text.value("optimizer", "adam", "adagrad: without moving every row in every step")
    text.value("learning_rate", 0.006, "of the tables")
    text.section("model", "One vector for a user, one for an item; how well they fit is their product.")
    text.value("kind", "two_tower")
    text.alternative("temperature", 0.2, "0.1 by default: the smaller, the more the hardest negatives count")
    text.section("training", "How weights are learnt.")
    text.value("epochs", epochs, "at most: [evaluation] ends it before")
    text.value("batch_size", batch_size, f"over all ranks, for {pairs:,} interactions; more for speed")
    text.value("learning_rate", 0.006, "of the towers' layers")
    text.section("evaluation", "When it is measured, and when it ends.")
    text.value("k", 20, "items recommended to a user, in recall@k and ndcg@k")
    text.value("patience_epochs", 3, "end after so many epochs without a better validation; 0: never")
    return StarterRecipe(
        text=str(text),
        understood=(about, "no label: two towers learn which items go with which users"),
        commands=(f"mpirun -n 2 windrow train {out}",),
    )


def _ranking_settings(pairs: int) -> tuple[int, int, int]:
    """Epochs, batch size and columns of the tables, by the number of interactions."""
    return (20, int(2 ** np.clip(round(np.log2(pairs / 100)), 6, 11)), 64)
