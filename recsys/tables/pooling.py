"""Sums of rows of several tables, with dense gradients.

PyTorch's ``embedding_bag`` does the same for one table; its dense gradient sorts the ids first, which costs several
times the additions themselves.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag

__all__ = ["pool_rows"]


def pool_rows(
    tables: tuple[Tensor, ...],
    lookups: tuple[int, ...],
    values: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
) -> Tensor:
    """Look every segment of the input up in its table, and sum the rows of each bag.

    Args:
        tables: each [rows, dim] float32, contiguous.
        lookups: for each segment its table.
        values: [n] int32 or int64 row numbers, not checked.
        offsets: [len(lookups) * B + 1] where bags begin, segment after segment.
        weights: [n] float32 that rows are multiplied by, or None.

    Returns:
        [B, sum of the lookups' dims] float32, differentiable towards tables and weights.
    """
    if values.device.type == "cpu":
        pooled: Tensor = _PoolRows.apply(lookups, values, offsets.long(), weights, *tables)  # type: ignore[no-untyped-call]
        return pooled
    return _pool_by_pytorch(tables, lookups, values, offsets, weights)


def _pool_by_pytorch(
    tables: tuple[Tensor, ...],
    lookups: tuple[int, ...],
    values: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
) -> Tensor:
    """The same by ``embedding_bag``, for other devices; waits once, to learn where the segments begin."""
    num_samples = (len(offsets) - 1) // len(lookups)
    bounds = offsets[::num_samples].tolist() if num_samples else [0] * (len(lookups) + 1)
    pooled = [
        embedding_bag(
            values[start:stop],
            tables[table],
            offsets[number * num_samples : (number + 1) * num_samples + 1] - start,
            mode="sum",
            per_sample_weights=None if weights is None else weights[start:stop],
            include_last_offset=True,
        )
        for number, (table, start, stop) in enumerate(zip(lookups, bounds[:-1], bounds[1:], strict=True))
    ]
    return torch.cat(pooled, dim=1)


class _PoolRows(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        lookups: tuple[int, ...],
        values: Tensor,
        offsets: Tensor,
        weights: Tensor | None,
        *tables: Tensor,
    ) -> Tensor:
        from windrow.recsys.tables.pooling_kernels import sum_rows

        context.lookups = lookups
        context.save_for_backward(values, offsets, weights, *tables)
        num_samples = (len(offsets) - 1) // len(lookups)
        pooled = torch.empty(num_samples, sum(tables[table].shape[1] for table in lookups))
        for table, bags, column in _segments(lookups, offsets, tables):
            sum_rows(
                tables[table].detach().numpy(), values.numpy(), bags, _array(weights), pooled.numpy(), column
            )
        return pooled

    @staticmethod
    @once_differentiable
    def backward(context: Any, pooled_gradient: Tensor) -> tuple[Tensor | None, ...]:
        from windrow.recsys.tables.pooling_kernels import add_to_rows, dot_with_rows

        values, offsets, weights, *tables = context.saved_tensors
        wanted = context.needs_input_grad
        arriving = pooled_gradient.contiguous().numpy()
        gradients = [torch.zeros_like(table) for table in tables]
        of_weights = torch.zeros_like(weights) if wanted[3] else None
        for table, bags, column in _segments(context.lookups, offsets, tables):
            place = (values.numpy(), bags)
            add_to_rows(gradients[table].numpy(), *place, _array(weights), arriving, column)
            if of_weights is not None:
                dot_with_rows(tables[table].detach().numpy(), *place, of_weights.numpy(), arriving, column)
        return None, None, None, of_weights, *gradients


def _segments(
    lookups: tuple[int, ...], offsets: Tensor, tables: tuple[Tensor, ...] | list[Tensor]
) -> list[tuple[int, np.ndarray[Any, np.dtype[np.int64]], int]]:
    """(table, where the bags of its segment begin, first column of the result) of each lookup."""
    num_samples = (len(offsets) - 1) // len(lookups)
    starts = offsets.numpy()
    segments = []
    column = 0
    for number, table in enumerate(lookups):
        segments.append((table, starts[number * num_samples : (number + 1) * num_samples + 1], column))
        column += tables[table].shape[1]
    return segments


def _array(weights: Tensor | None) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.empty(0, dtype=np.float32) if weights is None else weights.detach().contiguous().numpy()
