"""GraphSAGE with the mean aggregator."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from windrow.gnn.block import Block
from windrow.gnn.layers.projection import projects_first
from windrow.gnn.message_passing import divide_by_degrees, sum_over_bags
from windrow.training.dense import multiply, multiply_transposed
from windrow.training.linear import make_linear

__all__ = ["GraphSAGELayer"]


class GraphSAGELayer(nn.Module):
    """One GraphSAGE layer (Hamilton et al.: Inductive Representation Learning on Large Graphs, NIPS 2017).

        y_v = W_self x_v + W_neighbor mean_{u in N(v)} x_u + b

    A destination without edges gets W_self x_v + b. Equal to `dgl.nn.SAGEConv(..., "mean")`.
    Shapes: x [num_sources, in_features] -> [num_destinations, out_features].
    """

    def __init__(self, in_features: int, out_features: int, *, generator: torch.Generator) -> None:
        """Draw the weights.

        Args:
            in_features: columns of the input.
            out_features: columns of the output.
            generator: where initial weights come from.
        """
        super().__init__()
        self.self_linear = make_linear(in_features, out_features, generator=generator)
        self.neighbor_linear = make_linear(in_features, out_features, bias=False, generator=generator)

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """Apply the layer to one hop.

        Args:
            block: the bipartite graph.
            x: [num_sources, in_features].

        Returns:
            [num_destinations, out_features].
        """
        function = (
            _ProjectedMean if projects_first(block, x, self.self_linear.out_features) else _MeanProjected
        )
        output: Tensor = function.apply(  # type: ignore[no-untyped-call]
            block, x, self.self_linear.weight, self.self_linear.bias, self.neighbor_linear.weight
        )
        return output


Gradients = tuple[None, Tensor | None, Tensor, Tensor, Tensor]


class _MeanProjected(torch.autograd.Function):
    """The layer with the mean first. Both functions add in place, which layer-by-layer autograd cannot."""

    @staticmethod
    def forward(ctx: Any, block: Block, x: Tensor, *weights: Tensor) -> Tensor:
        own, bias, neighbor = weights
        mean = divide_by_degrees(block, sum_over_bags(x, block.indptr, block.indices))
        ctx.save_for_backward(x, mean, own, neighbor)
        ctx.block = block
        output = multiply(x[: block.num_destinations], own, bias)
        return output.add_(multiply(mean, neighbor))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> Gradients:
        x, mean, own, neighbor = ctx.saved_tensors
        block: Block = ctx.block
        upstream = upstream.contiguous()
        gradient: Tensor | None = None
        if ctx.needs_input_grad[1]:
            of_mean = divide_by_degrees(block, multiply(upstream, neighbor.t()))
            transpose = block.transpose()
            gradient = sum_over_bags(of_mean, transpose.indptr, transpose.indices)
            gradient[: block.num_destinations].add_(multiply(upstream, own.t()))
        own_gradient = multiply_transposed(upstream, x[: block.num_destinations])
        return None, gradient, own_gradient, upstream.sum(0), multiply_transposed(upstream, mean)


class _ProjectedMean(torch.autograd.Function):
    """The layer with the linear map of the neighbours first."""

    @staticmethod
    def forward(ctx: Any, block: Block, x: Tensor, *weights: Tensor) -> Tensor:
        own, bias, neighbor = weights
        ctx.save_for_backward(x, own, neighbor)
        ctx.block = block
        mean = divide_by_degrees(block, sum_over_bags(multiply(x, neighbor), block.indptr, block.indices))
        return mean.add_(multiply(x[: block.num_destinations], own, bias))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> Gradients:
        x, own, neighbor = ctx.saved_tensors
        block: Block = ctx.block
        upstream = upstream.contiguous()
        transpose = block.transpose()
        of_mean = divide_by_degrees(block, upstream.clone())
        of_projected = sum_over_bags(of_mean, transpose.indptr, transpose.indices)
        gradient: Tensor | None = None
        if ctx.needs_input_grad[1]:
            gradient = multiply(of_projected, neighbor.t())
            gradient[: block.num_destinations].add_(multiply(upstream, own.t()))
        own_gradient = multiply_transposed(upstream, x[: block.num_destinations])
        return None, gradient, own_gradient, upstream.sum(0), multiply_transposed(of_projected, x)
