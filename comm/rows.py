"""Copy rows from and to random places, as fast as memory allows.

PyTorch's `index_copy_` reaches a quarter of the bandwidth that these loops do; they ask for each row some steps
before it is copied, so that many travel at once.
"""

import torch
from torch import Tensor

from windrow.comm.rows_kernels import Words, gather, scatter
from windrow.comm.staging import as_bytes

__all__ = ["gather_rows", "scatter_rows"]


def gather_rows(rows: Tensor, positions: Tensor, *, out: Tensor) -> None:
    """Copy ``rows[positions]`` into `out`.

    Args:
        rows: [n, ...], any dtype and device.
        positions: [m] int64 on the device of `rows`, 0 <= position < n, which is not checked.
        out: [m, ...] contiguous, of the dtype and device of `rows`.
    """
    if rows.device.type != "cpu" or not rows.is_contiguous():
        torch.index_select(rows, 0, positions, out=out)
    elif out.numel() > 0:
        gather(_words(rows), positions.contiguous().numpy(), _words(out))


def scatter_rows(rows: Tensor, positions: Tensor, *, out: Tensor) -> None:
    """Copy row i of `rows` to ``out[positions[i]]``.

    Args:
        rows: [m, ...] contiguous, any dtype and device.
        positions: [m] int64 on the device of `rows`, 0 <= position < n, no two equal; neither is checked.
        out: [n, ...] contiguous, of the dtype and device of `rows`.
    """
    if rows.device.type != "cpu":
        out.index_copy_(0, positions, rows)
    elif rows.numel() > 0:
        scatter(_words(rows), positions.contiguous().numpy(), _words(out))


def _words(rows: Tensor) -> Words:
    """The memory of rows as a matrix of the widest integers that divide a row."""
    row_bytes = rows.nbytes // len(rows)
    widths = (torch.int64, torch.int32, torch.int16, torch.uint8)
    word = next(dtype for dtype in widths if row_bytes % dtype.itemsize == 0)
    words: Words = as_bytes(rows).view(word).view(len(rows), -1).numpy()
    return words
