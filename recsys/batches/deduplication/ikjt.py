"""Inverse keyed jagged tensors: lists that repeat from sample to sample, held once each; and lists that shift or grow.

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

Its partial variant holds lists that shift or grow as windows into one array in which each value stands once. A history
of the last 3 items, and one of all items so far::

    lists    [1 2 3] [2 3 4] [2 3 4] [4 5]         [1] [1 2] [1 2 3]
    values   1 2 3 4 5                             1 2 3
    starts   0 1 1 3                               0 0 0
    lengths  3 3 3 2                               1 2 3

Rows are looked up for `values`, once each; a sample's rows are those of its window.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from windrow.comm.errors import DataError

if TYPE_CHECKING:
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

__all__ = [
    "InverseKeyedJaggedTensor",
    "PartialLists",
    "list_positions",
    "pack_windows",
    "places_of",
    "renumber",
    "renumber_by_pytorch",
    "select_by_pytorch",
    "select_lists",
]


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
    from windrow.recsys.batches.deduplication.ikjt_kernels import pack_lists

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


def places_of(jagged: "KeyedJaggedTensor", features: Sequence[str]) -> list[int]:
    """Where features stand among a jagged tensor's keys.

    Args:
        jagged: every feature has the same number of samples.
        features: names.

    Returns:
        A place for each name.

    Raises:
        DataError: a name is not among the keys, is among them twice, or comes twice, or samples differ in number.
    """
    if jagged.variable_stride_per_key():
        raise DataError(
            "features have different numbers of samples: convert them with from_variable_batch first"
        )
    keys: list[str] = jagged.keys()
    for feature in features:
        if keys.count(feature) != 1 or features.count(feature) != 1:
            raise DataError(
                f"feature {feature!r} is {keys.count(feature)} times among the keys {', '.join(keys)}, and "
                f"{features.count(feature)} times in {', '.join(features)}: it must be once in each"
            )
    return [keys.index(feature) for feature in features]


def select_lists(jagged: "KeyedJaggedTensor", features: Sequence[str], rows: Tensor) -> "KeyedJaggedTensor":
    """Copy some samples of some features, in any order and any number of times.

    Args:
        jagged: F features of B samples.
        features: f of its keys, in the result's order.
        rows: [n] int64 on its device, 0 <= rows < B, not checked: which sample comes first, second and so on.

    Returns:
        f features of n samples; types, device and whether there are weights as before, memory of its own.

    Raises:
        DataError: as `places_of`.
    """
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

    places, num_rows = places_of(jagged, features), int(jagged.stride())
    select = _select_by_loops if jagged.values().device.type == "cpu" else select_by_pytorch
    values, weights, lengths = select(
        jagged.offsets().detach(), jagged.values().detach(), jagged.weights_or_none(), num_rows, places, rows
    )
    return KeyedJaggedTensor(
        keys=list(features), values=values, weights=weights, lengths=lengths, stride=len(rows)
    )


def _select_by_loops(
    offsets: Tensor,
    values: Tensor,
    weights: Tensor | None,
    num_rows: int,
    places: Sequence[int],
    rows: Tensor,
) -> tuple[Tensor, Tensor | None, Tensor]:
    from windrow.recsys.batches.deduplication.ikjt_kernels import copy_lists, selected_lengths

    bounds, features, chosen = offsets.numpy(), np.array(places, np.int64), rows.numpy()
    lengths = np.empty(len(features) * len(chosen), bounds.dtype)
    total = selected_lengths(bounds, num_rows, features, chosen, lengths)

    def copied(column: Tensor) -> Tensor:
        source = column.detach().contiguous().numpy()
        out = np.empty(total, source.dtype)
        copy_lists(bounds, source, num_rows, features, chosen, out)
        return torch.from_numpy(out)

    return copied(values), None if weights is None else copied(weights), torch.from_numpy(lengths)


def select_by_pytorch(
    offsets: Tensor,
    values: Tensor,
    weights: Tensor | None,
    num_rows: int,
    places: Sequence[int],
    rows: Tensor,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Do the same with PyTorch's operations, on any device.

    Args:
        offsets: [F * num_rows + 1] where lists begin.
        values: of all lists.
        weights: of all values, or None.
        num_rows: B.
        places: f features.
        rows: [n] int64 samples.

    Returns:
        Values, weights and lengths of the f * n lists.
    """
    chosen = torch.cat([rows + place * num_rows for place in places])
    starts = offsets[:-1].index_select(0, chosen)
    lengths = offsets[1:].index_select(0, chosen) - starts
    positions = list_positions(starts, lengths)
    return (
        values.index_select(0, positions),
        None if weights is None else weights.detach().index_select(0, positions),
        lengths,
    )


def list_positions(starts: Tensor, lengths: Tensor) -> Tensor:
    """Positions of the values of lists, list after list.

    Args:
        starts: [n] integers where each begins.
        lengths: [n] integers.

    Returns:
        [sum of lengths] int64, on the same device.
    """
    ends = lengths.long().cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    shifts = (starts.long() - ends + lengths).repeat_interleave(lengths, output_size=total)
    return torch.arange(total, device=starts.device) + shifts


def renumber(numbers: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Number what comes in a sequence in the order in which it first comes: 5 5 2 5 is 0 0 1 0 of 5 2.

    Args:
        numbers: [n] int64, 0 <= numbers < limit.
        limit: above all numbers.

    Returns:
        The distinct numbers [U] in order of their first, and the place of each among them [n]; int64, same device.

    Cost:
        CPU: one pass over the numbers and one over the limit. Other devices: a sort of the distinct numbers.
    """
    if numbers.device.type == "cpu":
        from windrow.recsys.batches.deduplication.ikjt_kernels import number_by_first

        source = numbers.contiguous().numpy()
        places = torch.full((limit,), -1, dtype=torch.int64)
        distinct = torch.empty(min(limit, len(source)), dtype=torch.int64)
        renumbered = torch.empty(len(source), dtype=torch.int64)
        count = number_by_first(source, places.numpy(), distinct.numpy(), renumbered.numpy())
        return distinct[:count].clone(), renumbered
    return renumber_by_pytorch(numbers, limit)


def renumber_by_pytorch(numbers: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Do the same with PyTorch's operations, on any device.

    Args:
        numbers: [n] int64, 0 <= numbers < limit.
        limit: above all numbers.

    Returns:
        As `renumber`.
    """
    absent = len(numbers)
    order = torch.arange(absent, device=numbers.device)
    first = numbers.new_full((limit,), absent).scatter_reduce_(0, numbers, order, "amin")
    ordered, distinct = first.sort(stable=True)
    distinct = distinct[: int((ordered < absent).sum())]
    places = numbers.new_empty(limit)
    places[distinct] = torch.arange(len(distinct), device=numbers.device)
    return distinct, places[numbers]
