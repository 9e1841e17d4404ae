"""Which samples have equal lists in all features of a group: exact, in one or two passes over the values.

On CPUs compiled loops look at neighbours first. Elsewhere PyTorch's operations alone do the other steps: hash, take
equal hashes for equal samples, compare each with the first of its hash, and group what differs anew.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.recsys.batches.deduplication.distinct_lists_kernels import (
    find_leaders,
    mark_other_lengths,
    mark_other_values,
    mark_unequal,
    mix_lists,
    number_runs,
    starts_of_runs,
)

__all__ = [
    "DeviceColumn",
    "DistinctLists",
    "HashLists",
    "distinct_lists",
    "distinct_on_device",
    "hash_lists",
    "hash_on_device",
]

Column = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""Offsets and integers."""

SLOTS_PER_RUN = 2
"""At least so many slots of the table of hashes for each run: with half of them free, few are looked at in vain."""


class DistinctLists(NamedTuple):
    """The distinct samples of a group of features, in the order in which they first come.

    Attributes:
        representatives: [U] int64, the first sample of each, increasing.
        inverse: [n] int64, 0 <= inverse < U, which of them each sample equals.
        hashes: [U] uint64 of each, as `hash_lists` has them.
    """

    representatives: npt.NDArray[np.int64]
    inverse: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]


HashLists = Callable[[Sequence[Column], npt.NDArray[np.int64]], npt.NDArray[np.uint64]]
"""``hash(columns, rows [m]) -> [m]``: equal for equal samples, in memory that may be written to."""


def hash_lists(
    columns: Sequence[tuple[npt.NDArray[Any], npt.NDArray[Any]]], rows: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint64]:
    """Hash what samples hold in several columns, lengths included.

    Args:
        columns: offsets [n + 1] and integers of each.
        rows: [m] samples.

    Returns:
        [m] hashes, the same in every process.
    """
    hashes = np.zeros(len(rows), np.uint64)
    for offsets, values in columns:
        mix_lists(offsets, values, rows, hashes)
    return hashes


def distinct_lists(
    offsets: Sequence[npt.NDArray[np.integer[Any]]],
    values: Sequence[npt.NDArray[np.int64]],
    weights: Sequence[npt.NDArray[np.float32] | None],
    *,
    hashing: HashLists = hash_lists,
) -> DistinctLists:
    """Find the distinct samples of a group of features.

    Two samples are the same when the lists of every feature, and their weights, are equal; weights are equal when
    their bits are, so that NaN equals itself and -0.0 is not 0.0. A sample is compared with the one before first, which
    stops at the first difference; only the first of each run of equal samples is hashed, found in a table and compared
    with the sample that it was found to equal. Where hashes collide, those that differ are grouped anew among
    themselves until none does. So neighbours that repeat cost one look at their values; the global interpreter lock is
    given up meanwhile.

    Args:
        offsets: for each feature [n + 1] integers, not decreasing: its list of sample i is
            ``values[offsets[i]:offsets[i + 1]]``. The first need not be 0.
        values: for each feature its ids.
        weights: for each feature a weight for each of its `values`, or None.
        hashing: how samples are hashed; what it gives has no influence on the result.

    Returns:
        Representatives, inverse and hashes.

    Raises:
        DataError: no feature, or features of different numbers of samples.
    """
    if not offsets:
        raise DataError("a group of no features has no lists to compare: name at least one feature")
    if len({len(bounds) for bounds in offsets}) > 1:
        counts = [len(bounds) - 1 for bounds in offsets]
        raise DataError(f"features of one group have {counts} lists: each needs one for each sample")
    num_samples = len(offsets[0]) - 1
    columns: list[Column] = []
    for bounds, ids, numbers_of_ids in zip(offsets, values, weights, strict=True):
        columns.append((bounds, ids))
        if numbers_of_ids is not None:
            columns.append((bounds, numbers_of_ids.view(f"i{numbers_of_ids.itemsize}")))
    begins, buffer = np.zeros(num_samples, np.bool_), np.empty(num_samples + 1, np.int64)
    begins[:1] = True
    for bounds in offsets:
        mark_other_lengths(bounds, begins)
    stretches = buffer[: starts_of_runs(begins, buffer) + 1]
    for bounds, integers in columns:
        mark_other_values(bounds, integers, stretches, begins)
    num_runs = starts_of_runs(begins, buffer)
    starts = buffer[:num_runs]
    hashes = hashing(columns, starts)
    leaders = _leaders(columns, starts, hashes)
    numbers, representatives = np.empty(num_runs, np.int64), np.empty(num_runs + 1, np.int64)
    inverse = np.empty(num_samples, np.int64)
    num_unique = number_runs(starts, leaders, begins, numbers, representatives, hashes, inverse)
    return DistinctLists(representatives[:num_unique].copy(), inverse, hashes[:num_unique].copy())


def _leaders(
    columns: Sequence[Column], rows: npt.NDArray[np.int64], hashes: npt.NDArray[np.uint64]
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
    columns: Sequence[Column], rows: npt.NDArray[np.int64], leaders: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    unequal = np.zeros(len(rows), np.bool_)
    for bounds, integers in columns:
        mark_unequal(bounds, integers, rows, rows[leaders], unequal)
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


@dataclass(frozen=True, slots=True)
class DeviceColumn:
    """Integers of all samples in one feature: its ids, or the bits of its weights.

    Attributes:
        offsets: [n + 1] integers: sample i has ``values[offsets[i]:offsets[i + 1]]``.
        values: integers.
    """

    offsets: Tensor
    values: Tensor

    @property
    def starts(self) -> Tensor:
        """[n] int64."""
        return self.offsets[:-1].long()

    @property
    def lengths(self) -> Tensor:
        """[n] int64."""
        return self.offsets.diff().long()

    def rows_and_positions(self) -> tuple[Tensor, Tensor]:
        """Of every value: its sample, and its place in the sample's list."""
        first, total = int(self.offsets[0]), int(self.offsets[-1] - self.offsets[0])
        samples = torch.arange(len(self.offsets) - 1, device=self.values.device)
        rows = samples.repeat_interleave(self.lengths, output_size=total)
        return rows, torch.arange(first, first + total, device=self.values.device) - self.starts[rows]


def hash_on_device(columns: Sequence[DeviceColumn]) -> Tensor:
    """Hash what each sample holds in several columns.

    Args:
        columns: of n samples each.

    Returns:
        [n] int64: of each list the sum, which has no order to wait for, of its values mixed with their places.
    """
    hashes = torch.zeros_like(columns[0].starts)
    for column in columns:
        rows, positions = column.rows_and_positions()
        values = column.values[int(column.offsets[0]) : int(column.offsets[-1])].long()
        sums = torch.zeros_like(hashes).index_add_(0, rows, _mix(_mix(values) + positions * FACTOR))
        hashes = _mix(_mix(hashes + column.lengths) ^ sums)
    return hashes


def distinct_on_device(
    columns: Sequence[DeviceColumn], *, hashing: Callable[[Sequence[DeviceColumn]], Tensor] = hash_on_device
) -> tuple[Tensor, Tensor]:
    """Find the distinct samples of a group of features.

    Args:
        columns: of n samples each, at least one, on one device.
        hashing: how samples are hashed, equal ones equally; what it gives has no influence on the result.

    Returns:
        First sample of each distinct one [U] int64, increasing, and the distinct one of each sample [n] int64.
    """
    hashes = hashing(columns)
    samples = torch.arange(len(hashes), device=hashes.device)
    leaders = _first_of_hash_on_device(hashes, samples)
    unsettled = _unequal_on_device(columns, leaders).nonzero().view(-1)
    # All samples that equal a leader find it in the same round, so whoever leads the rest is the first of its kind.
    while len(unsettled):
        leaders[unsettled] = _first_of_hash_on_device(hashes[unsettled], unsettled)
        unsettled = unsettled[_unequal_on_device(columns, leaders)[unsettled]]
    leads = leaders == samples
    return leads.nonzero().view(-1), (leads.cumsum(0) - 1)[leaders]


def _first_of_hash_on_device(hashes: Tensor, samples: Tensor) -> Tensor:
    """[m] the first of the samples that has the same hash."""
    distinct, kinds = torch.unique(hashes, return_inverse=True)
    last = torch.iinfo(samples.dtype).max
    first = samples.new_full((len(distinct),), last).scatter_reduce_(0, kinds, samples, "amin")
    return first[kinds]


def _unequal_on_device(columns: Sequence[DeviceColumn], leaders: Tensor) -> Tensor:
    """[n] whether a sample is not its leader's equal."""
    unequal = torch.zeros_like(leaders, dtype=torch.bool)
    for column in columns:
        unequal |= column.lengths != column.lengths[leaders]
    for column in columns:
        rows, positions = column.rows_and_positions()
        comparable = ~unequal[rows]
        rows, positions = rows[comparable], positions[comparable]
        own = column.values[column.starts[rows] + positions]
        others = column.values[column.starts[leaders[rows]] + positions]
        unequal[rows[own != others]] = True
    return unequal


def _mix(values: Tensor) -> Tensor:
    values = values * FACTOR
    return values ^ (values >> SHIFT)
