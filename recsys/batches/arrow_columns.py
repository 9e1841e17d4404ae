"""Columns of a prepared log as jagged lists, without what repeats.

A store may leave out a list, or a single id, that the sample before it in its row group has as well: a null stands for
it, which takes less than a bit. A missing value is never null there, it is row 0 or an empty list::

    sample          0        1      2      3      4
    log             [7, 3]   [7, 3] [7, 3] []     []
    file            [7, 3]   null   null   []     null
    decoded runs    [7, 3]                 []             begins  1 0 0 1 0

What is not there is not decompressed, decoded, checked, compared or transformed: O3 and O4 of RecD (Zhao et al., MLSys
2023, arXiv 2211.05239) from the file on.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from windrow.recsys.batches.deduplication.distinct_lists import distinct_lists
from windrow.recsys.batches.jagged import Jagged

__all__ = [
    "Lists",
    "RunLists",
    "filled_in",
    "in_numpy",
    "leave_out_repeats",
    "one_chunk",
    "runs_of_column",
    "runs_of_group",
]

Lists = Jagged[npt.NDArray[Any]]
"""Lists of a feature in NumPy arrays: int64 ids, float32 weights."""


class RunLists(NamedTuple):
    """The ids of a feature.

    Attributes:
        lists: of m runs of samples.
        begins: [n] whether a sample begins a run, m times; None where every sample does.
    """

    lists: Lists
    begins: npt.NDArray[np.bool_] | None

    def of_samples(self) -> Lists:
        """The list of every sample: a copy, where runs are longer than 1."""
        return self.lists if self.begins is None else self.lists.select(_run_of_sample(self.begins))

    def single_ids(self) -> npt.NDArray[np.int64]:
        """[n] int64, where every list has one id."""
        ids = self.lists.values
        return ids if self.begins is None else ids[_run_of_sample(self.begins)]


def runs_of_group(features: Sequence[RunLists]) -> tuple[list[Lists], npt.NDArray[np.int64] | None]:
    """Runs of samples that have the same in all features of a group.

    The lists of each feature for each run, and [n] int64 the run of each sample; None where each has its own.
    """
    masks = [feature.begins for feature in features if feature.begins is not None]
    if len(masks) < len(features):
        return [feature.of_samples() for feature in features], None
    begins = np.logical_or.reduce(masks)
    starts = np.flatnonzero(begins)
    lists = [
        feature.lists if len(feature.lists) == len(starts) else feature.lists.select(_run_of_sample(mask)[starts])
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
        return RunLists(Jagged.of_single(ids if begins is None else ids[np.flatnonzero(begins)]), begins)
    if weights is not None and not (
        weights.offsets.equals(column.offsets) and weights.is_valid().equals(column.is_valid())
    ):
        raise ValueError("ids and their weights have lists of different lengths")
    weight_values = None if weights is None else in_numpy(weights.values)
    lists = Jagged(in_numpy(column.values), in_numpy(column.offsets), weight_values)
    if begins is None:
        return RunLists(lists, None)
    # Lists that are null hold nothing, so that the others still lie one behind the other.
    offsets = np.append(lists.offsets[np.flatnonzero(begins)], lists.offsets[-1])
    return RunLists(Jagged(lists.values, offsets, lists.weights), begins)


def one_chunk(table: Any, name: str) -> Any:
    """A column of a ``pyarrow.Table`` as one array."""
    column = table.column(name)
    # Joining chunks copies, even a single one.
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def in_numpy(column: Any) -> npt.NDArray[Any]:
    """Numbers of a ``pyarrow.Array`` without nulls, where they lie; not to be written to.

    Arrow's ``to_numpy`` does the same, but imports pandas where that is installed, in 0.4 s.
    """
    array: npt.NDArray[Any] = np.from_dlpack(column)
    return array


def leave_out_repeats(table: Any, features: Sequence[tuple[str, str]]) -> Any:
    """Make nulls of what the sample before has in a ``pyarrow.Table``, a row group to be.

    The columns of `features`, of int64 or list<int64> without nulls, come with those of their weights, "" for none.
    """
    for name, weights_name in features:
        column = one_chunk(table, name)
        weights = one_chunk(table, weights_name) if weights_name else None
        runs = runs_of_column(column, weights)
        numbers = distinct_lists([runs.lists]).inverse
        begins = np.append(True, numbers[1:] != numbers[:-1])[: len(numbers)]
        table = _replaced(table, name, _without(column, begins))
        if weights is not None:
            table = _replaced(table, weights_name, _without(weights, begins))
    return table


def filled_in(table: Any) -> Any:
    """The inverse of `leave_out_repeats` on a decoded row group, for whoever looks at columns themselves.

    Nulls give way to what the samples before have; where there are none, the table is given back.
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
