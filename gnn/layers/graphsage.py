"""GraphSAGE with the mean aggregator."""

import torch
from torch import Tensor, nn

from windrow.gnn.block import Block
from windrow.gnn.layers.linear import make_linear
from windrow.gnn.layers.projection import aggregate_projected

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
        neighbors = aggregate_projected(block, x, self.neighbor_linear.weight, reduce="mean")
        own: Tensor = self.self_linear(x[: block.num_destinations])
        return own + neighbors
