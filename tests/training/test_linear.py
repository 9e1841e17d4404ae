"""Initial weights: their range, and where they come from."""

import torch

from windrow.training.dense import glorot, make_linear


def test_glorot_fills_its_range() -> None:
    weight = glorot(50, 100, generator=torch.Generator().manual_seed(0))
    bound = (6 / 150) ** 0.5
    assert weight.abs().max() <= bound
    assert weight.std() > 0.5 * bound


def test_linear_depends_on_the_generator_alone() -> None:
    before = torch.random.get_rng_state()
    first = make_linear(3, 4, generator=torch.Generator().manual_seed(1))
    second = make_linear(3, 4, generator=torch.Generator().manual_seed(1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(first.bias, torch.zeros(4))
    assert make_linear(3, 4, bias=False, generator=torch.Generator()).bias is None


def test_linear_computes_what_pytorch_does() -> None:
    layer = make_linear(5, 3, generator=torch.Generator().manual_seed(2))
    x = torch.linspace(-1, 1, 20).reshape(4, 5)
    torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))
    assert layer(x[:0]).shape == (0, 3)
