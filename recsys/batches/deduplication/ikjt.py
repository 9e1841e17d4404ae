"""Inverse keyed jagged tensors: lists of a group of features that repeat from sample to sample, held once each.

A group of features that change together, 5 samples, 3 of which differ in the group::

                 sample 0   sample 1   sample 2   sample 3   sample 4
    cart         [7, 3]     [7, 3]     []         [7, 3]     [4]
    sellers      [1, 1]     [1, 1]     []         [1, 1]     [9]

                 row 0      row 1      row 2
    cart         [7, 3]     []         [4]        values  7 3 4 1 1 9
    sellers      [1, 1]     []         [9]        lengths 2 0 1 2 0 1      features first, rows second

    inverse      0 0 1 0 2                        sample 3 has row 0

Rows stand in the order in which samples first have them. Two samples share a row when all features of the group (and
their weights) are equal, empty lists too. This is the IKJT of RecD (Zhao et al., RecD: Deduplication for End-to-End
Deep Learning Recommendation Model Training Infrastructure, MLSys 2023, arXiv 2211.05239).

TorchRec has a variable batch, in which each feature has rows of its own number. Its container of the example is::

    keys     cart sellers
    values   7 3 4 1 1 9
    lengths  2 0 1 2 0 1               cart's three rows, then sellers'
    stride_per_key_per_rank [[3] [3]]  rows of each feature
    inverse_indices ([cart sellers], [[0 0 1 0 2] [0 0 1 0 2]])    row of each sample, for each feature
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.recsys.batches.deduplication.distinct_lists import distinct_lists
from windrow.recsys.batches.jagged import Deduplicated, Jagged, check_inverse, jagged_of, keyed, side_by_side

if TYPE_CHECKING:
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

__all__ = ["InverseKeyedJaggedTensor", "deduplicate", "from_variable_batch"]


@dataclass(frozen=True, slots=True)
class InverseKeyedJaggedTensor:
    """The distinct rows of a group of features, and which of them each sample has: `Deduplicated` with names.

    Attributes:
        unique: the U distinct rows: lists of every feature of the group, TorchRec's container of stride U.
        inverse: [B] int64 row of each sample, 0 <= inverse < U; every row is some sample's.
    """

    unique: "KeyedJaggedTensor"
    inverse: Tensor

    @property
    def keys(self) -> tuple[str, ...]:
        """Features of the group."""
        return tuple(self.unique.keys())

    @property
    def num_samples(self) -> int:
        """B."""
        return len(self.inverse)

    @property
    def num_unique(self) -> int:
        """U; 0 where there are no samples."""
        return int(self.unique.stride())

    def expand(self) -> "KeyedJaggedTensor":
        """Give each sample its lists.

        Returns:
            Features of the group for B samples, in memory of their own; what was deduplicated, bit for bit.
        """
        lists = Deduplicated(jagged_of(self.unique), self.inverse, len(self.keys)).expand()
        return keyed(self.keys, lists.values, lists.lengths, lists.weights, num_samples=self.num_samples)

    def to(self, device: torch.device, *, non_blocking: bool = False) -> "InverseKeyedJaggedTensor":
        """The same on a device; with `non_blocking` a copy to the CPU may not be there yet, as in PyTorch."""
        return InverseKeyedJaggedTensor(
            self.unique.to(device, non_blocking=non_blocking), self.inverse.to(device, non_blocking=non_blocking)
        )


def deduplicate(jagged: "KeyedJaggedTensor", group: Sequence[str]) -> InverseKeyedJaggedTensor:
    """Hold the lists of a group of features once each.

    Args:
        jagged: F features of B samples, on any device; those that are not in the group are left out.
        group: names of features, at least one.

    Returns:
        Distinct rows in the order in which samples first have them, features in the order of the group. Its
        `InverseKeyedJaggedTensor.expand` is the input, restricted to the group.

    Raises:
        DataError: the group is empty, names a feature twice or one that is not there, or features have different
            numbers of samples.

    Cost:
        `distinct_lists`, then one copy of the distinct lists. From other devices ids are copied to the CPU first, where
        equal ones are found.
    """
    if jagged.variable_stride_per_key():
        raise DataError("features have different numbers of samples: convert them with from_variable_batch first")
    keys: list[str] = jagged.keys()
    for feature in group:
        if keys.count(feature) != 1 or group.count(feature) != 1:
            raise DataError(
                f"feature {feature!r} is {keys.count(feature)} times among the keys {', '.join(keys)}, and "
                f"{group.count(feature)} times in {', '.join(group)}: it must be once in each"
            )
    device = jagged.device()
    lists = jagged_of(jagged if device.type == "cpu" else jagged.to(torch.device("cpu"))).to_numpy()
    num_samples = int(jagged.stride())
    firsts = [keys.index(feature) * num_samples for feature in group]
    bounds = [lists.offsets[first : first + num_samples + 1] for first in firsts]
    rows, inverse, _ = distinct_lists([Jagged(lists.values, bound, lists.weights) for bound in bounds])
    unique = lists.select(np.concatenate([rows + first for first in firsts])).to_torch()
    container = keyed(group, unique.values, unique.lengths, unique.weights, num_samples=len(rows))
    return InverseKeyedJaggedTensor(container, torch.from_numpy(inverse)).to(device)


def from_variable_batch(
    jagged: "KeyedJaggedTensor", groups: Sequence[Sequence[str]]
) -> tuple[InverseKeyedJaggedTensor, ...]:
    """Make groups of distinct rows of TorchRec's container.

    Args:
        jagged: of one rank's samples, with ``inverse_indices``; rows may be equal, in any order, or of no sample.
        groups: features of each group.

    Returns:
        What `deduplicate` gives of the expanded input, for each group.

    Raises:
        DataError: no ``inverse_indices``, or some that name rows which are not there; rows of several ranks; or a
            feature that is not there.
    """
    indices, strides = jagged.inverse_indices_or_none(), jagged.stride_per_key_per_rank()
    if indices is None or any(len(of_ranks) != 1 for of_ranks in strides) or not {*indices[0]} & {*jagged.keys()}:
        raise DataError(
            "rows without inverse_indices, or of several ranks: give what one rank made, or use deduplicate"
        )
    inverse_of = dict(zip(*indices, strict=True))
    num_samples, lists = indices[1].shape[1], jagged.to_dict()
    expanded = []
    for feature, (num_rows,) in zip(jagged.keys(), strides, strict=True):
        if feature in inverse_of:
            inverse = inverse_of[feature].contiguous()
            check_inverse(inverse, num_unique=num_rows, num_samples=num_samples, name=f"feature {feature!r}")
            unique = lists[feature]
            rows = keyed([feature], unique.values(), unique.lengths(), unique.weights_or_none(), num_samples=num_rows)
            expanded.append(InverseKeyedJaggedTensor(rows, inverse).expand())
    together = side_by_side(expanded)
    return tuple(deduplicate(together, group) for group in groups)
