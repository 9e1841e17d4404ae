"""Cross layers against their formula."""

import pytest
import torch

from windrow.recsys.models.click_models import CrossNetwork


@pytest.mark.parametrize("low_rank", [None, 2])
@pytest.mark.parametrize("num_layers", [0, 1, 3])
def test_formula(num_layers: int, low_rank: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    network = CrossNetwork(5, num_layers, low_rank=low_rank, generator=generator)
    x0 = torch.randn(4, 5, generator=generator)
    expected = x0
    for layer, wide in enumerate(network.wide):
        weight = wide.weight if low_rank is None else wide.weight @ network.narrow[layer].weight
        expected = x0 * (expected @ weight.T + wide.bias) + expected
    torch.testing.assert_close(network(x0), expected)


def test_low_rank_has_fewer_weights() -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = [
        sum(p.numel() for p in CrossNetwork(40, 2, low_rank=rank, generator=generator).parameters())
        for rank in (None, 5)
    ]
    assert sizes == [2 * (40 * 40 + 40), 2 * (2 * 40 * 5 + 40)]
