"""The row groups of a prepared split as NumPy arrays: decoded, transformed, shared in groups, the last used kept.

Of a group of features the distinct rows are held. Two features, four samples of which two differ::

    sample   0       1       2       3          row      0        1
    cart     [7, 3]  [7, 3]  [7, 3]  []         cart     [7, 3]   []
    sellers  [1, 1]  [1, 1]  [1, 1]  [9]        sellers  [1, 1]   [9]        inverse  0 0 0 1
"""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import RecipeError, StoreError
from windrow.comm.rows import offsets_from_counts
from windrow.recsys.batches.arrow_columns import Lists, RunLists, in_numpy, one_chunk, runs_of_column, runs_of_group
from windrow.recsys.batches.deduplication.distinct_lists import distinct_lists
from windrow.recsys.batches.deduplication.options import check_groups
from windrow.recsys.batches.jagged import Jagged, Windows
from windrow.recsys.batches.transforms import Transforms
from windrow.recsys.batches.windows_kernels import FIELDS, GROUP_FIELDS
from windrow.recsys.log.store import (
    CURE,
    DENSE_COLUMN,
    LABEL_COLUMN,
    SAMPLE_WEIGHT_COLUMN,
    SESSION_COLUMN,
    WEIGHTS_SUFFIX,
    FeatureEntry,
    LogSplit,
)

__all__ = ["ColumnChoice", "Columns", "DistinctRows", "RowGroup", "RowGroups", "SharedGroups", "SplitFiles", "decoded"]

Taken = TypeVar("Taken")

FEW_RUNS = 0.5
"""Share of samples that begin a run, up to which neighbours are taken to have most of the repeats."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnChoice:
    """What is read of each sample, and what is done to it.

    Attributes:
        features: of the store, all of them.
        num_dense: dense values of a sample.
        num_labels: labels of a sample.
        sample_weights: read weights of samples.
        groups: names of features that are held as distinct lists; may be none.
        transforms: what is done to ids; its features are those that come out. None: those of the store, unaltered.
        transform_once: transform distinct lists of a group alone; without, all lists before they are compared.
        sessions: read session ids.
    """

    features: tuple[FeatureEntry, ...]
    num_dense: int
    num_labels: int = 1
    sample_weights: bool = False
    groups: tuple[tuple[str, ...], ...] = ()
    transforms: Transforms | None = None
    transform_once: bool = True
    sessions: bool = False

    @property
    def given(self) -> tuple[FeatureEntry, ...]:
        """Features that come out."""
        return self.features if self.transforms is None else self.transforms.features

    @property
    def plain(self) -> tuple[FeatureEntry, ...]:
        """Features that come out and are in no group, in their order."""
        grouped = {name for group in self.groups for name in group}
        return tuple(feature for feature in self.given if feature.name not in grouped)

    def is_weighted(self, group: Sequence[str]) -> bool:
        """Whether any feature of a group has weights."""
        return any(feature.weighted for feature in self.given if feature.name in group)

    def check_groups(self) -> None:
        """Refuse groups that cannot be.

        Raises:
            RecipeError: a group without features, an unknown feature, or one that is named twice.
        """
        known = [feature.name for feature in self.given]
        for name in check_groups(self.groups):
            if name not in known:
                raise RecipeError(
                    f"deduplication.groups names {name!r}, which is no feature of the log: known are {', '.join(known)}"
                )

    def columns(self) -> list[str]:
        """Columns of the store that are read."""
        names = [LABEL_COLUMN] * bool(self.num_labels) + [SAMPLE_WEIGHT_COLUMN] * self.sample_weights
        names += [DENSE_COLUMN] * (self.num_dense > 0) + [SESSION_COLUMN] * self.sessions
        for feature in self.features:
            names += [feature.name] + [feature.name + WEIGHTS_SUFFIX] * feature.weighted
        return names


WORTH_COPYING = 0.75
"""Where rows have less than this share of the ids that were decoded, they are copied, so that the rest can be given
back; else lists stay where they are, which is faster."""


class DistinctRows(NamedTuple):
    """The U distinct rows of a group of features.

    Attributes:
        features: their lists, in the order of the group.
        hashes: [U] uint64, equal for equal rows of any row group.
    """

    features: tuple[Windows[npt.NDArray[Any]], ...]
    hashes: npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class SharedGroups:
    """All G groups, together of F features, of the n samples of a row group.

    Attributes:
        rows: distinct rows of each group.
        inverse: [G, n] int32, which of them each sample has.
        table: [F, FIELDS] int64, where they are; this and the next as `windrow.recsys.batches.windows_kernels` says.
        group_table: [G, GROUP_FIELDS] int64.
    """

    rows: tuple[DistinctRows, ...]
    inverse: npt.NDArray[np.int32]
    table: npt.NDArray[np.int64] = field(init=False)
    group_table: npt.NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        """Find the addresses."""
        addresses = [
            [
                lists.starts.ctypes.data,
                lists.lengths.ctypes.data,
                lists.values.ctypes.data,
                0 if lists.weights is None else lists.weights.ctypes.data,
            ]
            for rows in self.rows
            for lists in rows.features
        ]
        of_groups = [[rows.hashes.ctypes.data, len(rows.hashes)] for rows in self.rows]
        table = np.array(addresses, np.int64).reshape(-1, FIELDS)
        group_table = np.array(of_groups, np.int64).reshape(-1, GROUP_FIELDS)
        object.__setattr__(self, "table", table)
        object.__setattr__(self, "group_table", group_table)

    @property
    def num_bytes(self) -> int:
        """Of all arrays."""
        of_rows = sum(rows.hashes.nbytes + sum(lists.num_bytes for lists in rows.features) for rows in self.rows)
        return self.inverse.nbytes + of_rows


def _windows(lists: Lists, rows: npt.NDArray[np.int64]) -> Windows[npt.NDArray[Any]]:
    starts = lists.offsets[:-1][rows].astype(np.int64)
    lengths = lists.offsets[1:][rows] - starts
    if lengths.sum() < WORTH_COPYING * len(lists.values):
        lists = lists.select(rows)
        starts = lists.offsets[:-1]
    return Windows(lists.values, starts, lengths, lists.weights)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Consecutive samples, in the memory that Arrow decoded them to.

    Attributes:
        columns: by their names in the store: labels, [n] float32 or [n, L] of several; dense values, [n, D] float32;
            and where they are read weights, [n] float32, and sessions, [n] int64.
        single: [n] int64 of each feature of one id per sample that is in no group, in the order of features.
        lists: each multi-hot feature that is in no group.
        groups: distinct lists of each group.
    """

    columns: dict[str, npt.NDArray[Any]]
    single: dict[str, npt.NDArray[np.int64]]
    lists: dict[str, Lists]
    groups: SharedGroups

    @property
    def num_bytes(self) -> int:
        """Of all."""
        of_arrays: int = sum(array.nbytes for array in (*self.columns.values(), *self.single.values()))
        return of_arrays + sum(lists.num_bytes for lists in self.lists.values()) + self.groups.num_bytes


def decoded(table: Any, choice: ColumnChoice) -> RowGroup:
    """Take the arrays out of a decoded row group, a ``pyarrow.Table`` of ``choice.columns()``.

    What needs no work lies in the memory that Arrow decoded it to.

    Raises:
        ValueError: lists and their weights have different lengths, or a row group begins with a null.
    """
    samples = Columns(table, choice)
    several = choice.num_labels != 1
    columns = {
        LABEL_COLUMN: _matrix(table, LABEL_COLUMN, choice.num_labels)
        if several
        else in_numpy(one_chunk(table, LABEL_COLUMN)),
        DENSE_COLUMN: samples.dense,
    }
    for name in [SAMPLE_WEIGHT_COLUMN] * choice.sample_weights + [SESSION_COLUMN] * choice.sessions:
        columns[name] = in_numpy(one_chunk(table, name))
    return RowGroup(
        columns=columns,
        single={feature.name: samples.ids(feature.name) for feature in choice.plain if not feature.multi_hot},
        lists={feature.name: samples.lists(feature.name) for feature in choice.plain if feature.multi_hot},
        groups=samples.groups(choice.groups),
    )


def _matrix(table: Any, name: str, width: int) -> npt.NDArray[np.float32]:
    if not width:
        return np.zeros((table.num_rows, 0), np.float32)
    return in_numpy(one_chunk(table, name).flatten()).reshape(-1, width)


class Columns:
    """The features of decoded samples, transformed: a ``pyarrow.Table`` that has the columns of those asked for.

    Attributes:
        dense: [n, D] float32; D is 0 where its column was not read.
    """

    def __init__(self, table: Any, choice: ColumnChoice) -> None:
        self._table = table
        self.dense = _matrix(table, DENSE_COLUMN, choice.num_dense * (DENSE_COLUMN in table.column_names))
        self._transforms = choice.transforms
        self._transform_once = choice.transform_once
        self._features = {feature.name: feature for feature in choice.given}

    def ids(self, name: str) -> npt.NDArray[np.int64]:
        """[n] int64 of a feature of one id per sample."""
        ids = self._stored(name).single_ids()
        return ids if self._transforms is None else self._transforms.ids(name, ids)

    def lists(self, name: str) -> Lists:
        """The list of each sample, of a multi-hot feature."""
        runs = self._stored(name)
        if self._transforms is None:
            return runs.of_samples()
        if self._transform_once:
            return RunLists(self._transforms.lists(name, runs.lists), runs.begins).of_samples()
        return self._transforms.lists(name, runs.of_samples())

    def groups(self, groups: Sequence[Sequence[str]]) -> SharedGroups:
        """Distinct rows of groups of features."""
        inverse = np.empty((len(groups), self._table.num_rows), np.int32)
        rows = []
        for number, group in enumerate(groups):
            of_group, inverse[number] = self._distinct(group)
            rows.append(of_group)
        return SharedGroups(tuple(rows), inverse)

    def _distinct(self, group: Sequence[str]) -> tuple[DistinctRows, npt.NDArray[np.int64]]:
        """Distinct rows of a group in the order in which samples first have them, and which one each has."""
        features, run_of_sample = runs_of_group([self._stored(name) for name in group])
        inverses = [] if run_of_sample is None else [run_of_sample]
        if self._transforms is not None and any(map(self._transforms.changes, group)):
            if not self._transform_once:
                features, inverses = [self._stored(name).of_samples() for name in group], []
            # Where runs are about as few as distinct lists, these need not be found before.
            elif not inverses or len(features[0]) >= FEW_RUNS * self._table.num_rows:
                once = distinct_lists(features)
                features = [lists.select(once.representatives) for lists in features]
                inverses.append(once.inverse)
            features = [self._transforms.lists(name, lists) for name, lists in zip(group, features, strict=True)]
        # Rows that differed may be equal after transforms: lists of which the rest was cut off, for example.
        found = distinct_lists(features)
        inverse = found.inverse
        for of_samples in reversed(inverses):
            inverse = inverse[of_samples]
        return DistinctRows(tuple(_windows(lists, found.representatives) for lists in features), found.hashes), inverse

    def _stored(self, name: str) -> RunLists:
        if self._transforms is not None and self._transforms.is_new(name):
            return RunLists(Jagged.of_single(self._transforms.new_ids(name, self.dense)), None)
        try:
            weights = one_chunk(self._table, name + WEIGHTS_SUFFIX) if self._features[name].weighted else None
            return runs_of_column(one_chunk(self._table, name), weights)
        except ValueError as error:
            raise ValueError(f"column {name}: {error}") from error


class SplitFiles:
    """The row groups of a split's files, which are memory-mapped while one is read.

    Args:
        split: of a prepared store.

    Raises:
        StoreError: a file has no readable footer, or another number of rows than the manifest says.

    Attributes:
        offsets: of each row group the first row, numbers in the split; and the number of rows.
    """

    def __init__(self, split: LogSplit) -> None:
        footers = [_footer(path, rows) for path, rows in zip(split.files, split.file_rows, strict=True)]
        self._places = [
            (path, footer, group)
            for path, footer in zip(split.files, footers, strict=True)
            for group in range(footer.num_row_groups)
        ]
        self.offsets = offsets_from_counts([footer.row_group(group).num_rows for _, footer, group in self._places])

    def read(self, number: int, columns: Sequence[str], take: Callable[[Any], Taken]) -> Taken:
        """Decode columns of a row group; `take` says what becomes of the ``pyarrow.Table``.

        Raises:
            StoreError: it cannot be decoded, or is not what `take` takes (ValueError); names file and row group.
        """
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile

        path, footer, group = self._places[number]
        try:
            with ParquetFile(path, metadata=footer, memory_map=True, page_checksum_verification=True) as file:
                return take(file.read_row_group(group, columns=list(columns)))
        except (ArrowException, OSError, KeyError, ValueError) as error:
            raise StoreError(f"{path}, row group {group}: {error}; {CURE}") from error


class RowGroups:
    """Reads row groups of a split as arrays.

    Args:
        split: of a prepared store.
        choice: what is read.
        memory_bytes: decoded row groups kept for later: of those that fit together, the ones used last.

    Raises:
        StoreError: as `SplitFiles`.
    """

    def __init__(self, split: LogSplit, choice: ColumnChoice, *, memory_bytes: int) -> None:
        self._choice = choice
        self._memory_bytes = memory_bytes
        self._files = SplitFiles(split)
        self._kept: OrderedDict[int, RowGroup] = OrderedDict()
        self._kept_bytes = 0
        # Threads decode side by side, each row group once. Those of a reader that was closed early may go on a while.
        self._decoding = [threading.Lock() for _ in range(len(self._files.offsets) - 1)]
        self._lock = threading.Lock()

    def covering(self, start: int, stop: int) -> list[tuple[RowGroup, int, int]]:
        """The row groups that hold the rows from `start` to before `stop`, numbers in the split.

        Returns:
            ``(row group, first row in it, first row after)``, in order.

        Raises:
            StoreError: a row group cannot be decoded; names file and row group.
        """
        found = []
        number = bisect_right(self._files.offsets, start) - 1
        while start < stop:
            first, end = self._files.offsets[number], min(stop, self._files.offsets[number + 1])
            if start < end:
                found.append((self._group(number), start - first, end - first))
            start = end
            number += 1
        return found

    def _group(self, number: int) -> RowGroup:
        with self._decoding[number]:
            group = self._kept.get(number)
            if group is None:
                columns = self._choice.columns()
                group = self._files.read(number, columns, lambda table: decoded(table, self._choice))
            with self._lock:
                if number not in self._kept:
                    self._kept[number] = group
                    self._kept_bytes += group.num_bytes
                self._kept.move_to_end(number)
                while self._kept_bytes > self._memory_bytes:
                    _, dropped = self._kept.popitem(last=False)
                    self._kept_bytes -= dropped.num_bytes
        return group


def _footer(path: Path, rows: int) -> Any:
    from pyarrow import ArrowException
    from pyarrow.parquet import read_metadata

    try:
        footer = read_metadata(path)
    except (ArrowException, OSError) as error:
        raise StoreError(f"{path}: {error}; {CURE}") from error
    if footer.num_rows != rows:
        raise StoreError(f"{path} has {footer.num_rows} rows, expected {rows}: {CURE}")
    return footer
