"""Gather, weigh and sum messages along the edges of a block: the core of every layer.

With N(v) the edges that enter destination v:

    sum        y_v = sum_{(u, v) in N(v)} w_uv x_u
    mean       y_v = sum / max(1, number of edges in N(v)), times w_uv where weights are given
    softmax    a_uv = exp(s_uv) / sum_{(t, v) in N(v)} exp(s_tv)

The sum is `torch.embedding_bag` with destinations as bags: on CPUs it reaches FBGEMM's prefetching
kernel, on GPUs torch's own, and both add in the order of the edges, so results do not vary from run to
run or with the number of threads. The gradient with respect to x is the same call on the transposed
block; it is not computed (nor is the transpose) where x needs no gradient.
"""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from windrow.gnn.block import Block
from windrow.gnn.message_passing_kernels import edge_dot, segment_softmax, segment_softmax_backward

__all__ = ["add_ends", "aggregate", "divide_by_degrees", "edge_softmax", "sum_over_bags"]

_KERNEL_DTYPES = (torch.float32, torch.float64)
_INT32_LIMIT = 2**31 - 1


def aggregate(
    block: Block,
    x: Tensor,
    *,
    reduce: Literal["sum", "mean"] = "sum",
    edge_weights: Tensor | None = None,
) -> Tensor:
    """Sum or average the rows of each destination's sources.

    Args:
        block: the bipartite graph; on the device of `x`.
        x: floating [num_sources, features], or [num_sources, heads, features].
        reduce: "sum", or "mean": the sum divided by the number of edges, whatever their weights.
        edge_weights: [edges], or [edges, heads] where `x` has heads; dtype of `x`.

    Returns:
        [num_destinations, features] or [num_destinations, heads, features], differentiable in `x` and
        `edge_weights`. A destination without edges gets zeros.
        Cost: edges x features multiply-adds, the same again for each gradient.
    """
    total: Tensor
    if edge_weights is None:
        total = _Sum.apply(x.flatten(1), block, reduce)  # type: ignore[no-untyped-call]
        return total.view(block.num_destinations, *x.shape[1:])
    if edge_weights.dim() == 1:
        one_head, weights = x.unsqueeze(1), edge_weights.unsqueeze(1)
        total = _WeightedSum.apply(one_head, weights, block)  # type: ignore[no-untyped-call]
        total = total.squeeze(1)
    else:
        total = _WeightedSum.apply(x, edge_weights, block)  # type: ignore[no-untyped-call]
    return total if reduce == "sum" else total / _divisors(block, total)


def divide_by_degrees(block: Block, rows: Tensor) -> Tensor:
    """Divide the row of each destination by its number of edges, where it has any, in place and without a gradient.

    Args:
        block: the bipartite graph; on the device of `rows`.
        rows: floating [num_destinations, ...], overwritten.

    Returns:
        `rows`.
    """
    return rows.div_(_divisors(block, rows))


def sum_over_bags(rows: Tensor, indptr: Tensor, indices: Tensor, weights: Tensor | None = None) -> Tensor:
    """Sum chosen rows bag by bag, without a gradient.

    Args:
        rows: floating [n, features].
        indptr: int64 [bags + 1], where each bag begins in `indices`.
        indices: int32 or int64, rows of each bag, one bag after the other.
        weights: factor of each entry of `indices`, or None.

    Returns:
        [bags, features], new memory; zeros for an empty bag.
    """
    # embedding_bag would widen all indices to match the offsets, so the short array changes type instead.
    if indices.dtype == torch.int32 and indices.shape[0] > _INT32_LIMIT:
        indices = indices.long()
    total: Tensor = torch.embedding_bag(
        rows.detach(),
        indices,
        indptr.to(indices.dtype),
        mode=0,
        per_sample_weights=weights,
        include_last_offset=True,
    )[0]
    return total


def add_ends(block: Block, source_values: Tensor, destination_values: Tensor) -> Tensor:
    """Add the values of the two end points of every edge.

    Args:
        block: the bipartite graph; on the device of the values.
        source_values: floating [num_sources, heads].
        destination_values: [num_destinations, heads].

    Returns:
        [edges, heads]: source_values[u] + destination_values[v] for edge (u, v); differentiable in both.
    """
    total: Tensor = _AddEnds.apply(source_values, destination_values, block)  # type: ignore[no-untyped-call]
    return total


def edge_softmax(block: Block, scores: Tensor) -> Tensor:
    """Softmax of edge scores over the edges that enter each destination.

    Args:
        block: the bipartite graph; on the device of `scores`.
        scores: floating [edges, heads].

    Returns:
        [edges, heads], positive, summing to one over each destination's edges; differentiable.
        Cost: three passes over the scores.
    """
    weights: Tensor = _EdgeSoftmax.apply(scores, block)  # type: ignore[no-untyped-call]
    return weights


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, block: Block, reduce: str) -> Tensor:
        ctx.block, ctx.reduce = block, reduce
        total = sum_over_bags(x, block.indptr, block.indices)
        return total if reduce == "sum" else divide_by_degrees(block, total)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None, None
        transpose = ctx.block.transpose()
        scaled = upstream if ctx.reduce == "sum" else upstream / _divisors(ctx.block, upstream)
        return sum_over_bags(scaled.contiguous(), transpose.indptr, transpose.indices), None, None


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, block: Block) -> Tensor:
        ctx.block = block
        ctx.save_for_backward(x, weights)
        return _weighted_bag_sum(x, weights, block.indptr, block.indices)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weights = ctx.saved_tensors
        x_gradient = weights_gradient = None
        if ctx.needs_input_grad[0]:
            transpose = ctx.block.transpose()
            by_source = weights.index_select(0, transpose.edge_ids)
            x_gradient = _weighted_bag_sum(upstream, by_source, transpose.indptr, transpose.indices)
        if ctx.needs_input_grad[1]:
            weights_gradient = _edge_dot(ctx.block, x, upstream)
        return x_gradient, weights_gradient, None


class _AddEnds(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source_values: Tensor, destination_values: Tensor, block: Block) -> Tensor:
        ctx.block = block
        at_source = source_values.index_select(0, block.indices)
        return at_source.add_(destination_values.index_select(0, block.edge_destinations))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        # Bags rather than index_add: GPUs add the latter in an order that varies from run to run.
        source_gradient = destination_gradient = None
        if ctx.needs_input_grad[0]:
            transpose = ctx.block.transpose()
            source_gradient = sum_over_bags(upstream.contiguous(), transpose.indptr, transpose.edge_ids)
        if ctx.needs_input_grad[1]:
            destination_gradient = _edge_sum(ctx.block, upstream.contiguous())
        return source_gradient, destination_gradient, None


class _EdgeSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, block: Block) -> Tensor:
        weights = _softmax(block, scores.detach().contiguous())
        ctx.block = block
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        return _softmax_backward(ctx.block, weights, upstream.contiguous()), None


def _divisors(block: Block, rows: Tensor) -> Tensor:
    return block.degrees.clamp(min=1).to(rows.dtype).view(-1, *[1] * (rows.dim() - 1))


def _weighted_bag_sum(rows: Tensor, weights: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    total = rows.new_empty(indptr.shape[0] - 1, *rows.shape[1:])
    for head in range(rows.shape[1]):
        total[:, head] = sum_over_bags(
            rows[:, head].contiguous(), indptr, indices, weights.detach()[:, head].contiguous()
        )
    return total


def _edge_dot(block: Block, sources: Tensor, destinations: Tensor) -> Tensor:
    if not _has_kernel(sources):
        return _edge_dot_anywhere(block, sources, destinations)
    products = sources.new_empty(block.num_edges, sources.shape[1])
    edge_dot(
        block.indptr.numpy(),
        block.indices.numpy(),
        sources.detach().contiguous().numpy(),
        destinations.contiguous().numpy(),
        products.numpy(),
    )
    return products


def _softmax(block: Block, scores: Tensor) -> Tensor:
    if not _has_kernel(scores):
        return _softmax_anywhere(block, scores)
    weights = torch.empty_like(scores)
    segment_softmax(block.indptr.numpy(), scores.numpy(), weights.numpy())
    return weights


def _softmax_backward(block: Block, weights: Tensor, upstream: Tensor) -> Tensor:
    if not _has_kernel(weights):
        return _softmax_backward_anywhere(block, weights, upstream)
    gradient = torch.empty_like(weights)
    segment_softmax_backward(block.indptr.numpy(), weights.numpy(), upstream.numpy(), gradient.numpy())
    return gradient


def _has_kernel(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype in _KERNEL_DTYPES


def _edge_dot_anywhere(block: Block, sources: Tensor, destinations: Tensor) -> Tensor:
    at_source = sources.index_select(0, block.indices)
    return (at_source * destinations.index_select(0, block.edge_destinations)).sum(-1)


def _softmax_anywhere(block: Block, scores: Tensor) -> Tensor:
    at_edge = block.edge_destinations
    largest = scores.new_full((block.num_destinations, scores.shape[1]), -torch.inf)
    largest.scatter_reduce_(0, at_edge.unsqueeze(1).expand_as(scores), scores, "amax")
    exponentials = (scores - largest.index_select(0, at_edge)).exp()
    return exponentials / _edge_sum(block, exponentials).index_select(0, at_edge)


def _softmax_backward_anywhere(block: Block, weights: Tensor, upstream: Tensor) -> Tensor:
    product = weights * upstream
    return product - weights * _edge_sum(block, product).index_select(0, block.edge_destinations)


def _edge_sum(block: Block, rows: Tensor) -> Tensor:
    edges = torch.arange(block.num_edges, device=rows.device)
    return sum_over_bags(rows, block.indptr, edges)
