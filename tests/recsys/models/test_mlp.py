"""The feed-forward net: its formula and its dropout."""

import torch
from torch.nn import functional

from windrow.recsys.models.click_models import MLP
from windrow.training.dropout import DropoutContext


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_formula() -> None:
    mlp = MLP([5, 7, 3], generator=generator())
    x = torch.randn(4, 5, generator=generator(1))
    expected = x
    for linear in mlp.layers:
        expected = torch.relu(functional.linear(expected, linear.weight, linear.bias))  # type: ignore[arg-type]
    torch.testing.assert_close(mlp(x), expected)
    assert mlp.out_features == 3


def test_one_size_changes_nothing() -> None:
    x = torch.randn(4, 5, generator=generator())
    assert MLP([5], generator=generator())(x) is x


def test_every_layer_drops_at_a_place_of_its_own() -> None:
    context = DropoutContext(seed=0, epoch=0, step=0, row_ids=torch.arange(64))
    x = torch.rand(64, 16, generator=generator()) + 1
    kept = []
    for place in (0, 1):
        mlp = MLP([16, 16], dropout=0.5, first_place=place, generator=generator())
        with torch.no_grad():
            mlp.layers[0].weight.copy_(torch.eye(16))  # type: ignore[operator, union-attr]
        kept.append(mlp(x, context) > 0)
    assert not torch.equal(*kept)
    assert abs(float(kept[0].float().mean()) - 0.5) < 0.1
