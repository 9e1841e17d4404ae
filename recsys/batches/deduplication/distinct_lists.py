"""Which samples have equal lists in all features of a group: exact, in one or two passes over the values."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError
from windrow.recsys.batches.deduplication.distinct_lists_kernels import (
    find_leaders,
    mark_other_values,
    mark_unequal,
    mix_lists,
    number_runs,
)
from windrow.recsys.batches.jagged import Jagged

__all__ = ["DistinctLists", "distinct_lists", "hash_lists"]

SLOTS_PER_RUN = 2
"""At least so many slots of the table of hashes for each run: with half of them free, few are looked at in vain."""


class DistinctLists(NamedTuple):
    """The distinct samples of a group of features, in the order in which they first come.

    Attributes:
        representatives: [U] int64, the first sample of each, increasing.
        inverse: [n] int64, 0 <= inverse < U, which of them each sample equals.
        hashes: [U] uint64 of each, as `hash_lists` has them, the same in every process.
    """

    representatives: npt.NDArray[np.int64]
    inverse: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]


def distinct_lists(features: Sequence[Jagged[npt.NDArray[Any]]]) -> DistinctLists:
    """Find the distinct samples of a group of features.

    Two samples are the same when the lists of every feature, and their weights, are equal; weights are equal when
    their bits are, so that NaN equals itself and -0.0 is not 0.0. A sample is compared with the one before first, which
    stops at the first difference; only the first of each run of equal samples is hashed, found in a table and compared
    with the sample that it was found to equal. Where hashes collide, those that differ are grouped anew among
    themselves until none does. So neighbours that repeat cost one look at their values; the global interpreter lock is
    given up meanwhile.

    Args:
        features: lists of n samples each, of ids, with weights or without.

    Raises:
        DataError: no feature, or features of different numbers of samples.
    """
    if not features:
        raise DataError("a group of no features has no lists to compare: name at least one feature")
    counts = [len(lists) for lists in features]
    if len(set(counts)) > 1:
        raise DataError(f"features of one group have {counts} lists: each needs one for each sample")
    num_samples = len(features[0])
    columns = []
    for lists in features:
        columns.append(lists)
        if lists.weights is not None:
            columns.append(Jagged(lists.weights.view(f"i{lists.weights.itemsize}"), lists.offsets))
    begins = np.zeros(num_samples, np.bool_)
    begins[:1] = True
    for lists in features:
        begins[1:] |= lists.lengths[1:] != lists.lengths[:-1]
    stretches = np.append(np.flatnonzero(begins), num_samples)
    for column in columns:
        mark_other_values(column.offsets, column.values, stretches, begins)
    starts = np.flatnonzero(begins)
    hashes = hash_lists(columns, starts)
    leaders = _leaders(columns, starts, hashes)
    numbers, representatives = np.empty(len(starts), np.int64), np.empty(len(starts) + 1, np.int64)
    inverse = np.empty(num_samples, np.int64)
    num_unique = number_runs(starts, leaders, begins, numbers, representatives, hashes, inverse)
    return DistinctLists(representatives[:num_unique].copy(), inverse, hashes[:num_unique].copy())


def hash_lists(columns: Sequence[Jagged[npt.NDArray[Any]]], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """[m] hashes of what the samples `rows` [m] hold in several columns of integers, lengths included."""
    hashes = np.zeros(len(rows), np.uint64)
    for column in columns:
        mix_lists(column.offsets, column.values, rows, hashes)
    return hashes


def _leaders(
    columns: Sequence[Jagged[npt.NDArray[Any]]], rows: npt.NDArray[np.int64], hashes: npt.NDArray[np.uint64]
) -> npt.NDArray[np.int64]:
    """[m] position of the first row that equals each."""
    leaders = _first_of_hash(hashes)
    unsettled = np.flatnonzero(_unequal(columns, rows, leaders))
    # All samples that equal a leader find it in the same round, so whoever leads the rest is the first of its kind.
    while len(unsettled):
        found = _first_of_hash(hashes[unsettled])
        leaders[unsettled] = unsettled[found]
        unsettled = unsettled[_unequal(columns, rows[unsettled], found)]
    return leaders


def _unequal(
    columns: Sequence[Jagged[npt.NDArray[Any]]], rows: npt.NDArray[np.int64], leaders: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    unequal = np.zeros(len(rows), np.bool_)
    for column in columns:
        mark_unequal(column.offsets, column.values, rows, rows[leaders], unequal)
    return unequal


def _first_of_hash(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    slots = np.full(1 << (SLOTS_PER_RUN * len(hashes)).bit_length(), -1, np.int64)
    leaders = np.empty(len(hashes), np.int64)
    find_leaders(hashes, slots, leaders)
    return leaders
