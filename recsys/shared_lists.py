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
from windrow.recsys.id_lists import IdLists, gathered_lists

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
        found, inverse = _distinct(features if transform is None else transform(features))
        return _packed(found), inverse
    found, inverse = _distinct(features)
    # Rows that differed may be equal now: lists of which the rest was cut off, for example.
    found, again = _distinct(transform(found))
    return _packed(found), again[inverse]


def _distinct(features: Sequence[IdLists]) -> tuple[list[IdLists], npt.NDArray[np.int64]]:
    representatives, inverse = distinct_lists(
        [lists.offsets for lists in features],
        [lists.ids for lists in features],
        [lists.weights for lists in features],
    )
    return [gathered_lists(lists, representatives) for lists in features], inverse


def _packed(features: Sequence[IdLists]) -> DistinctRows:
    num_unique = len(features[0].offsets) - 1
    offsets = np.zeros(len(features) * num_unique + 1, np.int64)
    columns = []
    end = 0
    for index, lists in enumerate(features):
        begin = index * num_unique + 1
        np.add(lists.offsets[1:], end, out=offsets[begin : begin + num_unique])
        end += len(lists.ids)
        columns.append((lists.offsets, lists.ids))
        if lists.weights is not None:
            columns.append((lists.offsets, lists.weights.view(np.int32)))
    weights = None
    if any(lists.weights is not None for lists in features):
        weights = np.concatenate(
            [
                np.ones(len(lists.ids), np.float32) if lists.weights is None else lists.weights
                for lists in features
            ]
        )
    ids = np.concatenate([lists.ids for lists in features])
    return DistinctRows(offsets, ids, weights, hash_lists(columns, np.arange(num_unique)))
