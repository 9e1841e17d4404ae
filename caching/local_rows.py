"""The rows that a rank owns, in one piece or in two: the first on the GPU, the rest in memory of the host.

    0 .. cut - 1     on the device: needed most, where vertices of a part stand in that order
    cut .. n - 1     page-locked memory of the host: copied to the device when needed

With a share of 1 all rows are on the device.
"""

from typing import Self

import torch
from torch import Tensor

from windrow.comm.rows import gather_rows, move_rows

__all__ = ["LocalRows"]


class LocalRows:
    """Rows in two pieces that are read as one; use `split` to make one.

    Args:
        first: [cut, ...] rows on the device that answers are wanted on.
        rest: [n - cut, ...] the rows after them, on the CPU.
    """

    def __init__(self, first: Tensor, rest: Tensor) -> None:
        assert first.dtype == rest.dtype
        assert first.shape[1:] == rest.shape[1:]
        self._first = first
        self._rest = rest

    @classmethod
    def split(cls, rows: Tensor, device: torch.device, share: float) -> Self:
        """Distribute rows over a device and the host.

        Args:
            rows: [n, ...] on the CPU or on `device`.
            device: where answers are wanted.
            share: 0 to 1, share of the rows, from the first on, that the device keeps; means nothing on a CPU, which
                keeps all rows where they are.

        Returns:
            The rows; on a CPU they share memory with `rows`.
        """
        if device.type == "cpu":
            return cls(rows, rows[:0])
        cut = int(share * len(rows))
        rest = rows[cut:].cpu()
        return cls(rows[:cut].to(device), rest.pin_memory() if len(rest) > 0 else rest)

    def __len__(self) -> int:
        """Rows in both pieces."""
        return len(self._first) + len(self._rest)

    @property
    def device(self) -> torch.device:
        """Where answers are wanted."""
        return self._first.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""
        return self._first.dtype

    @property
    def row_shape(self) -> torch.Size:
        """Shape of one row."""
        return self._first.shape[1:]

    def gather(self, positions: Tensor, *, out: Tensor) -> None:
        """Copy ``rows[positions]`` into `out`, converting where dtypes differ.

        Args:
            positions: int64 [m] on the CPU, 0 <= position < n, which is not checked.
            out: [m, ...] contiguous, any device, of any dtype that rows convert to.
        """
        if len(self._rest) == 0 and out.device == self.device:
            gather_rows(self._first, positions.to(self.device), out=out)
        elif len(self._rest) == 0:
            out.copy_(self._first.index_select(0, positions.to(self.device)).to(out.dtype))
        else:
            self.move(positions, out, torch.arange(len(positions)))

    def move(self, positions: Tensor, out: Tensor, places: Tensor) -> None:
        """Copy row ``positions[i]`` to ``out[places[i]]``, converting where dtypes differ.

        Args:
            positions: int64 [m] on the CPU, 0 <= position < n, which is not checked.
            out: [k, ...] contiguous, any device, of any dtype that rows convert to.
            places: int64 [m] on the CPU, 0 <= place < k, no two equal; neither is checked.
        """
        if len(self._rest) == 0:
            _move_between(self._first, positions, out, places)
            return
        in_first = positions < len(self._first)
        _move_between(self._first, positions[in_first], out, places[in_first])
        in_rest = ~in_first
        _move_between(self._rest, positions[in_rest] - len(self._first), out, places[in_rest])


def _move_between(rows: Tensor, positions: Tensor, out: Tensor, places: Tensor) -> None:
    """`move_rows` where rows and out may be on different devices; positions and places are on the CPU."""
    if len(positions) == 0:
        return
    if rows.device == out.device:
        move_rows(rows, positions.to(rows.device), out, places.to(out.device))
        return
    pinned = rows.device.type == "cpu" and out.is_cuda
    picked = torch.empty(
        (len(positions), *rows.shape[1:]), dtype=rows.dtype, device=rows.device, pin_memory=pinned
    )
    gather_rows(rows, positions.to(rows.device), out=picked)
    # Before the rows, which may still be on their way to the GPU when this returns: page-locked memory that is let go
    # of is not given out again until then.
    places = places.to(out.device)
    move_rows(picked.to(out.device, non_blocking=pinned), None, out, places)
