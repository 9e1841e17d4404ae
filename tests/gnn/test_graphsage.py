"""GraphSAGE against DGL and against a loop."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from windrow.gnn.layers import GraphSAGELayer
from windrow.gnn.message_passing import Block


@pytest.mark.parametrize(("in_features", "out_features"), [(12, 5), (5, 12)])
def test_equals_dgl(
    dgl_layer: Callable[..., Any],
    dgl_graph: Any,
    block: Block,
    generator: torch.Generator,
    assert_same_layer: Callable[..., None],
    in_features: int,
    out_features: int,
) -> None:
    layer = GraphSAGELayer(in_features, out_features, generator=generator)
    reference = dgl_layer("SAGEConv", in_features, out_features, "mean")
    torch.nn.init.normal_(layer.self_linear.bias, generator=generator)
    assert_same_layer(
        lambda x: layer(block, x),
        lambda x: reference(dgl_graph, x),
        torch.randn(block.num_sources, in_features, generator=generator),
        [
            (layer.self_linear.weight, reference.fc_self.weight),
            (layer.self_linear.bias, reference.fc_self.bias),
            (layer.neighbor_linear.weight, reference.fc_neigh.weight),
        ],
    )


def test_equals_a_loop_over_destinations(block: Block, generator: torch.Generator) -> None:
    layer = GraphSAGELayer(6, 4, generator=generator)
    x = torch.randn(block.num_sources, 6, generator=generator)
    expected = []
    for vertex in range(block.num_destinations):
        row = layer.self_linear(x[vertex])
        neighbors = block.indices[block.indptr[vertex] : block.indptr[vertex + 1]].long()
        if len(neighbors):
            row = row + layer.neighbor_linear(x[neighbors].mean(0))
        expected.append(row)
    torch.testing.assert_close(layer(block, x), torch.stack(expected))
