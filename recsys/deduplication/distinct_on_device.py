"""Which samples have equal lists, found by PyTorch's operations alone: for GPUs.

The steps of `windrow.recsys.deduplication.distinct_lists`, without the look at neighbours: hash, take equal hashes for
equal samples, compare each with the first of its hash, and group what differs anew.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["DeviceColumn", "distinct_on_device", "hash_on_device"]

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
    leaders = _first_of_hash(hashes, samples)
    unsettled = _unequal(columns, leaders).nonzero().view(-1)
    # All samples that equal a leader find it in the same round, so whoever leads the rest is the first of its kind.
    while len(unsettled):
        leaders[unsettled] = _first_of_hash(hashes[unsettled], unsettled)
        unsettled = unsettled[_unequal(columns, leaders)[unsettled]]
    leads = leaders == samples
    return leads.nonzero().view(-1), (leads.cumsum(0) - 1)[leaders]


def _first_of_hash(hashes: Tensor, samples: Tensor) -> Tensor:
    """[m] the first of the samples that has the same hash."""
    distinct, kinds = torch.unique(hashes, return_inverse=True)
    last = torch.iinfo(samples.dtype).max
    first = samples.new_full((len(distinct),), last).scatter_reduce_(0, kinds, samples, "amin")
    return first[kinds]


def _unequal(columns: Sequence[DeviceColumn], leaders: Tensor) -> Tensor:
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
