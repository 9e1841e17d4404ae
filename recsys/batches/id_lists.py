"""The ids of multi-hot features in NumPy arrays: a list for each sample, for each run of repeats, or distinct ones.

A store may leave out a list, or a single id, that the sample before it in its row group has as well: a null stands for
it, which takes less than a bit. A missing value is never null there, it is row 0 or an empty list::

    sample          0        1      2      3      4
    log             [7, 3]   [7, 3] [7, 3] []     []
    file            [7, 3]   null   null   []     null
    decoded runs    [7, 3]                 []             begins  1 0 0 1 0

What is not there is not decompressed, decoded, checked, compared or transformed: O3 and O4 of RecD (Zhao et al., MLSys
2023, arXiv 2211.05239) from the file on.

A reader keeps the distinct lists of groups of features. A group of two features, four samples of which two differ::

    sample   0       1       2       3          row      0        1
    cart     [7, 3]  [7, 3]  [7, 3]  []         cart     [7, 3]   []
    sellers  [1, 1]  [1, 1]  [1, 1]  [9]        sellers  [1, 1]   [9]        inverse  0 0 0 1
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.recsys.batches.deduplication.distinct_lists import DistinctLists, distinct_lists
from windrow.recsys.batches.windows_kernels import (
    FIELDS,
    GROUP_FIELDS,
    HASHES,
    IDS,
    STARTS,
    STOPS,
    UNIQUE,
    WEIGHTS,
    gather_lists,
)

__all__ = [
    "DistinctRows",
    "IdLists",
    "RowLists",
    "RunLists",
    "SharedGroups",
    "distinct_rows",
    "filled_in",
    "gathered_lists",
    "leave_out_repeats",
    "lists_of_single_ids",
    "offsets_of_lengths",
    "one_chunk",
    "runs_of_column",
    "runs_of_group",
]


@dataclass(frozen=True, slots=True)
class IdLists:
    """The ids of a multi-hot feature.

    Attributes:
        offsets: [n + 1] int32 or int64, sample i has the ids offsets[i] .. offsets[i + 1] - 1; may start past 0.
        ids: int64.
        weights: float32, one for each id; None where the feature has none.
    """

    offsets: npt.NDArray[np.integer]
    ids: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32] | None

    @property
    def num_bytes(self) -> int:
        """Of all arrays."""
        return self.offsets.nbytes + self.ids.nbytes + (0 if self.weights is None else self.weights.nbytes)


def lists_of_single_ids(ids: npt.NDArray[np.int64]) -> IdLists:
    """A feature of one id per sample as lists of length 1.

    Args:
        ids: [n] int64, not copied.
    """
    return IdLists(np.arange(len(ids) + 1, dtype=np.int64), ids, None)


def gathered_lists(lists: IdLists, order: npt.NDArray[np.int64]) -> IdLists:
    """Copy some lists, in any order.

    Args:
        lists: of n samples.
        order: [m] which list comes first, second and so on, each 0 <= order[i] < n; one may come several times.

    Returns:
        m lists, offsets int64 from 0, in memory of their own.
    """
    lengths = np.diff(lists.offsets)[order]
    offsets = offsets_of_lengths(lengths)
    starts = lists.offsets[:-1].astype(np.int64)
    ids = np.empty(offsets[-1], np.int64)
    gather_lists(starts, lists.ids, order, offsets, ids)
    if lists.weights is None:
        return IdLists(offsets, ids, None)
    weights = np.empty(offsets[-1], np.float32)
    gather_lists(starts, lists.weights, order, offsets, weights)
    return IdLists(offsets, ids, weights)


def offsets_of_lengths(lengths: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Where lists begin that lie one after the other.

    Args:
        lengths: [n] integers.

    Returns:
        [n + 1] int64: 0, then the sums of the first 1, 2, ... n lengths.
    """
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


@dataclass(frozen=True, slots=True)
class RunLists:
    """The ids of a feature.

    Attributes:
        lists: of m runs of samples.
        begins: [n] whether a sample begins a run, m times; None where every sample does.
    """

    lists: IdLists
    begins: npt.NDArray[np.bool_] | None

    def of_samples(self) -> IdLists:
        """The list of every sample: a copy, where runs are longer than 1."""
        return self.lists if self.begins is None else gathered_lists(self.lists, _run_of_sample(self.begins))

    def single_ids(self) -> npt.NDArray[np.int64]:
        """[n] int64, where every list has one id."""
        return self.lists.ids if self.begins is None else self.lists.ids[_run_of_sample(self.begins)]


def runs_of_group(features: Sequence[RunLists]) -> tuple[list[IdLists], npt.NDArray[np.int64] | None]:
    """Runs of samples that have the same in all features of a group.

    Args:
        features: of the same n samples.

    Returns:
        The lists of each feature for each run, and [n] int64 the run of each sample; None where each has its own.
    """
    masks = [feature.begins for feature in features if feature.begins is not None]
    if len(masks) < len(features):
        return [feature.of_samples() for feature in features], None
    begins = np.logical_or.reduce(masks)
    starts = np.flatnonzero(begins)
    lists = [
        feature.lists
        if len(feature.lists.offsets) - 1 == len(starts)
        else gathered_lists(feature.lists, _run_of_sample(mask)[starts])
        for feature, mask in zip(features, masks, strict=True)
    ]
    return lists, _run_of_sample(begins)


def runs_of_column(column: Any, weights: Any = None) -> RunLists:
    """Take a feature out of a decoded row group.

    Args:
        column: ``pyarrow.Array`` of int64 or list<int64>; a null stands for what the sample before has.
        weights: list<float>, with nulls at the same samples; None where the feature has none.

    Raises:
        ValueError: the first value is null, weights and ids have other lengths or nulls, or another type.
    """
    import pyarrow as pa

    # Compiled loops read these by their addresses.
    _check_type(column, pa.int64(), single=weights is None)
    if weights is not None:
        _check_type(weights, pa.float32(), single=False)
    begins = None
    if column.null_count:
        begins = column.is_valid().to_numpy(zero_copy_only=False)
        if not begins[0]:
            raise ValueError("the first value of a row group is null, and there is none before it")
    if not pa.types.is_list(column.type):
        buffer = column.buffers()[1]
        ids = np.frombuffer(buffer, np.int64)[column.offset : column.offset + len(column)]
        return RunLists(lists_of_single_ids(ids if begins is None else ids[np.flatnonzero(begins)]), begins)
    if weights is not None and not (
        weights.offsets.equals(column.offsets) and weights.is_valid().equals(column.is_valid())
    ):
        raise ValueError("ids and their weights have lists of different lengths")
    lists = _id_lists(column, weights)
    if begins is None:
        return RunLists(lists, None)
    # Lists that are null hold nothing, so that the others still lie one behind the other.
    offsets = np.append(lists.offsets[np.flatnonzero(begins)], lists.offsets[-1])
    return RunLists(IdLists(offsets, lists.ids, lists.weights), begins)


def _id_lists(column: Any, weights: Any) -> IdLists:
    """The arrays of a ``pyarrow.ListArray`` of ids, and of one of weights or None; without a copy."""
    return IdLists(
        column.offsets.to_numpy(),
        column.values.to_numpy(),
        None if weights is None else weights.values.to_numpy(),
    )


def one_chunk(table: Any, name: str) -> Any:
    """A column of a ``pyarrow.Table`` as one array."""
    column = table.column(name)
    # Joining chunks copies, even a single one.
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def leave_out_repeats(table: Any, features: Sequence[tuple[str, str]]) -> Any:
    """Make nulls of what the sample before has.

    Args:
        table: ``pyarrow.Table``, a row group to be; no nulls in these columns.
        features: names of columns of int64 or list<int64>, and of the columns of their weights, empty for none.

    Returns:
        The table of the same schema.
    """
    for name, weights_name in features:
        column = one_chunk(table, name)
        weights = one_chunk(table, weights_name) if weights_name else None
        runs = runs_of_column(column, weights)
        numbers = distinct_lists([runs.lists.offsets], [runs.lists.ids], [runs.lists.weights]).inverse
        begins = np.append(True, numbers[1:] != numbers[:-1])[: len(numbers)]
        table = _replaced(table, name, _without(column, begins))
        if weights is not None:
            table = _replaced(table, weights_name, _without(weights, begins))
    return table


def filled_in(table: Any) -> Any:
    """The inverse of `leave_out_repeats`, for whoever looks at columns themselves.

    Args:
        table: ``pyarrow.Table``, columns of one decoded row group.

    Returns:
        The table with what the samples before have in place of nulls; itself where there are none.
    """
    import pyarrow as pa

    for name in table.column_names:
        column = one_chunk(table, name)
        if column.null_count:
            valid = column.is_valid().to_numpy(zero_copy_only=False)
            last = np.maximum.accumulate(np.where(valid, np.arange(len(valid)), 0))
            table = _replaced(table, name, column.take(pa.array(last)))
    return table


def _without(column: Any, begins: npt.NDArray[np.bool_]) -> Any:
    import pyarrow as pa

    nulls = pa.array(~begins)
    if not pa.types.is_list(column.type):
        return pa.array(column.to_numpy(), mask=~begins)
    kept = column.filter(pa.array(begins))
    lengths = np.where(begins, np.diff(column.offsets.to_numpy()), 0)
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), kept.flatten(), mask=nulls)


def _check_type(column: Any, wanted: Any, *, single: bool) -> None:
    import pyarrow as pa

    is_list = pa.types.is_list(column.type)
    if not (is_list or single) or (column.type.value_type if is_list else column.type) != wanted:
        raise ValueError(f"has values of type {column.type}, expected {wanted}")


def _replaced(table: Any, name: str, column: Any) -> Any:
    return table.set_column(table.schema.get_field_index(name), table.schema.field(name), column)


def _run_of_sample(begins: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    return np.cumsum(begins) - 1


WORTH_COPYING = 0.75
"""Where rows have less than this share of the ids that were decoded, they are copied, so that the rest can be given
back; else lists stay where they are, which is faster."""


@dataclass(frozen=True, slots=True)
class RowLists:
    """The list of one feature for each of U rows.

    Attributes:
        starts: [U] int64, where each begins in `ids`.
        stops: [U] int64, where it ends.
        ids: int64.
        weights: float32, one for each id; None where the feature has none.
    """

    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32] | None

    @property
    def num_bytes(self) -> int:
        """Of all arrays."""
        weights = 0 if self.weights is None else self.weights.nbytes
        return self.starts.nbytes + self.stops.nbytes + self.ids.nbytes + weights


@dataclass(frozen=True, slots=True)
class DistinctRows:
    """The U distinct rows of a group of features.

    Attributes:
        features: their lists, in the order of the group.
        hashes: [U] uint64, equal for equal rows of any row group.
    """

    features: tuple[RowLists, ...]
    hashes: npt.NDArray[np.uint64]

    @property
    def num_bytes(self) -> int:
        """Of all arrays."""
        return self.hashes.nbytes + sum(lists.num_bytes for lists in self.features)


@dataclass(frozen=True, slots=True)
class SharedGroups:
    """All G groups, together of F features, of the n samples of a row group.

    Attributes:
        rows: distinct rows of each group.
        inverse: [G, n] int32, which of them each sample has.
        table: [F, FIELDS] int64, where they are: see `windrow.recsys.batches.windows_kernels`.
        group_table: [G, GROUP_FIELDS] int64.
    """

    rows: tuple[DistinctRows, ...]
    inverse: npt.NDArray[np.int32]
    table: npt.NDArray[np.int64] = field(init=False)
    group_table: npt.NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        """Find the addresses."""
        features = [lists for rows in self.rows for lists in rows.features]
        table = np.zeros((len(features), FIELDS), np.int64)
        for entry, lists in zip(table, features, strict=True):
            entry[STARTS] = lists.starts.ctypes.data
            entry[STOPS] = lists.stops.ctypes.data
            entry[IDS] = lists.ids.ctypes.data
            entry[WEIGHTS] = 0 if lists.weights is None else lists.weights.ctypes.data
        group_table = np.zeros((len(self.rows), GROUP_FIELDS), np.int64)
        for entry, rows in zip(group_table, self.rows, strict=True):
            entry[HASHES] = rows.hashes.ctypes.data
            entry[UNIQUE] = len(rows.hashes)
        object.__setattr__(self, "table", table)
        object.__setattr__(self, "group_table", group_table)

    @property
    def num_bytes(self) -> int:
        """Of all arrays."""
        return self.inverse.nbytes + sum(rows.num_bytes for rows in self.rows)


def distinct_rows(
    features: Sequence[IdLists],
    transform: Callable[[Sequence[IdLists]], Sequence[IdLists]] | None = None,
    *,
    transform_once: bool = True,
) -> tuple[DistinctRows, npt.NDArray[np.int64]]:
    """Find the distinct rows of a group, and transform them.

    Args:
        features: lists of n samples each, at least one feature.
        transform: what is done to the lists, each for itself; None for nothing.
        transform_once: transform distinct lists alone, instead of all before they are compared. The result is the same.

    Returns:
        Distinct rows after the transform, in the order in which samples first have them, some of them perhaps in the
        memory of `features`; [n] which one each has.
    """
    if transform is None or not transform_once:
        return _distinct(features if transform is None else transform(features))
    representatives, inverse, _ = _compared(features)
    # Rows that differed may be equal afterwards: lists of which the rest was cut off, for example.
    rows, again = _distinct(transform([gathered_lists(lists, representatives) for lists in features]))
    return rows, again[inverse]


def _distinct(features: Sequence[IdLists]) -> tuple[DistinctRows, npt.NDArray[np.int64]]:
    found = _compared(features)
    rows = tuple(_rows(lists, found.representatives) for lists in features)
    return DistinctRows(rows, found.hashes), found.inverse


def _compared(features: Sequence[IdLists]) -> DistinctLists:
    return distinct_lists(
        [lists.offsets for lists in features],
        [lists.ids for lists in features],
        [lists.weights for lists in features],
    )


def _rows(lists: IdLists, representatives: npt.NDArray[np.int64]) -> RowLists:
    starts = lists.offsets[:-1][representatives].astype(np.int64)
    stops = lists.offsets[1:][representatives].astype(np.int64)
    if (stops - starts).sum() < WORTH_COPYING * len(lists.ids):
        lists = gathered_lists(lists, representatives)
        starts, stops = lists.offsets[:-1].astype(np.int64), lists.offsets[1:].astype(np.int64)
    return RowLists(starts, stops, lists.ids, lists.weights)
