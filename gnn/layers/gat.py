"""Graph attention."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from windrow.comm.errors import RecipeError
from windrow.gnn.block import Block
from windrow.gnn.message_passing import add_ends, aggregate, edge_softmax
from windrow.training.linear import glorot, make_linear

__all__ = ["GATLayer"]


class GATLayer(nn.Module):
    """One graph attention layer (Velickovic et al.: Graph Attention Networks, ICLR 2018).

        z_u  = W_h x_u                                                 for each head h
        s_uv = LeakyReLU(a_source . z_u + a_destination . z_v)
        y_v  = concatenation or mean over heads of sum_{u in N(v)} softmax_v(s_uv) z_u, + b

    Equal to `dgl.nn.GATConv` without its dropouts. A vertex attends to itself only through a self-loop, so
    add self-loops to the graph. A destination without edges gets b.
    Shapes: x [num_sources, in_features] -> [num_destinations, out_features].
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        heads: int,
        combine: Literal["concatenate", "mean"] = "concatenate",
        negative_slope: float = 0.2,
        generator: torch.Generator,
    ) -> None:
        """Draw the weights.

        Args:
            in_features: columns of the input.
            out_features: columns of the output.
            heads: number of attention heads.
            combine: "concatenate" heads of out_features / heads columns, or "mean" of heads of out_features.
            negative_slope: slope of LeakyReLU below zero.
            generator: where initial weights come from.

        Raises:
            RecipeError: heads do not divide the output that they are to fill.
        """
        super().__init__()
        if heads < 1 or (combine == "concatenate" and out_features % heads):
            raise RecipeError(
                f"{heads} attention heads cannot share {out_features} columns: "
                f"choose a divisor of {out_features}"
            )
        self.heads = heads
        self.combine = combine
        self.negative_slope = negative_slope
        self.head_features = out_features // heads if combine == "concatenate" else out_features
        self.linear = make_linear(in_features, heads * self.head_features, bias=False, generator=generator)
        self.source_attention = glorot(heads, self.head_features, generator=generator)
        self.destination_attention = glorot(heads, self.head_features, generator=generator)
        self.bias = nn.Parameter(torch.zeros(out_features))

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """Apply the layer to one hop.

        Args:
            block: the bipartite graph.
            x: [num_sources, in_features].

        Returns:
            [num_destinations, out_features].
        """
        projected = self.linear(x).view(-1, self.heads, self.head_features)
        source_scores = (projected * self.source_attention).sum(-1)
        destination_scores = (projected[: block.num_destinations] * self.destination_attention).sum(-1)
        scores = functional.leaky_relu(
            add_ends(block, source_scores, destination_scores), self.negative_slope
        )
        rows = aggregate(block, projected, edge_weights=edge_softmax(block, scores))
        combined = rows.flatten(1) if self.combine == "concatenate" else rows.mean(1)
        return combined + self.bias
