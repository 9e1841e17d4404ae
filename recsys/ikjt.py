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

from windrow.comm.errors import DataError
from windrow.recsys.deduplication.renumber import renumber
from windrow.recsys.deduplication.select_lists import select_lists

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

    @property
    def num_bytes(self) -> int:
        """Of values, weights, lengths and the inverse."""
        tensors = (self.unique.values(), self.unique.weights_or_none(), self.unique.lengths(), self.inverse)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def expand(self) -> "KeyedJaggedTensor":
        """Give each sample its lists.

        Returns:
            Features of the group for B samples, in memory of their own; what was deduplicated, bit for bit.
        """
        return select_lists(self.unique, self.keys, self.inverse)

    def slice(self, start: int, stop: int) -> "InverseKeyedJaggedTensor":
        """Cut samples out.

        Args:
            start: the first sample, 0 <= start <= stop.
            stop: behind the last, at most B.

        Returns:
            Samples ``start .. stop - 1``, with the rows that they have, numbered anew in the order in which these
            samples first have them. No list is compared.

        Raises:
            DataError: samples that are not there.
        """
        if not 0 <= start <= stop <= self.num_samples:
            raise DataError(f"samples {start} to {stop} of {self.num_samples}: ask for some that are there")
        rows, inverse = renumber(self.inverse[start:stop], self.num_unique)
        return InverseKeyedJaggedTensor(select_lists(self.unique, self.keys, rows), inverse)

    def to(self, device: torch.device, *, non_blocking: bool = False) -> "InverseKeyedJaggedTensor":
        """The same on a device; with `non_blocking` a copy to the CPU may not be there yet, as in PyTorch."""
        return InverseKeyedJaggedTensor(
            self.unique.to(device, non_blocking=non_blocking),
            self.inverse.to(device, non_blocking=non_blocking),
        )

    def pin_memory(self) -> "InverseKeyedJaggedTensor":
        """The same in memory that a GPU copies from while the processor goes on."""
        return InverseKeyedJaggedTensor(self.unique.pin_memory(), self.inverse.pin_memory())
