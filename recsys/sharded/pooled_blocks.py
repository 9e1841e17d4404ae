"""Which memory of a minibatch's pooled vectors is whose: the blocks that owners and ranks exchange.

What an owner looked up for a rank is one block, band after band (`windrow.recsys.sharded.layout.Band`)::

    owner's output   columns of group 0   columns of group 1            message to rank 1
      rank 0         3 rows               2 rows
      rank 1         4 rows        ->     1 row, 3 of padding     ->    4 rows of the one, then 1 of the other

Buffers are used again at every step: large new memory takes the system as long to hand out as to fill.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.recsys.sharded.layout import Layout, OwnerLayout

__all__ = ["Borrowed", "Buffers", "PooledBlocks", "copy_bands", "count_rows"]


class Buffers:
    """Flat float32 buffers that nobody uses at the moment.

    Args:
        device: of the buffers.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: list[Tensor] = []

    def take(self, shapes: Sequence[tuple[int, int]]) -> tuple[Tensor, list[Tensor]]:
        """Borrow memory for some matrices.

        Args:
            shapes: rows and columns of each.

        Returns:
            What to `give` back when the matrices are needed no more, and the matrices, whose values are undefined.
        """
        sizes = [rows * columns for rows, columns in shapes]
        needed = sum(sizes)
        fitting = [buffer for buffer in self._free if buffer.numel() >= needed]
        if fitting:
            chosen = min(fitting, key=Tensor.numel)
            self._free = [buffer for buffer in self._free if buffer is not chosen]
        else:
            # It takes the place of one that is too small, so that buffers do not pile up.
            self._free = sorted(self._free, key=Tensor.numel)[1:]
            # What is made in inference mode could not be written to outside of it, by the next training step.
            with torch.inference_mode(mode=False):
                chosen = torch.empty(needed, device=self._device)
        parts = chosen[:needed].split(sizes)
        return chosen, [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    def give(self, buffer: Tensor) -> None:
        """Give borrowed memory back."""
        self._free.append(buffer)


Borrowed = tuple[Tensor, list[Tensor], list[list[Tensor]]]
"""What to give back to the buffers, a message for each rank, and the bands in each: the same memory three times."""

Shape = tuple[int, int]


class PooledBlocks:
    """The blocks of one minibatch, seen from one rank.

    Args:
        layout: the same on every rank.
        rank: this one.
        num_rows: [ranks, groups] rows of each rank.
        buffers: lend memory for messages.
        device: of vectors.
    """

    def __init__(
        self,
        layout: Layout,
        rank: int,
        num_rows: npt.NDArray[np.int64],
        *,
        buffers: Buffers,
        device: torch.device,
    ) -> None:
        self._layout = layout
        self._rank = rank
        self._owner = layout.owners[rank]
        self._num_rows = num_rows
        self._buffers = buffers
        self._device = device

    def output_shapes(self) -> list[Shape]:
        """Of what this owner looks up for all ranks, batch by batch."""
        return [
            (sum(_bags(self._num_rows, batch.groups)), batch.columns[1] - batch.columns[0])
            for batch in self._owner.batches
        ]

    def replicated_shapes(self) -> list[Shape]:
        """Of what this rank looks up in the tables that every rank holds, batch by batch."""
        mine = self._num_rows[self._rank : self._rank + 1]
        return [
            (_bags(mine, batch.groups)[0], batch.columns[1] - batch.columns[0])
            for batch in self._layout.replicated.batches
        ]

    def of_ranks(self, outputs: Sequence[Tensor]) -> list[list[Tensor]]:
        """For each rank the bands of this owner's outputs that are its rows: views."""
        starts = [
            list(accumulate(_bags(self._num_rows, batch.groups), initial=0)) for batch in self._owner.batches
        ]
        return [
            _bands(outputs, self._owner, [of_batch[rank] for of_batch in starts], rows)
            for rank, rows in enumerate(self._num_rows)
        ]

    def at_home(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """The bands of the outputs of replicated tables, which have the rows of this rank alone: views."""
        replicated = self._layout.replicated
        return _bands(outputs, replicated, [0] * len(replicated.batches), self._num_rows[self._rank])

    def matrices(self, widths: Sequence[int]) -> list[Tensor]:
        """For each group [rows of this rank, its width], to be filled; no rows where there are no columns."""
        rows: list[int] = self._num_rows[self._rank].tolist()
        return [
            torch.empty(count if width else 0, width, device=self._device)
            for count, width in zip(rows, widths, strict=True)
        ]

    def in_one_message(self, blocks: Sequence[Sequence[Tensor]]) -> list[Tensor] | None:
        """For each rank its block, where this owner has but one band; None where bands have to be joined."""
        if len(self._owner.bands) > 1:
            return None
        nothing = torch.empty(0, device=self._device)
        return [bands[0] if bands else nothing for bands in blocks]

    def borrow_for_home(self) -> Borrowed:
        """Memory for what each owner has to do with this rank's rows; none for this rank's own, which stay."""
        rows = self._num_rows[self._rank]
        return self._borrow(
            [
                [] if number == self._rank else _shapes(owner, rows)
                for number, owner in enumerate(self._layout.owners)
            ]
        )

    def borrow_for_ranks(self) -> Borrowed:
        """Memory for what this owner has to do with each rank's rows; none for this rank's own, which stay."""
        return self._borrow(
            [
                [] if number == self._rank else _shapes(self._owner, rows)
                for number, rows in enumerate(self._num_rows)
            ]
        )

    def _borrow(self, shapes: Sequence[Sequence[Shape]]) -> Borrowed:
        buffer, matrices = self._buffers.take([shape for of_rank in shapes for shape in of_rank])
        sizes = [sum(rows * columns for rows, columns in of_rank) for of_rank in shapes]
        messages = list(buffer[: sum(sizes)].split(sizes))
        remaining = iter(matrices)
        return buffer, messages, [[next(remaining) for _ in of_rank] for of_rank in shapes]


def copy_bands(sources: Sequence[Sequence[Tensor]], targets: Sequence[Sequence[Tensor]]) -> None:
    """Copy the bands of every rank but this one, of which one of the two has none."""
    for of_source, of_target in zip(sources, targets, strict=True):
        for source, target in zip(of_source, of_target, strict=False):
            target.copy_(source)


def count_rows(blocks: Sequence[Sequence[Tensor]]) -> list[int]:
    """Rows of all bands of each rank."""
    return [sum(len(band) for band in bands) for bands in blocks]


def _bags(num_rows: npt.NDArray[np.int64], groups: Sequence[int]) -> list[int]:
    """Bags of each rank in a batch: as many as the largest of its groups has rows."""
    found: list[int] = num_rows[:, list(groups)].max(axis=1).tolist()
    return found


def _bands(
    outputs: Sequence[Tensor], owner: OwnerLayout, starts: Sequence[int], rows: npt.NDArray[np.int64]
) -> list[Tensor]:
    """Views of one rank's rows of each group in an owner's outputs, which begin there in each batch, band by band."""
    found = []
    for band, (count, width) in zip(owner.bands, _shapes(owner, rows), strict=True):
        first, start = band.columns[0] - owner.batches[band.batch].columns[0], starts[band.batch]
        found.append(outputs[band.batch][start : start + count, first : first + width])
    return found


def _shapes(owner: OwnerLayout, rows: npt.NDArray[np.int64]) -> list[Shape]:
    return [(int(rows[band.group]), band.width) for band in owner.bands]
