"""Which samples have equal lists in all features of a group: exact, in one or two passes over the values.

On CPUs compiled loops look at neighbours first. Elsewhere PyTorch's operations alone do the other steps: hash, take
equal hashes for equal samples, compare each with the first of its hash, and group what differs anew.
"""

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.recsys.batches.deduplication.distinct_lists_kernels import (
    find_leaders,
    mark_other_values,
    mark_unequal,
    mix_lists,
    number_runs,
)
from windrow.recsys.batches.jagged import Array, Jagged

__all__ = ["DistinctLists", "distinct_by_pytorch", "distinct_lists", "hash_by_pytorch", "hash_lists"]

SLOTS_PER_RUN = 2
"""At least so many slots of the table of hashes for each run: with half of them free, few are looked at in vain."""


class DistinctLists(NamedTuple, Generic[Array]):
    """The distinct samples of a group of features, in the order in which they first come.

    Attributes:
        representatives: [U] int64, the first sample of each, increasing.
        inverse: [n] int64, 0 <= inverse < U, which of them each sample equals.
        hashes: [U] uint64 of each, as `hash_lists` has them, the same in every process; int64 of another function
            where they were not found on a CPU.
    """

    representatives: Array
    inverse: Array
    hashes: Array


def distinct_lists(features: Sequence[Jagged[Array]]) -> DistinctLists[Array]:
    """Find the distinct samples of a group of features.

    Two samples are the same when the lists of every feature, and their weights, are equal; weights are equal when
    their bits are, so that NaN equals itself and -0.0 is not 0.0. A sample is compared with the one before first, which
    stops at the first difference; only the first of each run of equal samples is hashed, found in a table and compared
    with the sample that it was found to equal. Where hashes collide, those that differ are grouped anew among
    themselves until none does. So neighbours that repeat cost one look at their values; the global interpreter lock is
    given up meanwhile.

    Args:
        features: lists of n samples each, of ids, with weights or without.

    Returns:
        Representatives, inverse and hashes: arrays of NumPy or of torch, as the features'.

    Raises:
        DataError: no feature, or features of different numbers of samples.
    """
    if not features:
        raise DataError("a group of no features has no lists to compare: name at least one feature")
    counts = [len(lists) for lists in features]
    if len(set(counts)) > 1:
        raise DataError(f"features of one group have {counts} lists: each needs one for each sample")
    if not isinstance(features[0].values, Tensor):
        return _distinct_by_loops(features)
    if features[0].values.device.type != "cpu":
        return distinct_by_pytorch(features)
    found = _distinct_by_loops([lists.to_numpy() for lists in features])
    return DistinctLists(*map(torch.from_numpy, found))


def hash_lists(columns: Sequence[Jagged[npt.NDArray[Any]]], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """[m] hashes of what the samples `rows` [m] hold in several columns of integers, lengths included."""
    hashes = np.zeros(len(rows), np.uint64)
    for column in columns:
        mix_lists(column.offsets, column.values, rows, hashes)
    return hashes


def _distinct_by_loops(features: Sequence[Jagged[npt.NDArray[Any]]]) -> DistinctLists[npt.NDArray[Any]]:
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


FACTOR = 0x3C6EF372FE94F82B
"""Odd, bits well mixed: product with it spreads a value's low bits."""

SHIFT = 29
"""Bits by which the high half of a product comes back to the low half."""


def distinct_by_pytorch(features: Sequence[Jagged[Tensor]]) -> DistinctLists[Tensor]:
    """`distinct_lists` with PyTorch's operations alone, on any device."""
    columns = []
    for lists in features:
        columns.append(lists)
        if lists.weights is not None:
            integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[lists.weights.element_size()]
            bits = lists.weights.detach().contiguous().view(integers)
            columns.append(Jagged(bits, lists.offsets))
    hashes = hash_by_pytorch(columns)
    samples = torch.arange(len(hashes), device=hashes.device)
    leaders = _first_of_hash_by_pytorch(hashes, samples)
    unsettled = _unequal_by_pytorch(columns, leaders).nonzero().view(-1)
    while len(unsettled):
        leaders[unsettled] = _first_of_hash_by_pytorch(hashes[unsettled], unsettled)
        unsettled = unsettled[_unequal_by_pytorch(columns, leaders)[unsettled]]
    leads = leaders == samples
    representatives = leads.nonzero().view(-1)
    return DistinctLists(representatives, (leads.cumsum(0) - 1)[leaders], hashes[representatives])


def hash_by_pytorch(columns: Sequence[Jagged[Tensor]]) -> Tensor:
    """[n] int64: of each list the sum, which has no order to wait for, of its values mixed with their places."""
    hashes = torch.zeros(len(columns[0]), dtype=torch.int64, device=columns[0].offsets.device)
    for column in columns:
        rows, positions = column.rows, _positions(column)
        values = column.values[int(column.offsets[0]) : int(column.offsets[-1])].long()
        sums = torch.zeros_like(hashes).index_add_(0, rows, _mix(_mix(values) + positions * FACTOR))
        hashes = _mix(_mix(hashes + column.lengths) ^ sums)
    return hashes


def _positions(column: Jagged[Tensor]) -> Tensor:
    """Of every value its place in its list."""
    places = torch.arange(int(column.offsets[0]), int(column.offsets[-1]), device=column.offsets.device)
    return places - column.offsets[:-1].long()[column.rows]


def _first_of_hash_by_pytorch(hashes: Tensor, samples: Tensor) -> Tensor:
    """[m] the first of the samples that has the same hash."""
    distinct, kinds = torch.unique(hashes, return_inverse=True)
    last = torch.iinfo(samples.dtype).max
    first = samples.new_full((len(distinct),), last).scatter_reduce_(0, kinds, samples, "amin")
    return first[kinds]


def _unequal_by_pytorch(columns: Sequence[Jagged[Tensor]], leaders: Tensor) -> Tensor:
    """[n] whether a sample is not its leader's equal."""
    unequal = torch.zeros_like(leaders, dtype=torch.bool)
    for column in columns:
        unequal |= column.lengths != column.lengths[leaders]
    for column in columns:
        starts, rows, positions = column.offsets[:-1].long(), column.rows, _positions(column)
        comparable = ~unequal[rows]
        rows, positions = rows[comparable], positions[comparable]
        own = column.values[starts[rows] + positions]
        others = column.values[starts[leaders[rows]] + positions]
        unequal[rows[own != others]] = True
    return unequal


def _mix(values: Tensor) -> Tensor:
    values = values * FACTOR
    return values ^ (values >> SHIFT)
