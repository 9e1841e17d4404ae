"""The two orders of aggregation and projection give the same rows."""

from typing import Literal

import pytest
import torch

from windrow.gnn.layers import aggregate_projected, projects_first
from windrow.gnn.message_passing import Block, aggregate


@pytest.mark.parametrize("out_features", [1, 40])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_both_orders_agree(
    block: Block, generator: torch.Generator, out_features: int, reduce: Literal["sum", "mean"]
) -> None:
    x = torch.randn(block.num_sources, 20, generator=generator)
    weight = torch.randn(out_features, 20, generator=generator)
    result = aggregate_projected(block, x, weight, reduce=reduce)
    torch.testing.assert_close(result, aggregate(block, x @ weight.T, reduce=reduce), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(result, aggregate(block, x, reduce=reduce) @ weight.T, rtol=1e-4, atol=1e-4)


def test_projects_first_where_that_costs_less() -> None:
    dense = Block.whole(torch.arange(0, 1001, 100), torch.zeros(1000, dtype=torch.int64))
    x = torch.zeros(10, 64, requires_grad=True)
    assert projects_first(dense, x, 8)
    assert not projects_first(dense, x, 65)
    one_edge_each = Block(
        num_sources=1000, num_destinations=10, indptr=torch.arange(11), indices=torch.arange(10)
    )
    assert not projects_first(one_edge_each, torch.zeros(1000, 64, requires_grad=True), 8)
