"""GIN against DGL and against the dense formula."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from windrow.gnn.layers import GINLayer
from windrow.gnn.message_passing import Block
from windrow.training.dense import make_linear


def test_equals_dgl(
    dgl_layer: Callable[..., Any],
    dgl_graph: Any,
    block: Block,
    generator: torch.Generator,
    assert_same_layer: Callable[..., None],
) -> None:
    layer = GINLayer(7, 4, generator=generator)
    first, second = make_linear(7, 4, generator=generator), make_linear(4, 4, generator=generator)
    mlp = nn.Sequential(first, nn.ReLU(), second)
    reference = dgl_layer("GINConv", mlp, "sum", init_eps=0.3, learn_eps=True)
    with torch.no_grad():
        layer.epsilon.fill_(0.3)
    assert_same_layer(
        lambda x: layer(block, x),
        lambda x: reference(dgl_graph, x),
        torch.randn(block.num_sources, 7, generator=generator),
        [
            (layer.epsilon, reference.eps),
            (layer.hidden_linear.weight, first.weight),
            (layer.hidden_linear.bias, first.bias),
            (layer.output_linear.weight, second.weight),
            (layer.output_linear.bias, second.bias),
        ],
    )


def test_equals_the_dense_formula(block: Block, generator: torch.Generator) -> None:
    layer = GINLayer(3, 4, generator=generator)
    x = torch.randn(block.num_sources, 3, generator=generator)
    adjacency = torch.zeros(block.num_destinations, block.num_sources)
    adjacency.index_put_((block.edge_destinations, block.indices.long()), torch.ones(()), accumulate=True)
    total = x[: block.num_destinations] + adjacency @ x
    torch.testing.assert_close(layer(block, x), layer.output_linear(layer.hidden_linear(total).relu()))
