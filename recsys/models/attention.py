"""Attention over a user's list of items by how they fit the item at hand: the list becomes one more embedding.

    sequence   items k_1 .. k_n of a sample      [n, d]     unpooled, any n
    query      embedding q of the item at hand   [d]
    score_i  = w . mlp(concat(k_i, q, k_i - q, k_i * q)) + b
    a        = softmax of the scores over the n items of the sample
    result   = sum of a_i k_i                    [d]; zeros where n = 0

This is the local activation unit of the deep interest network (Zhou et al., KDD 2018, arXiv 1706.06978) with a
rectifier inside and a softmax over the scores, so that long lists do not weigh more than short ones.

The first layer W = [W_1 W_2 W_3 W_4] is linear in what it is given, so that

    W concat(k, q, k - q, k * q) = (W_1 + W_3) k  +  (W_2 - W_3) q  +  W_4 (k * q)

The first term is computed once for each item of a distinct list, the second once for each sample, and only the third
for each item of each sample: a quarter of the work, and no copy of a list that several samples have.

So attention computes something for each pair of a sample and an item of its list, where samples may share a list::

    lists      [a b] [c]       samples' lists   0 1 0         pairs   (a, 0) (b, 0) (c, 1) (a, 2) (b, 2)

On CPUs compiled loops read the items where they are; other devices write each sample's list out first. Lists are runs
of rows of different lengths, and nothing is padded to one length.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from windrow.recsys.batches.jagged import Deduplicated, is_compiled
from windrow.recsys.models.attention_kernels import (
    add_parts,
    add_parts_backward,
    multiply_items,
    multiply_items_backward,
    sum_weighted_items,
    sum_weighted_items_backward,
)
from windrow.recsys.models.click_models import MLP
from windrow.training.dense import linear, make_linear

__all__ = ["AttentionPooling", "ItemPairs", "places_from_the_end", "segment_softmax"]


class AttentionPooling(nn.Module):
    """Pools the items of each sample by their attention to a query; the formula stands at the top of this module.

    Args:
        dim: d, columns of items and queries.
        hidden: columns of the hidden layers that score an item.
        generator: where the weights come from; it moves on.
    """

    def __init__(self, dim: int, *, hidden: Sequence[int] = (36,), generator: torch.Generator) -> None:
        super().__init__()
        self.mlp = MLP([4 * dim, *hidden], generator=generator)
        self.score = make_linear(self.mlp.out_features, 1, generator=generator)

    def forward(self, lists: Deduplicated[Tensor], queries: Tensor) -> Tensor:
        """Pool.

        Args:
            lists: of B samples, which may share some; items have d columns.
            queries: [B, d].

        Returns:
            [B, d]. Memory: d numbers and those of the hidden layers for each item of each sample, whatever the
            longest list.
        """
        pairs, items = ItemPairs(lists), lists.jagged.values
        layers = [*self.mlp.layers, self.score]
        first = layers[0]
        assert isinstance(first, nn.Linear)
        item, query, difference, product = first.weight.chunk(4, 1)
        hidden = pairs.add(
            linear(items, item + difference),
            linear(queries, query - difference, first.bias),
            # Of a part of a matrix oneDNN makes a product element by element, a thousand times as slowly.
            linear(pairs.multiply(items, queries), product.contiguous()),
        )
        for layer in layers[1:]:
            hidden = layer(torch.relu(hidden))
        return pairs.sum(items, segment_softmax(hidden.view(-1), pairs.lengths))


class ItemPairs:
    """The m pairs of a sample and an item of its list, in a minibatch."""

    def __init__(self, lists: Deduplicated[Tensor]) -> None:
        self._lists = lists
        lengths = lists.jagged.lengths.long()
        self.lengths = lengths if lists.inverse is None else lengths[lists.inverse]

    @cached_property
    def num_pairs(self) -> int:
        """m."""
        if torch.compiler.is_exporting():
            # A program has no numbers but shapes; the lists of a request fill their values.
            return self._lists.jagged.values.shape[0]
        return int(self.lengths.sum())

    def multiply(self, items: Tensor, queries: Tensor) -> Tensor:
        """Multiply items [n, d] and queries [B, d] entry by entry: [m, d], differentiable once in both."""
        if is_compiled(items):
            product: Tensor = _Multiply.apply(items, queries, *self._places, self.num_pairs)  # type: ignore[no-untyped-call]
            return product
        return self._expanded(items) * _repeated(queries, self.lengths, self.num_pairs)

    def add(self, of_items: Tensor, of_samples: Tensor, of_pairs: Tensor) -> Tensor:
        """Add up what belongs to an item [n, h], to a sample [B, h], and to both [m, h]; differentiable once in all.

        The memory of `of_pairs` becomes the result's.
        """
        if is_compiled(of_items):
            total: Tensor = _Add.apply(of_items, of_samples, of_pairs, *self._places)  # type: ignore[no-untyped-call]
            return total
        return of_pairs + self._expanded(of_items) + _repeated(of_samples, self.lengths, self.num_pairs)

    def sum(self, items: Tensor, weights: Tensor) -> Tensor:
        """Add up the items [n, d] of each sample, times weights [m]: [B, d], zeros for an empty list."""
        weights = weights.to(items.dtype)  # Autocast may have computed them in another.
        if is_compiled(items):
            total: Tensor = _Sum.apply(items, weights, *self._places)  # type: ignore[no-untyped-call]
            return total
        return _summed(self._expanded(items) * weights.unsqueeze(1), self.lengths)

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor]:
        """Where lists begin [U + 1], and the list of each sample [B]."""
        inverse, lists = self._lists.inverse, self._lists.jagged
        return lists.offsets.long(), torch.arange(len(lists)) if inverse is None else inverse

    def _expanded(self, items: Tensor) -> Tensor:
        return replace(self._lists, jagged=replace(self._lists.jagged, values=items)).expand().values


def _arrays(*tensors: Tensor) -> list[np.ndarray[Any, np.dtype[Any]]]:
    return [tensor.detach().contiguous().numpy() for tensor in tensors]


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, items: Tensor, queries: Tensor, offsets: Tensor, inverse: Tensor, total: int) -> Tensor:
        ctx.save_for_backward(items, queries, offsets, inverse)
        out = items.new_empty(total, items.shape[1])
        multiply_items(*_arrays(items, offsets, inverse, queries, out))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        items, queries, offsets, inverse = ctx.saved_tensors
        of_items, of_queries = items.new_zeros(items.shape), queries.new_zeros(queries.shape)
        multiply_items_backward(*_arrays(items, offsets, inverse, queries, upstream, of_items, of_queries))
        return of_items, of_queries, None, None, None


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, of_items: Tensor, of_samples: Tensor, of_pairs: Tensor, offsets: Tensor, inverse: Tensor
    ) -> Tensor:
        ctx.save_for_backward(offsets, inverse)
        ctx.num_items = len(of_items)
        ctx.mark_dirty(of_pairs)
        parts = [*_arrays(of_items, offsets, inverse, of_samples), of_pairs.detach().numpy()]
        add_parts(*parts)
        return of_pairs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        offsets, inverse = ctx.saved_tensors
        of_items = upstream.new_zeros(ctx.num_items, upstream.shape[1])
        of_samples = upstream.new_zeros(len(inverse), upstream.shape[1])
        add_parts_backward(*_arrays(offsets, inverse, upstream, of_items, of_samples))
        return of_items, of_samples, upstream, None, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, items: Tensor, weights: Tensor, offsets: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(items, weights, offsets, inverse)
        out = items.new_empty(len(inverse), items.shape[1])
        sum_weighted_items(*_arrays(items, offsets, inverse, weights, out))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None, None]:
        items, weights, offsets, inverse = ctx.saved_tensors
        of_items, of_weights = items.new_zeros(items.shape), weights.new_empty(weights.shape)
        sum_weighted_items_backward(*_arrays(items, offsets, inverse, weights, upstream, of_items, of_weights))
        return of_items, of_weights, None, None


def segment_softmax(scores: Tensor, lengths: Tensor) -> Tensor:
    """Softmax inside each of many runs of numbers.

    Args:
        scores: [n] floating, the runs one after another.
        lengths: [B] int64, adding up to n; may hold zeros.

    Returns:
        [n]: each run is non-negative and adds up to 1, however large its scores. Cost: three passes over n.
    """
    # The largest score of a run cancels out, so no gradient goes through it.
    largest = _reduced(scores.detach(), "max", lengths, initial=-torch.inf)
    raised = torch.exp(scores - _repeated(largest, lengths, scores.shape[0]))
    totals = _summed(raised, lengths)
    return raised / _repeated(totals, lengths, scores.shape[0])


def _repeated(rows: Tensor, lengths: Tensor, total: int) -> Tensor:
    """Give each of `total` members of runs [B] the run's row: [B, ...] to [total, ...]."""
    return rows.repeat_interleave(lengths, 0, output_size=total)


def places_from_the_end(lengths: Tensor, total: int) -> Tensor:
    """Number the members of each run, of [B] int64 lengths, from its end: [total] int64, 0 for the last of a run."""
    ends = _repeated(lengths.cumsum(0), lengths, total)
    return ends - 1 - torch.arange(total, device=lengths.device)


def _summed(rows: Tensor, lengths: Tensor) -> Tensor:
    """Add up the rows of each run, zeros for an empty one: [n, ...] to [B, ...]."""
    return _reduced(rows, "sum", lengths, initial=0)


def _reduced(rows: Tensor, reduce: Literal["max", "sum"], lengths: Tensor, *, initial: float) -> Tensor:
    # Torch refuses an empty list of lengths, so an empty run is added and its result dropped.
    return torch.segment_reduce(rows, reduce, lengths=F.pad(lengths, (0, 1)), initial=initial)[:-1]
