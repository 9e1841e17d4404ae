"""The distinct lists of groups of features in a row group, as a reader keeps them.

A group of two features, four samples of which two differ::

    sample   0       1       2       3          row      0        1
    cart     [7, 3]  [7, 3]  [7, 3]  []         cart     [7, 3]   []
    sellers  [1, 1]  [1, 1]  [1, 1]  [9]        sellers  [1, 1]   [9]        inverse  0 0 0 1
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from windrow.recsys.deduplication.distinct_lists import DistinctLists, distinct_lists
from windrow.recsys.group_pieces_kernels import (
    FIELDS,
    GROUP_FIELDS,
    HASHES,
    IDS,
    STARTS,
    STOPS,
    UNIQUE,
    WEIGHTS,
)
from windrow.recsys.id_lists import IdLists, gathered_lists

__all__ = ["DistinctRows", "RowLists", "SharedGroups", "distinct_rows"]

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
        table: [F, FIELDS] int64, where they are: see `windrow.recsys.group_pieces_kernels`.
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
