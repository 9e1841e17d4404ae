"""From distinct rows, and lists of rows, to one for each sample: what deduplication leaves to the end.

::

    inverse         0 0 1 0                      sample 3 has row 0
    rows            a b          -> a a b a      gradient of a: those of samples 0, 1 and 3 added up, in this order
    lists           [a b] [c]    -> [a b] [a b] [c] [a b]

The second is the jagged index select of RecD (Zhao et al., RecD: Deduplication for End-to-End Deep Learning
Recommendation Model Training Infrastructure, MLSys 2023, arXiv 2211.05239): no list is padded to the longest.

On CPUs compiled loops copy and add; other devices use PyTorch's operations, whose sums may come in any order.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from windrow.recsys.deduplication.select_lists import list_positions

__all__ = ["ColumnRun", "expand_columns", "expand_lists", "expand_rows", "is_compiled"]


class ColumnRun(NamedTuple):
    """Columns that stay next to one another.

    Attributes:
        source: first column of the rows.
        target: first column of the result.
        width: number of columns.
    """

    source: int
    target: int
    width: int


def expand_columns(
    rows: Sequence[Tensor],
    inverses: Sequence[Tensor | None],
    runs: Sequence[Sequence[ColumnRun]],
    num_samples: int,
) -> Tensor:
    """Put the columns of several groups of rows together, a row for each sample.

    Args:
        rows: of each group [U, width] floating, of one dtype and device.
        inverses: of each group [B] int64 row of each sample; None where row b is that of sample b.
        runs: of each group where its columns go; together they fill the result's columns, each once.
        num_samples: B.

    Returns:
        [B, columns], differentiable once in `rows`. Cost: one pass over the result, and one over its gradient.
    """
    if not all(is_compiled(group) for group in rows):
        return _columns_by_pytorch(rows, inverses, runs)
    tables = tuple(np.array(group, dtype=np.int64).reshape(len(group), 3) for group in runs)
    result: Tensor = _ExpandColumns.apply(num_samples, tuple(inverses), tables, *rows)  # type: ignore[no-untyped-call]
    return result


def expand_rows(rows: Tensor, inverse: Tensor | None) -> Tensor:
    """Give each sample its row.

    Args:
        rows: [U, width] floating.
        inverse: [B] int64 row of each sample, or None: `rows` themselves are given back.

    Returns:
        [B, width], differentiable once in `rows`.
    """
    if inverse is None:
        return rows
    return expand_columns([rows], [inverse], [[ColumnRun(0, 0, rows.shape[1])]], len(inverse))


def expand_lists(
    items: Tensor, lengths: Tensor, inverse: Tensor | None, *, pad: bool = False
) -> tuple[Tensor, Tensor]:
    """Give each sample its list.

    Args:
        items: [n, d] floating, list after list.
        lengths: [U] integer items of each list; adds up to n.
        inverse: [B] int64 list of each sample, or None: the lists themselves are given back.
        pad: go through a matrix as wide as the longest list, as libraries without jagged tensors do; to compare.

    Returns:
        Items [m, d] of the samples' lists, one after another, differentiable once in `items`; and their lengths [B]
        int64. Memory: m rows; with `pad` U + B times the longest list in addition.
    """
    lengths = lengths.long()
    if inverse is None:
        return items, lengths
    of_samples = lengths.index_select(0, inverse)
    if pad:
        return _lists_through_padding(items, lengths, inverse), of_samples
    if is_compiled(items):
        expanded: Tensor = _ExpandLists.apply(items, _offsets(lengths), inverse, int(of_samples.sum()))  # type: ignore[no-untyped-call]
        return expanded, of_samples
    starts = _offsets(lengths)[:-1].index_select(0, inverse)
    return items.index_select(0, list_positions(starts, of_samples)), of_samples


def is_compiled(rows: Tensor) -> bool:
    """Whether compiled loops take these rows: float32 or float64 in CPU memory."""
    return rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64)


class _ExpandColumns(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        num_samples: int,
        inverses: tuple[Tensor | None, ...],
        runs: tuple[np.ndarray, ...],
        *rows: Tensor,
    ) -> Tensor:
        from windrow.recsys.expansion_kernels import copy_columns

        ctx.runs, ctx.shapes = runs, [group.shape for group in rows]
        ctx.save_for_backward(*inverses)
        columns = sum(int(table[:, 2].sum()) for table in runs)
        out = rows[0].new_empty(num_samples, columns)
        for group, inverse, table in zip(rows, inverses, runs, strict=True):
            if inverse is None:
                for source, target, width in table:
                    out[:, target : target + width] = group.detach()[:, source : source + width]
            else:
                copy_columns(group.detach().contiguous().numpy(), inverse.numpy(), table, out.numpy())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        from windrow.recsys.expansion_kernels import sum_columns

        gradients: list[Tensor | None] = []
        upstream = upstream.contiguous()
        wanted = ctx.needs_input_grad[3:]
        for inverse, table, shape, is_wanted in zip(
            ctx.saved_tensors, ctx.runs, ctx.shapes, wanted, strict=True
        ):
            if not is_wanted:
                gradients.append(None)
                continue
            gradient = upstream.new_zeros(shape)
            if inverse is None:
                for source, target, width in table:
                    gradient[:, source : source + width] = upstream[:, target : target + width]
            else:
                sum_columns(upstream.numpy(), inverse.numpy(), table, gradient.numpy())
            gradients.append(gradient)
        return None, None, None, *gradients


class _ExpandLists(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, items: Tensor, offsets: Tensor, inverse: Tensor, total: int) -> Tensor:
        from windrow.recsys.expansion_kernels import copy_lists

        ctx.save_for_backward(offsets, inverse)
        ctx.shape = items.shape
        out = items.new_empty(total, items.shape[1])
        copy_lists(items.detach().contiguous().numpy(), offsets.numpy(), inverse.numpy(), out.numpy())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        from windrow.recsys.expansion_kernels import sum_lists

        offsets, inverse = ctx.saved_tensors
        gradient = upstream.new_zeros(ctx.shape)
        sum_lists(upstream.contiguous().numpy(), offsets.numpy(), inverse.numpy(), gradient.numpy())
        return gradient, None, None, None


def _columns_by_pytorch(
    rows: Sequence[Tensor], inverses: Sequence[Tensor | None], runs: Sequence[Sequence[ColumnRun]]
) -> Tensor:
    expanded = [
        group if inverse is None else group.index_select(0, inverse)
        for group, inverse in zip(rows, inverses, strict=True)
    ]
    pieces = [
        (run.target, group[:, run.source : run.source + run.width])
        for group, group_runs in zip(expanded, runs, strict=True)
        for run in group_runs
    ]
    return torch.cat([piece for _, piece in sorted(pieces, key=lambda pair: pair[0])], 1)


def _lists_through_padding(items: Tensor, lengths: Tensor, inverse: Tensor) -> Tensor:
    """The same through [U, longest, d], [B, longest, d] and a mask."""
    longest = int(lengths.max()) if len(lengths) else 0
    is_item = torch.arange(longest, device=items.device) < lengths.unsqueeze(1)
    padded = items.new_zeros(len(lengths), longest, items.shape[1]).masked_scatter(
        is_item.unsqueeze(2), items
    )
    return padded.index_select(0, inverse)[is_item.index_select(0, inverse)]


def _offsets(lengths: Tensor) -> Tensor:
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
