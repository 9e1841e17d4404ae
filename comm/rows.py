"""Copy rows from and to random places, as fast as memory allows.

PyTorch's `index_copy_` reaches a quarter of the bandwidth that these loops do; they ask for each row some steps
before it is copied, so that many travel at once.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.comm.rows_kernels import Words, move, narrow, widen
from windrow.comm.staging import as_bytes

__all__ = ["gather_rows", "move_rows", "scatter_rows"]

CONVERTED_BYTES = 256 << 10
"""Rows that change between rare dtypes are converted so many bytes at a time, and stay in the cache meanwhile."""

SHORT = (torch.float16, torch.bfloat16)


def gather_rows(rows: Tensor, positions: Tensor, *, out: Tensor) -> None:
    """Copy ``rows[positions]`` into `out`.

    Args:
        rows: [n, ...], any dtype and device.
        positions: [m] int64 on the device of `rows`, 0 <= position < n, which is not checked.
        out: [m, ...] contiguous, on the device of `rows`, of any dtype that rows convert to.
    """
    move_rows(rows, positions, out, None)


def scatter_rows(rows: Tensor, positions: Tensor, *, out: Tensor) -> None:
    """Copy row i of `rows` to ``out[positions[i]]``.

    Args:
        rows: [m, ...], any dtype and device.
        positions: [m] int64 on the device of `rows`, 0 <= position < n, no two equal; neither is checked.
        out: [n, ...] contiguous, on the device of `rows`, of any dtype that rows convert to.
    """
    move_rows(rows, None, out, positions)


def move_rows(rows: Tensor, positions: Tensor | None, out: Tensor, places: Tensor | None) -> None:
    """Copy row ``positions[i]`` of `rows` to ``out[places[i]]``, in one pass, converting where dtypes differ.

    Args:
        rows: [n, ...], any dtype and device.
        positions: [m] int64 on the device of `rows`, 0 <= position < n, which is not checked; None: all rows, as they
            stand.
        out: [k, ...] contiguous, on the device of `rows`, of any dtype that rows convert to.
        places: [m] int64 on the same device, 0 <= place < k, no two equal; neither is checked. None: all places, as
            they stand.
    """
    count = len(rows) if positions is None else len(positions)
    if count == 0 or out.numel() == 0:
        return
    if positions is None and places is None:
        out.copy_(rows)
    elif rows.device.type != "cpu" or not rows.is_contiguous():
        _move_with_torch(rows, positions, out, places)
    elif rows.dtype == out.dtype:
        move(_words(rows), _order(positions), _words(out), _order(places))
    elif rows.dtype in SHORT and out.dtype == torch.float32:
        brain = rows.dtype == torch.bfloat16
        widen(_bits(rows), _order(positions), _floats(out), _order(places), brain)
    elif rows.dtype == torch.float32 and out.dtype in SHORT:
        brain = out.dtype == torch.bfloat16
        narrow(_floats(rows), _order(positions), _bits(out), _order(places), brain)
    else:
        _move_in_pieces(rows, positions, out, places)


def _move_with_torch(rows: Tensor, positions: Tensor | None, out: Tensor, places: Tensor | None) -> None:
    picked = rows if positions is None else rows.index_select(0, positions)
    if places is None:
        out.copy_(picked)
    else:
        out.index_copy_(0, places, picked.to(out.dtype))


def _move_in_pieces(rows: Tensor, positions: Tensor | None, out: Tensor, places: Tensor | None) -> None:
    row_bytes = rows.shape[1:].numel() * max(rows.element_size(), out.element_size())
    some = max(1, CONVERTED_BYTES // row_bytes)
    for start in range(0, len(rows) if positions is None else len(positions), some):
        span = slice(start, start + some)
        picked = rows[span] if positions is None else rows.index_select(0, positions[span])
        if places is None:
            out[span].copy_(picked)
        else:
            move_rows(picked.to(out.dtype), None, out, places[span])


def _order(positions: Tensor | None) -> npt.NDArray[np.int64]:
    if positions is None:
        return np.empty(0, np.int64)
    order: npt.NDArray[np.int64] = positions.contiguous().numpy()
    return order


def _words(rows: Tensor) -> Words:
    """The memory of rows as a matrix of the widest integers that divide a row."""
    row_bytes = rows.nbytes // len(rows)
    widths = (torch.int64, torch.int32, torch.int16, torch.uint8)
    word = next(dtype for dtype in widths if row_bytes % dtype.itemsize == 0)
    words: Words = as_bytes(rows).view(word).view(len(rows), -1).numpy()
    return words


def _bits(rows: Tensor) -> npt.NDArray[np.uint16]:
    """The memory of rows of 16-bit numbers as a matrix of integers."""
    bits: npt.NDArray[np.uint16] = rows.view(len(rows), -1).view(torch.int16).numpy().view(np.uint16)
    return bits


def _floats(rows: Tensor) -> npt.NDArray[Any]:
    floats: npt.NDArray[Any] = rows.view(len(rows), -1).numpy()
    return floats
