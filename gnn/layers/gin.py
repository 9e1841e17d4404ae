"""Graph isomorphism network."""

import torch
from torch import Tensor, nn

from windrow.gnn.block import Block
from windrow.gnn.message_passing import aggregate
from windrow.training.linear import make_linear

__all__ = ["GINLayer"]


class GINLayer(nn.Module):
    """One GIN layer (Xu et al.: How Powerful are Graph Neural Networks?, ICLR 2019).

        y_v = MLP((1 + epsilon) x_v + sum_{u in N(v)} x_u),     MLP(z) = W_2 relu(W_1 z + b_1) + b_2

    with a learnt epsilon that starts at 0. No batch normalisation inside the MLP: its statistics would depend
    on the number of ranks. A destination without edges gets MLP((1 + epsilon) x_v). Equal to
    `dgl.nn.GINConv(mlp, "sum", learn_eps=True)`.
    Shapes: x [num_sources, in_features] -> [num_destinations, out_features].
    """

    def __init__(self, in_features: int, out_features: int, *, generator: torch.Generator) -> None:
        """Draw the weights.

        Args:
            in_features: columns of the input.
            out_features: columns of the output and of the MLP's hidden layer.
            generator: where initial weights come from.
        """
        super().__init__()
        self.epsilon = nn.Parameter(torch.zeros(()))
        self.hidden_linear = make_linear(in_features, out_features, generator=generator)
        self.output_linear = make_linear(out_features, out_features, generator=generator)

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """Apply the layer to one hop.

        Args:
            block: the bipartite graph.
            x: [num_sources, in_features].

        Returns:
            [num_destinations, out_features].
        """
        total = (1 + self.epsilon) * x[: block.num_destinations] + aggregate(block, x)
        output: Tensor = self.output_linear(self.hidden_linear(total).relu())
        return output
