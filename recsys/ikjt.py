"""Inverse keyed jagged tensors: lists that repeat from sample to sample, held once each.

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
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

__all__ = ["InverseKeyedJaggedTensor"]


@dataclass(frozen=True, slots=True)
class InverseKeyedJaggedTensor:
    """The distinct rows of a group of features, and which of them each sample has.

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

    def to(self, device: torch.device, *, non_blocking: bool = True) -> "InverseKeyedJaggedTensor":
        """The same on a device."""
        return InverseKeyedJaggedTensor(
            self.unique.to(device, non_blocking=non_blocking),
            self.inverse.to(device, non_blocking=non_blocking),
        )
