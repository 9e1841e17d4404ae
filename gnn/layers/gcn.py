"""Graph convolution with degree normalisation."""

from typing import Literal

import torch
from torch import Tensor, nn

from windrow.comm.errors import RecipeError
from windrow.gnn.block import Block
from windrow.gnn.layers.projection import aggregate_projected
from windrow.training.linear import make_linear

__all__ = ["GCNLayer"]


class GCNLayer(nn.Module):
    """One graph convolution (Kipf, Welling: Semi-Supervised Classification with GCNs, ICLR 2017).

        y_v = W sum_{u in N(v)} c_uv x_u + b

    with `normalisation`

        "both"     c_uv = 1 / sqrt(d_u d_v)
        "right"    c_uv = 1 / d_v
        "none"     c_uv = 1

    where d_v is the in-degree of the destination and d_u the out-degree of the source in the block, both at
    least 1: equal to `dgl.nn.GraphConv(norm=normalisation)` on whole graphs and on sampled blocks.

    Where the block knows `source_degrees` (d, in the graph that was sampled, taken as symmetric),
    "both" is c_uv = (d_v / k_v) / sqrt(d_u d_v) with k_v the number of sampled edges of v: the same on a
    whole graph, an unbiased estimate of it on a sample, and independent of which seeds share the minibatch.

    A vertex counts itself only through a self-loop, so add self-loops to the graph. A destination without
    edges gets b. Shapes: x [num_sources, in_features] -> [num_destinations, out_features].
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        normalisation: Literal["both", "right", "none"] = "both",
        generator: torch.Generator,
    ) -> None:
        """Draw the weights.

        Args:
            in_features: columns of the input.
            out_features: columns of the output.
            normalisation: see the class.
            generator: where initial weights come from.

        Raises:
            RecipeError: the normalisation is unknown.
        """
        super().__init__()
        if normalisation not in ("both", "right", "none"):
            raise RecipeError(f"GCN normalisation {normalisation!r} is unknown: choose both, right or none")
        self.normalisation = normalisation
        self.linear = make_linear(in_features, out_features, generator=generator)

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """Apply the layer to one hop.

        Args:
            block: the bipartite graph.
            x: [num_sources, in_features].

        Returns:
            [num_destinations, out_features].
        """
        weight = self.linear.weight
        if self.normalisation != "both":
            reduce: Literal["mean", "sum"] = "mean" if self.normalisation == "right" else "sum"
            return aggregate_projected(block, x, weight, reduce=reduce) + self.linear.bias
        source_scale, destination_scale = _symmetric_scales(block, x.dtype)
        total = aggregate_projected(block, x * source_scale, weight, reduce="sum")
        return total * destination_scale + self.linear.bias


def _symmetric_scales(block: Block, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    edges = block.degrees.clamp(min=1).to(dtype).unsqueeze(1)
    if block.source_degrees is None:
        return block.out_degrees.clamp(min=1).to(dtype).unsqueeze(1).rsqrt(), edges.rsqrt()
    degrees = block.source_degrees.clamp(min=1).to(dtype).unsqueeze(1)
    return degrees.rsqrt(), degrees[: block.num_destinations].sqrt() / edges
