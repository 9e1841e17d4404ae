"""Lists that shift or grow from sample to sample, as windows into one array in which each value stands once.

A history of the last 3 items, and one of all items so far::

    lists    [1 2 3] [2 3 4] [2 3 4] [4 5]         [1] [1 2] [1 2 3]
    values   1 2 3 4 5                             1 2 3
    starts   0 1 1 3                               0 0 0
    lengths  3 3 3 2                               1 2 3

This is the partial variant of RecD's inverse keyed jagged tensor (Zhao et al., RecD: Deduplication for End-to-End Deep
Learning Recommendation Model Training Infrastructure, MLSys 2023, arXiv 2211.05239). Rows are looked up for `values`,
once each; a sample's rows are those of its window.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.recsys.deduplication.select_lists import list_positions

__all__ = ["PartialLists", "pack_windows"]


@dataclass(frozen=True, slots=True)
class PartialLists:
    """One feature of B samples: windows into packed values.

    Attributes:
        values: [V'] int64, of all windows.
        starts: [B] int64 where each sample's window begins.
        lengths: [B] int64 how long it is.
    """

    values: Tensor
    starts: Tensor
    lengths: Tensor

    @property
    def num_bytes(self) -> int:
        """Of all tensors."""
        return self.values.nbytes + self.starts.nbytes + self.lengths.nbytes

    def to(self, device: torch.device, *, non_blocking: bool = False) -> "PartialLists":
        """The same on a device; with `non_blocking` a copy to the CPU may not be there yet, as in PyTorch."""
        return PartialLists(
            self.values.to(device, non_blocking=non_blocking),
            self.starts.to(device, non_blocking=non_blocking),
            self.lengths.to(device, non_blocking=non_blocking),
        )

    def expand(self) -> Tensor:
        """Give each sample its ids.

        Returns:
            [sum of lengths] int64 ids, list after list.
        """
        return self.values.index_select(0, list_positions(self.starts, self.lengths))

    def expand_rows(self, rows: Tensor) -> Tensor:
        """Give each sample the rows of its ids.

        Args:
            rows: [V', d] looked up for `values`.

        Returns:
            [sum of lengths, d], list after list, differentiable in `rows`: gradients of windows that overlap add up.

        Raises:
            DataError: not as many rows as values.
        """
        if len(rows) != len(self.values):
            raise DataError(f"{len(rows)} rows for {len(self.values)} packed values: give one for each")
        return rows.index_select(0, list_positions(self.starts, self.lengths))


def pack_windows(offsets: Tensor, values: Tensor, *, newest_first: bool = False) -> PartialLists:
    """Pack the lists of one feature, in the order of samples.

    A list that equals the one before has its window. Any other is looked for, by the failure function of Knuth, Morris
    and Pratt, in the last values packed: as many as it or the list before has, whichever is longer. Where it stands
    there whole, its window is the first such place. Else it begins at the longest beginning of it that is also the end
    of the packed values, and only the rest is added.

    Args:
        offsets: [B + 1] int32 or int64 on the CPU: sample i has ``values[offsets[i]:offsets[i + 1]]``.
        values: int64 ids on the CPU.
        newest_first: lists grow at their beginning, as [1] [2 1] [3 2 1] do, instead of at their end.

    Returns:
        Windows whose `PartialLists.expand` is the input. They have no weights.

    Cost:
        Each id is compared a bounded number of times, whatever repeats.
    """
    from windrow.recsys.deduplication.partial_kernels import pack_lists

    bounds = offsets.numpy()
    lengths = np.diff(bounds).astype(np.int64)
    packed = np.empty(int(lengths.sum()), np.int64)
    starts = np.empty(len(lengths), np.int64)
    failures = np.empty(int(lengths.max(initial=0)), np.int64)
    step = -1 if newest_first else 1
    total = pack_lists(bounds, values.contiguous().numpy(), step, failures, packed, starts)
    kept = packed[:total].copy()
    if newest_first:
        kept, starts = kept[::-1].copy(), total - starts - lengths
    return PartialLists(torch.from_numpy(kept), torch.from_numpy(starts), torch.from_numpy(lengths))
