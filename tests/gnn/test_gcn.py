"""GCN against DGL, against the dense formula, and its independence of the minibatch."""

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch

from windrow.comm.errors import RecipeError
from windrow.gnn.layers import GCNLayer
from windrow.gnn.message_passing import Block


@pytest.mark.parametrize("normalisation", ["both", "right", "none"])
@pytest.mark.parametrize(("in_features", "out_features"), [(12, 5), (5, 12)])
def test_equals_dgl(
    dgl_layer: Callable[..., Any],
    dgl_graph: Any,
    block: Block,
    generator: torch.Generator,
    assert_same_layer: Callable[..., None],
    normalisation: Literal["both", "right", "none"],
    in_features: int,
    out_features: int,
) -> None:
    layer = GCNLayer(in_features, out_features, normalisation=normalisation, generator=generator)
    reference = dgl_layer(
        "GraphConv", in_features, out_features, norm=normalisation, allow_zero_in_degree=True
    )
    torch.nn.init.normal_(layer.linear.bias, generator=generator)
    # DGL keeps the transpose of our weight.
    transposed = torch.nn.Parameter(layer.linear.weight.detach().T.contiguous())
    with torch.no_grad():
        reference.weight.copy_(transposed)
    x = torch.randn(block.num_sources, in_features, generator=generator)
    assert_same_layer(
        lambda x: layer(block, x),
        lambda x: reference(dgl_graph, x),
        x,
        [(layer.linear.bias, reference.bias)],
    )
    assert layer.linear.weight.grad is not None
    torch.testing.assert_close(layer.linear.weight.grad, reference.weight.grad.T, rtol=1e-5, atol=1e-5)


def symmetric_graph() -> tuple[Block, torch.Tensor]:
    adjacency = (torch.rand(30, 30, generator=torch.Generator().manual_seed(5)) < 0.2).float()
    adjacency = ((adjacency + adjacency.T) > 0).float()
    indptr = torch.zeros(31, dtype=torch.int64)
    indptr[1:] = adjacency.sum(1).long().cumsum(0)
    return Block.whole(indptr, adjacency.nonzero()[:, 1]), adjacency


def test_equals_the_dense_formula_on_a_whole_graph(generator: torch.Generator) -> None:
    block, adjacency = symmetric_graph()
    layer = GCNLayer(6, 4, generator=generator)
    x = torch.randn(30, 6, generator=generator)
    scale = adjacency.sum(1).clamp(min=1).rsqrt()
    expected = layer.linear(scale[:, None] * (adjacency @ (scale[:, None] * x)))
    torch.testing.assert_close(layer(block, x), expected)


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


def test_refuses_an_unknown_normalisation(generator: torch.Generator) -> None:
    with pytest.raises(RecipeError, match="'left' is unknown"):
        GCNLayer(2, 2, normalisation="left", generator=generator)  # type: ignore[arg-type]
