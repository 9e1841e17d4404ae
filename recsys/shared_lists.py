"""The distinct lists of groups of features in a row group, as a reader keeps them.

A group of two features, four samples of which two differ; lists of the first feature come before those of the second::

    cart    [7, 3]  [7, 3]  [7, 3]  []         offsets  0 2 2 4 5        inverse  0 0 0 1
    sellers [1, 1]  [1, 1]  [1, 1]  [9]        ids      7 3 1 1 9
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from windrow.recsys.deduplication.distinct_lists import distinct_lists, hash_lists
from windrow.recsys.group_pieces_kernels import FIELDS, HASHES, IDS, OFFSETS, UNIQUE, WEIGHTS
from windrow.recsys.id_lists import IdLists, offsets_of_lengths
from windrow.recsys.window_columns_kernels import gather_lists

__all__ = ["DistinctRows", "SharedGroups", "distinct_rows"]


@dataclass(frozen=True, slots=True)
class DistinctRows:
    """The U distinct rows of a group of F features.

    Attributes:
        offsets: [F * U + 1] int64 from 0: list f * U + u has ids offsets[f * U + u] .. offsets[f * U + u + 1] - 1.
        ids: int64.
        weights: float32, one for each id, 1 where a feature has none; None where none of the group has any.
        hashes: [U] uint64, equal for equal rows of any row group.
    """

    offsets: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32] | None
    hashes: npt.NDArray[np.uint64]

    @property
    def num_bytes(self) -> int:
        """Of all arrays."""
        weights = 0 if self.weights is None else self.weights.nbytes
        return self.offsets.nbytes + self.ids.nbytes + weights + self.hashes.nbytes


@dataclass(frozen=True, slots=True)
class SharedGroups:
    """All G groups of the n samples of a row group.

    Attributes:
        rows: distinct rows of each group.
        inverse: [G, n] int32, which of them each sample has.
        table: [G, FIELDS] int64, where they are: see `windrow.recsys.group_pieces_kernels`.
    """

    rows: tuple[DistinctRows, ...]
    inverse: npt.NDArray[np.int32]
    table: npt.NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        """Find the addresses."""
        table = np.zeros((len(self.rows), FIELDS), np.int64)
        for entry, rows in zip(table, self.rows, strict=True):
            entry[OFFSETS] = rows.offsets.ctypes.data
            entry[IDS] = rows.ids.ctypes.data
            entry[WEIGHTS] = 0 if rows.weights is None else rows.weights.ctypes.data
            entry[HASHES] = rows.hashes.ctypes.data
            entry[UNIQUE] = len(rows.hashes)
        object.__setattr__(self, "table", table)

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
        Distinct rows after the transform, in the order in which samples first have them; [n] which one each has.
    """
    if transform is None or not transform_once:
        return _distinct(features if transform is None else transform(features))
    found, inverse = _distinct(features)
    # Rows that differed may be equal now: lists of which the rest was cut off, for example.
    weighted = [lists.weights is not None for lists in features]
    found, again = _distinct(transform(_by_feature(found, weighted)))
    return found, again[inverse]


def _distinct(features: Sequence[IdLists]) -> tuple[DistinctRows, npt.NDArray[np.int64]]:
    rows, inverse = distinct_lists(
        [lists.offsets for lists in features],
        [lists.ids for lists in features],
        [lists.weights for lists in features],
    )
    lengths = [np.diff(lists.offsets)[rows] for lists in features]
    offsets = offsets_of_lengths(np.concatenate(lengths))
    ids = np.empty(offsets[-1], np.int64)
    weights = None
    if any(lists.weights is not None for lists in features):
        weights = np.ones(offsets[-1], np.float32)
    columns = []
    for index, lists in enumerate(features):
        bounds = offsets[index * len(rows) : (index + 1) * len(rows) + 1]
        starts = lists.offsets[:-1].astype(np.int64)
        gather_lists(starts, lists.ids, rows, bounds, ids)
        columns.append((bounds, ids))
        if weights is not None and lists.weights is not None:
            gather_lists(starts, lists.weights, rows, bounds, weights)
            columns.append((bounds, weights.view(np.int32)))
    return DistinctRows(offsets, ids, weights, hash_lists(columns, np.arange(len(rows)))), inverse


def _by_feature(rows: DistinctRows, weighted: Sequence[bool]) -> list[IdLists]:
    """Lists of each feature, in the memory of the rows."""
    count = len(rows.hashes)
    return [
        IdLists(
            rows.offsets[index * count : (index + 1) * count + 1],
            rows.ids,
            rows.weights if has_weights else None,
        )
        for index, has_weights in enumerate(weighted)
    ]
