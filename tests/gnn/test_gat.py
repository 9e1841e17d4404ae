"""GAT against DGL and against a loop."""

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch.nn import functional

from windrow.comm.errors import RecipeError
from windrow.gnn.layers import GATLayer
from windrow.gnn.message_passing import Block


@pytest.mark.parametrize("combine", ["concatenate", "mean"])
@pytest.mark.parametrize("heads", [1, 3])
def test_equals_dgl(
    dgl_layer: Callable[..., Any],
    dgl_graph: Any,
    block: Block,
    generator: torch.Generator,
    assert_same_layer: Callable[..., None],
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


def test_equals_a_loop_over_destinations(block: Block, generator: torch.Generator) -> None:
    layer = GATLayer(5, 6, heads=2, generator=generator)
    torch.nn.init.normal_(layer.bias, generator=generator)
    x = torch.randn(block.num_sources, 5, generator=generator)
    projected = layer.linear(x).view(-1, 2, 3)
    expected = []
    for vertex in range(block.num_destinations):
        row = torch.zeros(2, 3)
        for head in range(2):
            neighbors = block.indices[block.indptr[vertex] : block.indptr[vertex + 1]].long()
            z = projected[neighbors, head]
            scores = functional.leaky_relu(
                z @ layer.source_attention[head]
                + projected[vertex, head] @ layer.destination_attention[head],
                0.2,
            )
            row[head] = scores.softmax(0) @ z
        expected.append(row.flatten() + layer.bias)
    torch.testing.assert_close(layer(block, x), torch.stack(expected), rtol=1e-5, atol=1e-6)


def test_refuses_heads_that_do_not_divide_the_output(generator: torch.Generator) -> None:
    with pytest.raises(RecipeError, match="4 attention heads cannot share 6 columns"):
        GATLayer(2, 6, heads=4, generator=generator)
