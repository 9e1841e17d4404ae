"""The recipe sections that say what a log holds, and which of its samples train, validate and test.

[log]      where it is, which columns, how values become ids
[split]    by time    |---- train ----|-- validation --|-- test --|      all of one instant on one side
           by hash    a share of the values of a column (or of the rows), the same ones whatever else is in the log
           by files   [log] paths train; the other splits have files of their own
"""

import contextlib
from collections.abc import Mapping
from dataclasses import field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from windrow.comm.errors import RecipeError
from windrow.comm.options import PathOption, PositiveInt, Share, checked_dataclass
from windrow.comm.random import Stream, hash_ids, stream_key

__all__ = [
    "SPLITS",
    "DenseTransform",
    "FeatureOptions",
    "IdRule",
    "LabelKind",
    "LogFormat",
    "LogOptions",
    "LogSplitOptions",
    "SplitName",
    "SplitRule",
    "parse_instant",
    "split_by_hash",
    "split_by_time",
]

IdRule = Literal["vocabulary", "hash", "rows"]
"""How a value becomes a row of its table."""

LogFormat = Literal["parquet", "csv", "criteo", "libfm", "interactions"]
"""How a log is stored on disk."""

LabelKind = Literal["binary", "real"]
"""What labels are: 0 or 1; or any finite number."""

DenseTransform = Literal["none", "log1p", "standard"]
"""What is done to dense values: nothing; log(1 + max(x, 0)); mean 0 and deviation 1 over the training split."""

FIRST_VOCABULARY_ROW = 2
"""Rows 0 and 1 of a table with a vocabulary are for missing and for unseen values."""

RESERVED_NAMES = ("label", "sample_weight", "dense", "time", "session")
"""Columns of a prepared log that are no features."""

SMALLEST_HASHED_TABLE = 2
"""Row 0 is for missing values; at least one is needed for the rest."""


@checked_dataclass
class FeatureOptions:
    """One sparse feature: the column it is read from, and the rows of a table that its values name."""

    column: str = ""
    """Column of the log; empty where it is called as the feature is."""
    ids: IdRule = "vocabulary"
    """vocabulary: row 0 for missing, 1 for values not in the vocabulary, then the values of the training split
    by falling count, ties by value. hash: row 0 for missing, 1 + hash(value) mod (rows - 1) for others. rows: the
    values are row numbers already; one outside the table, or missing, is refused."""
    rows: PositiveInt | None = None
    """Rows of the table: needed for "hash" and "rows"; for "vocabulary" the most it may have, with rows 0 and 1,
    "none" for as many as there are values."""
    min_count: PositiveInt = 1
    """vocabulary only: values that occur less often in the training split count as unseen."""
    multi_hot: bool = False
    """Whether a sample has a list of values instead of one."""
    max_length: PositiveInt | None = None
    """multi_hot only: the most values of a sample; the last ones are kept. "none" for no limit."""
    weights: str = ""
    """multi_hot only: column with one weight for each value; empty for none."""
    separator: Annotated[str, Field(min_length=1, max_length=1)] = "|"
    """multi_hot in text files only: what stands between the values of a field."""
    table: str = ""
    """Table that the ids belong to; empty for one of the feature's own name. Features that name one table share
    its rows and its vocabulary: the viewed item and the items viewed before."""

    def __post_init__(self) -> None:
        """Refuse contradictions.

        Raises:
            RecipeError: an option contradicts another.
        """
        if self.ids != "vocabulary" and self.rows is None:
            raise RecipeError(f'ids = "{self.ids}" needs rows, the number of rows of the table')
        least = {"vocabulary": FIRST_VOCABULARY_ROW, "hash": SMALLEST_HASHED_TABLE, "rows": 1}[self.ids]
        if self.rows is not None and self.rows < least:
            raise RecipeError(f'rows = {self.rows}: expected at least {least} with ids = "{self.ids}"')
        if self.min_count > 1 and self.ids != "vocabulary":
            raise RecipeError(f'min_count = {self.min_count} needs ids = "vocabulary", not "{self.ids}"')
        if not self.multi_hot and (self.max_length is not None or self.weights):
            raise RecipeError("max_length and weights are for lists of values: set multi_hot = true")


@checked_dataclass
class LogOptions:
    """A log of samples: each row has a label, dense values and ids."""

    paths: Annotated[tuple[PathOption, ...], Field(min_length=1)]
    """Files, or patterns with * and ? that name some, in this order; those of one pattern by name. Where the log
    is split by files, these are the training split's."""
    format: LogFormat
    """parquet; csv: text with a header, tabs in .tsv files, .gz or plain; criteo: the 40 columns of Criteo's
    advertising logs; libfm: "label index:value ..."; interactions: which user took which item."""
    label: str | tuple[str, ...] = "label"
    """Column of labels; a list of columns for several labels, one output each. An empty list: none, for samples that
    are only predicted."""
    label_kind: LabelKind = "binary"
    """binary: 0 and 1, learnt by cross entropy; real: any numbers, learnt by squared error."""
    sample_weight: str = ""
    """Column of weights, 0 or more, that a sample's loss is multiplied by; empty for none. Metrics are unweighted."""
    dense: tuple[str, ...] = ()
    """Columns of dense values, in the order in which models see them."""
    dense_transform: DenseTransform = "none"
    """What is done to all dense values; missing ones become 0 afterwards."""
    time: str = ""
    """Column of times: integers, or ISO dates and times. Empty for none."""
    session: str = ""
    """Column of session ids: integers or text. Empty for none."""
    optional: tuple[str, ...] = ()
    """Columns that some files lack; their values count as missing there."""
    vocabularies_from: PathOption | None = None
    """A store that was prepared from earlier samples. Values that its vocabularies know keep their rows, new ones come
    after them, and dense columns are made standard as they were there: so that what was learnt on it can be started
    from, see `init_from`."""
    features: Mapping[str, FeatureOptions] = field(default_factory=dict)
    """The sparse features by name, in the order in which models see them."""

    def __post_init__(self) -> None:
        """Check what concerns several features.

        Raises:
            RecipeError: a column used twice, a name that the store cannot hold, or features that share a
                table and differ in its rule.
        """
        if len(set(self.dense)) != len(self.dense):
            raise RecipeError(f"dense = {list(self.dense)} names a column twice")
        if len(set(self.labels)) != len(self.labels):
            raise RecipeError(f"label = {list(self.labels)} names a column twice")
        inputs = {*self.dense, *(self.column_of(name) for name in self.features)}
        for column in (*self.labels, self.sample_weight):
            if column and column in inputs:
                what = "sample_weight" if column == self.sample_weight else "label"
                raise RecipeError(f"the {what}, column {column!r}, is also an input: leave it out there")
        _check_names(self)
        for name, options in self.features.items():
            first = next(other for other in self.features if self.table_of(other) == self.table_of(name))
            shared = self.features[first]
            if _rule(options) != _rule(shared):
                raise RecipeError(
                    f"features {first!r} and {name!r} share table {self.table_of(name)!r}, but differ in ids, rows "
                    f"or min_count: {_rule(shared)} and {_rule(options)}; give both the same, or a table each"
                )

    @property
    def labels(self) -> tuple[str, ...]:
        """Columns of labels."""
        return (self.label,) if isinstance(self.label, str) else self.label

    def column_of(self, feature: str) -> str:
        """The column that a feature is read from."""
        return self.features[feature].column or feature

    def table_of(self, feature: str) -> str:
        """The table that a feature's ids belong to."""
        return self.features[feature].table or feature

    def tables(self) -> dict[str, tuple[str, ...]]:
        """The features of each table, in the order of the features."""
        found: dict[str, tuple[str, ...]] = {}
        for name in self.features:
            found[self.table_of(name)] = (*found.get(self.table_of(name), ()), name)
        return found


def _check_names(log: LogOptions) -> None:
    """Features are columns of the store, and their tables files: each needs a name of its own there."""
    weights = {f"{name}.weights" for name, options in log.features.items() if options.weights}
    for name in log.features:
        if name in RESERVED_NAMES or name in weights:
            raise RecipeError(
                f"a feature cannot be called {name!r}, as another column of the prepared log is: call it otherwise, "
                f"and name its column, for example [log.features.{name.replace('.', '_')}_id] with column = "
                f'"{log.column_of(name)}"'
            )
        for used in (name, log.table_of(name)):
            if not used or any(sign in used for sign in "./\\\0"):
                raise RecipeError(
                    f"feature {name!r} of table {log.table_of(name)!r}: names must not be empty or hold '.', '/' or "
                    "'\\': call it otherwise, and say which column it is by column"
                )
    # Queries in SQL, and some file systems, take names for one that differ only in case.
    for what, names in (("features", log.features), ("tables", log.tables()), ("dense columns", log.dense)):
        first: dict[str, str] = {}
        for name in names:
            other = first.setdefault(name.casefold(), name)
            if other != name:
                raise RecipeError(f"{what} {other!r} and {name!r} differ only in upper and lower case: rename one")


def _rule(options: FeatureOptions) -> tuple[str, int | None, int]:
    return options.ids, options.rows, options.min_count


SplitRule = Literal["time", "hash", "files"]
"""What decides on a sample's split."""

SplitName = Literal["train", "validation", "test"]
"""A split."""

SPLITS: tuple[SplitName, SplitName, SplitName] = ("train", "validation", "test")
"""The splits, by their code: 0, 1, 2."""


@checked_dataclass
class LogSplitOptions:
    """How samples are dealt to train, validation and test."""

    by: SplitRule = "hash"
    """time: earlier samples train, later ones validate and test, so that nothing is learnt from the future; needs
    [log] time. hash: at random, by `column`. files: by `validation_paths` and `test_paths`."""
    fractions: tuple[Annotated[float, Field(gt=0, le=1)], Share, Share] = (0.8, 0.1, 0.1)
    """time and hash: share of the samples in train, validation and test; 0 for no such split."""
    instants: tuple[str, ...] = ()
    """time only, instead of `fractions`: where validation and test begin, two ISO dates or times (UTC where they
    say nothing else) or integers, as the column has."""
    column: str = ""
    """hash only: samples that are equal in this column stay together; empty for the number of the row."""
    seed: int = 0
    """hash only: another seed deals otherwise."""
    validation_paths: tuple[PathOption, ...] = ()
    """files only: files or patterns of the validation split; may be empty."""
    test_paths: tuple[PathOption, ...] = ()
    """files only: files or patterns of the test split; may be empty."""

    def __post_init__(self) -> None:
        """Refuse contradictions.

        Raises:
            RecipeError: an option belongs to another rule.
        """
        if abs(sum(self.fractions) - 1) > 1e-9:
            raise RecipeError(f"fractions = {list(self.fractions)}: expected shares that add up to 1")
        if self.instants and (self.by != "time" or len(self.instants) != len(SPLITS) - 1):
            raise RecipeError(
                f'instants = {list(self.instants)}: expected two, where validation and test begin, and by = "time"'
            )
        if self.instants and parse_instant(self.instants[0]) > parse_instant(self.instants[1]):
            raise RecipeError(f"instants = {list(self.instants)}: validation must begin before test")
        if self.column and self.by != "hash":
            raise RecipeError(f'column = {self.column!r} is for by = "hash", but by = "{self.by}"')
        if (self.validation_paths or self.test_paths) and self.by != "files":
            raise RecipeError(f'validation_paths and test_paths are for by = "files", but by = "{self.by}"')

    def expected_splits(self) -> tuple[SplitName, ...]:
        """The splits that must not be empty."""
        if self.by == "files":
            present = (True, bool(self.validation_paths), bool(self.test_paths))
        else:
            one, two, three = self.fractions
            present = (True, True, True) if self.instants else (one > 0, two > 0, three > 0)
        return tuple(name for name, there in zip(SPLITS, present, strict=True) if there)


def parse_instant(text: str) -> int:
    """An instant of a recipe as it stands in the time column.

    A whole number; or an ISO date or time, UTC if it says nothing else, as microseconds since 1970.

    Raises:
        RecipeError: it is neither.
    """
    with contextlib.suppress(ValueError):
        return int(text)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise RecipeError(f"{text!r} is no whole number and no ISO date or time: {error}") from error
    aware = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def split_by_time(times: npt.NDArray[np.int64], cuts: tuple[int, int]) -> npt.NDArray[np.int8]:
    """Deal samples by their times [n]: codes [n], positions in `SPLITS`; cuts are when validation and test begin."""
    return np.searchsorted(np.asarray(cuts, np.int64), times, side="right").astype(np.int8)


def split_by_hash(
    keys: npt.NDArray[np.integer], fractions: tuple[float, float, float], seed: int
) -> npt.NDArray[np.int8]:
    """Deal samples at random, equal keys alike.

    Args:
        keys: [n] integers: row numbers, or 64-bit hashes of a column's values.
        fractions: shares of train, validation and test.
        seed: deals otherwise.

    Returns:
        [n] codes: positions in `SPLITS`; a function of key and seed alone.
    """
    # 53 bits: every number is exact as a float64, and so is the comparison with a fraction.
    draws = (hash_ids(stream_key(seed, Stream.SPLIT), keys) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    bounds = np.cumsum(fractions[:-1])
    return np.searchsorted(bounds, draws, side="right").astype(np.int8)
