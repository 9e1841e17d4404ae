"""Row-wise Adagrad on dense gradients."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from windrow.recsys.tables.dense_gradient import RowWiseAdagrad, update_rows


@given(rows=st.integers(0, 8), dim=st.integers(1, 9), seed=st.integers(0, 1000))
def test_is_the_formula(rows, dim, seed):
    generator = torch.Generator().manual_seed(seed)
    weight, gradient = torch.randn(2, rows, dim, generator=generator)
    accumulator = torch.rand(rows, generator=generator)
    expected_weight, expected = weight.clone(), accumulator.clone()
    for row in range(rows):
        expected[row] += (gradient[row] ** 2).sum() / dim
        expected_weight[row] -= 0.3 * gradient[row] / (expected[row].sqrt() + 1e-2)
    update_rows(weight, gradient, accumulator, 0.3, 1e-2)
    torch.testing.assert_close(accumulator, expected)
    torch.testing.assert_close(weight, expected_weight)


def test_zero_gradient_moves_nothing():
    weight, accumulator = torch.ones(2, 4), torch.zeros(2)
    update_rows(weight, torch.zeros(2, 4), accumulator, 1.0, 1e-8)
    assert torch.equal(weight, torch.ones(2, 4))
    assert not accumulator.any()


def test_optimiser_skips_parameters_without_gradient():
    used, unused = nn.Parameter(torch.ones(2, 4)), nn.Parameter(torch.ones(3, 4))
    optimizer = RowWiseAdagrad([used, unused], lr=0.5, eps=1e-8)

    def closure() -> float:
        loss = used[0].sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 4.0
    torch.testing.assert_close(used.detach(), torch.tensor([[0.5] * 4, [1.0] * 4]))
    assert torch.equal(unused, torch.ones(3, 4))
    assert optimizer.state[used]["sum"].tolist() == [1.0, 0.0]


def test_weight_decay_is_added_to_the_gradient():
    weight = torch.linspace(-1, 1, 12).view(3, 4)
    gradient = torch.linspace(0, 1, 12).view(3, 4)
    parameter = torch.nn.Parameter(weight.clone())
    parameter.grad = gradient.clone()
    RowWiseAdagrad([parameter], lr=0.1, eps=1e-4, weight_decay=0.5).step()
    update_rows(weight, gradient + 0.5 * weight, torch.zeros(3), 0.1, 1e-4)
    torch.testing.assert_close(parameter.detach(), weight)
