"""What attention computes for each pair of a sample and an item of its list, where samples may share a list.

::

    lists      [a b] [c]       samples' lists   0 1 0         pairs   (a, 0) (b, 0) (c, 1) (a, 2) (b, 2)

On CPUs compiled loops read the items where they are; other devices write each sample's list out first.
"""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from windrow.recsys.embeddings import SequenceRows
from windrow.recsys.expansion import expand_lists, is_compiled
from windrow.recsys.models.segments import repeated, summed

__all__ = ["ItemPairs"]


class ItemPairs:
    """The pairs of a minibatch; m is their number.

    Args:
        lists: whose items they are.
    """

    def __init__(self, lists: SequenceRows) -> None:
        self._lengths = lists.lengths.long()
        self._inverse = lists.inverse
        self.lengths = self._lengths if lists.inverse is None else self._lengths[lists.inverse]

    @cached_property
    def num_pairs(self) -> int:
        """m."""
        return int(self.lengths.sum())

    def multiply(self, items: Tensor, queries: Tensor) -> Tensor:
        """Multiply item and query entry by entry.

        Args:
            items: [n, d] floating, of the lists.
            queries: [B, d].

        Returns:
            [m, d], differentiable once in both.
        """
        if is_compiled(items):
            product: Tensor = _Multiply.apply(items, queries, *self._places, self.num_pairs)  # type: ignore[no-untyped-call]
            return product
        return self._expanded(items) * repeated(queries, self.lengths, self.num_pairs)

    def add(self, of_items: Tensor, of_samples: Tensor, of_pairs: Tensor) -> Tensor:
        """Add up what belongs to an item, to a sample, and to both.

        Args:
            of_items: [n, h] floating, of the lists' items.
            of_samples: [B, h].
            of_pairs: [m, h]; not to be used any more, since its memory becomes the result's.

        Returns:
            [m, h], differentiable once in all three.
        """
        if is_compiled(of_items):
            total: Tensor = _Add.apply(of_items, of_samples, of_pairs, *self._places)  # type: ignore[no-untyped-call]
            return total
        return of_pairs + self._expanded(of_items) + repeated(of_samples, self.lengths, self.num_pairs)

    def sum(self, items: Tensor, weights: Tensor) -> Tensor:
        """Add up the items of each sample, weighted.

        Args:
            items: [n, d] floating, of the lists.
            weights: [m].

        Returns:
            [B, d], differentiable once in both; zeros for an empty list.
        """
        if is_compiled(items):
            total: Tensor = _Sum.apply(items, weights, *self._places)  # type: ignore[no-untyped-call]
            return total
        return summed(self._expanded(items) * weights.unsqueeze(1), self.lengths)

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor]:
        """Where lists begin [U + 1], and the list of each sample [B]."""
        offsets = torch.nn.functional.pad(self._lengths.cumsum(0), (1, 0))
        return offsets, torch.arange(len(self._lengths)) if self._inverse is None else self._inverse

    def _expanded(self, items: Tensor) -> Tensor:
        return expand_lists(items, self._lengths, self._inverse)[0]


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, items: Tensor, queries: Tensor, offsets: Tensor, inverse: Tensor, total: int
    ) -> Tensor:
        from windrow.recsys.models.attention_kernels import multiply_items

        items, queries = items.detach().contiguous(), queries.detach().contiguous()
        ctx.save_for_backward(items, queries, offsets, inverse)
        out = items.new_empty(total, items.shape[1])
        multiply_items(items.numpy(), offsets.numpy(), inverse.numpy(), queries.numpy(), out.numpy())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        from windrow.recsys.models.attention_kernels import multiply_items_backward

        items, queries, offsets, inverse = ctx.saved_tensors
        of_items, of_queries = torch.zeros_like(items), torch.zeros_like(queries)
        multiply_items_backward(
            items.numpy(),
            offsets.numpy(),
            inverse.numpy(),
            queries.numpy(),
            upstream.contiguous().numpy(),
            of_items.numpy(),
            of_queries.numpy(),
        )
        return of_items, of_queries, None, None, None


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, of_items: Tensor, of_samples: Tensor, of_pairs: Tensor, offsets: Tensor, inverse: Tensor
    ) -> Tensor:
        from windrow.recsys.models.attention_kernels import add_parts

        ctx.save_for_backward(offsets, inverse)
        ctx.num_items = len(of_items)
        ctx.mark_dirty(of_pairs)
        add_parts(
            of_items.detach().contiguous().numpy(),
            offsets.numpy(),
            inverse.numpy(),
            of_samples.detach().contiguous().numpy(),
            of_pairs.detach().numpy(),
        )
        return of_pairs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        from windrow.recsys.models.attention_kernels import add_parts_backward

        offsets, inverse = ctx.saved_tensors
        of_items = upstream.new_zeros(ctx.num_items, upstream.shape[1])
        of_samples = upstream.new_zeros(len(inverse), upstream.shape[1])
        add_parts_backward(
            offsets.numpy(),
            inverse.numpy(),
            upstream.contiguous().numpy(),
            of_items.numpy(),
            of_samples.numpy(),
        )
        return of_items, of_samples, upstream, None, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, items: Tensor, weights: Tensor, offsets: Tensor, inverse: Tensor) -> Tensor:
        from windrow.recsys.models.attention_kernels import sum_weighted_items

        items, weights = items.detach().contiguous(), weights.detach().contiguous()
        ctx.save_for_backward(items, weights, offsets, inverse)
        out = items.new_empty(len(inverse), items.shape[1])
        sum_weighted_items(items.numpy(), offsets.numpy(), inverse.numpy(), weights.numpy(), out.numpy())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None, None]:
        from windrow.recsys.models.attention_kernels import sum_weighted_items_backward

        items, weights, offsets, inverse = ctx.saved_tensors
        of_items, of_weights = torch.zeros_like(items), torch.empty_like(weights)
        sum_weighted_items_backward(
            items.numpy(),
            offsets.numpy(),
            inverse.numpy(),
            weights.numpy(),
            upstream.contiguous().numpy(),
            of_items.numpy(),
            of_weights.numpy(),
        )
        return of_items, of_weights, None, None
