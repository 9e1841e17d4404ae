"""Layers against DGL, against loops and dense formulas, and their independence of the minibatch."""

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import nn
from torch.nn import functional

from windrow.comm.errors import RecipeError
from windrow.gnn import layers
from windrow.gnn.layers import GATLayer, GCNLayer, GINLayer, GraphSAGELayer
from windrow.gnn.message_passing import Block
from windrow.training.dense import make_linear

Comparison = Callable[..., None]


@pytest.mark.parametrize(("in_features", "out_features"), [(12, 5), (5, 12)])
def test_graphsage_equals_dgl(
    dgl_layer: Callable[..., Any],
    dgl_graph: Any,
    block: Block,
    generator: torch.Generator,
    assert_same_layer: Comparison,
    in_features: int,
    out_features: int,
) -> None:
    layer = GraphSAGELayer(in_features, out_features, generator=generator)
    reference = dgl_layer("SAGEConv", in_features, out_features, "mean")
    nn.init.normal_(layer.self_linear.bias, generator=generator)
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


@pytest.mark.parametrize("normalisation", ["both", "right", "none"])
@pytest.mark.parametrize(("in_features", "out_features"), [(12, 5), (5, 12)])
def test_gcn_equals_dgl(
    dgl_layer: Callable[..., Any],
    dgl_graph: Any,
    block: Block,
    generator: torch.Generator,
    assert_same_layer: Comparison,
    normalisation: Literal["both", "right", "none"],
    in_features: int,
    out_features: int,
) -> None:
    layer = GCNLayer(in_features, out_features, normalisation=normalisation, generator=generator)
    reference = dgl_layer(
        "GraphConv", in_features, out_features, norm=normalisation, allow_zero_in_degree=True
    )
    nn.init.normal_(layer.linear.bias, generator=generator)
    with torch.no_grad():
        # DGL keeps the transpose of our weight.
        reference.weight.copy_(layer.linear.weight.T)
    assert_same_layer(
        lambda x: layer(block, x),
        lambda x: reference(dgl_graph, x),
        torch.randn(block.num_sources, in_features, generator=generator),
        [(layer.linear.bias, reference.bias)],
    )
    assert layer.linear.weight.grad is not None
    torch.testing.assert_close(layer.linear.weight.grad, reference.weight.grad.T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("combine", ["concatenate", "mean"])
@pytest.mark.parametrize("heads", [1, 3])
def test_gat_equals_dgl(
    dgl_layer: Callable[..., Any],
    dgl_graph: Any,
    block: Block,
    generator: torch.Generator,
    assert_same_layer: Comparison,
    combine: Literal["concatenate", "mean"],
    heads: int,
) -> None:
    layer = GATLayer(8, 6, heads=heads, combine=combine, generator=generator)
    reference = dgl_layer("GATConv", 8, layer.head_features, heads, allow_zero_in_degree=True, bias=False)

    def reference_layer(x: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = reference(dgl_graph, x)
        return rows.flatten(1) if combine == "concatenate" else rows.mean(1)

    assert_same_layer(
        lambda x: layer(block, x),
        reference_layer,
        torch.randn(block.num_sources, 8, generator=generator),
        [
            (layer.linear.weight, reference.fc.weight),
            (layer.source_attention, reference.attn_l),
            (layer.destination_attention, reference.attn_r),
        ],
    )


def test_gin_equals_dgl(
    dgl_layer: Callable[..., Any],
    dgl_graph: Any,
    block: Block,
    generator: torch.Generator,
    assert_same_layer: Comparison,
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


def test_gat_equals_a_loop_over_destinations(block: Block, generator: torch.Generator) -> None:
    layer = GATLayer(5, 6, heads=2, generator=generator)
    nn.init.normal_(layer.bias, generator=generator)
    x = torch.randn(block.num_sources, 5, generator=generator)
    projected = layer.linear(x).view(-1, 2, 3)
    expected = []
    for vertex in range(block.num_destinations):
        row = torch.zeros(2, 3)
        for head in range(2):
            neighbors = block.indices[block.indptr[vertex] : block.indptr[vertex + 1]].long()
            z = projected[neighbors, head]
            at_source = z @ layer.source_attention[head]
            at_destination = projected[vertex, head] @ layer.destination_attention[head]
            row[head] = functional.leaky_relu(at_source + at_destination, 0.2).softmax(0) @ z
        expected.append(row.flatten() + layer.bias)
    torch.testing.assert_close(layer(block, x), torch.stack(expected), rtol=1e-5, atol=1e-6)


def test_gin_equals_the_dense_formula(block: Block, generator: torch.Generator) -> None:
    layer = GINLayer(3, 4, generator=generator)
    x = torch.randn(block.num_sources, 3, generator=generator)
    adjacency = torch.zeros(block.num_destinations, block.num_sources)
    adjacency.index_put_((block.edge_destinations, block.indices.long()), torch.ones(()), accumulate=True)
    total = x[: block.num_destinations] + adjacency @ x
    torch.testing.assert_close(layer(block, x), layer.output_linear(layer.hidden_linear(total).relu()))


def symmetric_graph() -> tuple[Block, torch.Tensor]:
    adjacency = (torch.rand(30, 30, generator=torch.Generator().manual_seed(5)) < 0.2).float()
    adjacency = ((adjacency + adjacency.T) > 0).float()
    indptr = torch.zeros(31, dtype=torch.int64)
    indptr[1:] = adjacency.sum(1).long().cumsum(0)
    return Block.whole(indptr, adjacency.nonzero()[:, 1]), adjacency


@pytest.mark.parametrize("projects_first", [True, False])
def test_gcn_equals_the_dense_formula_in_both_orders(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch, projects_first: bool
) -> None:
    monkeypatch.setattr(layers, "_projects_first", lambda *shape: projects_first)
    block, adjacency = symmetric_graph()
    layer = GCNLayer(6, 4, generator=generator)
    x = torch.randn(30, 6, generator=generator)
    scale = adjacency.sum(1).clamp(min=1).rsqrt()
    expected = layer.linear(scale[:, None] * (adjacency @ (scale[:, None] * x)))
    torch.testing.assert_close(layer(block, x), expected)


def test_projection_comes_first_where_that_costs_less() -> None:
    dense = Block.whole(torch.arange(0, 1001, 100), torch.zeros(1000, dtype=torch.int64))
    x = torch.zeros(10, 64, requires_grad=True)
    assert layers._projects_first(dense, x, 8)
    assert not layers._projects_first(dense, x, 65)
    one_edge_each = Block(
        num_sources=1000, num_destinations=10, indptr=torch.arange(11), indices=torch.arange(10)
    )
    assert not layers._projects_first(one_edge_each, torch.zeros(1000, 64, requires_grad=True), 8)


def test_with_graph_degrees_a_subset_of_destinations_gives_the_same_rows(generator: torch.Generator) -> None:
    whole, _ = symmetric_graph()
    layer = GCNLayer(6, 4, generator=generator)
    x = torch.randn(30, 6, generator=generator)
    some = Block(
        num_sources=30,
        num_destinations=7,
        indptr=whole.indptr[:8],
        indices=whole.indices[: int(whole.indptr[7])],
        source_degrees=whole.degrees,
    )
    torch.testing.assert_close(layer(some, x), layer(whole, x)[:7])


def test_bad_options_are_refused(generator: torch.Generator) -> None:
    with pytest.raises(RecipeError, match="'left' is unknown"):
        GCNLayer(2, 2, normalisation="left", generator=generator)  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="4 attention heads cannot share 6 columns"):
        GATLayer(2, 6, heads=4, generator=generator)
