"""Dropout: the law number by number, and what follows from it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.comm.random import GOLDEN, Stream, hash_ids, mix64, stream_key
from windrow.training.dropout import DropoutContext, _drop_anywhere
from windrow.training.dropout_kernels import drop_columns

KEY = stream_key(3, Stream.DROPOUT, 1, 4, 0)


def context(row_ids: Tensor, *, seed: int = 3, epoch: int = 1, step: int = 4) -> DropoutContext:
    return DropoutContext(seed=seed, epoch=epoch, step=step, row_ids=row_ids)


def drop(x: Tensor, probability: float, row_ids: Tensor, *, rectify: bool = False) -> Tensor:
    return context(row_ids).drop(x, probability, layer=0, rectify=rectify)


@given(
    rows=st.integers(0, 9),
    columns=st.integers(1, 21),
    probability=st.floats(0, 0.99),
    seed=st.integers(0, 2**64 - 1),
    first_id=st.integers(0, 2**50),
)
def test_kernel_and_torch_operations_draw_the_same_bits(
    rows: int, columns: int, probability: float, seed: int, first_id: int
) -> None:
    x = torch.arange(1, rows * columns + 1, dtype=torch.float32).view(rows, columns)
    row_ids = torch.arange(first_id, first_id + rows)
    result = context(row_ids, seed=seed).drop(x, probability, layer=2)
    key = stream_key(seed, Stream.DROPOUT, 1, 4, 2)
    assert torch.equal(result, _drop_anywhere(x, row_ids, key, round(probability * 65536)))


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_share_and_mean_are_as_asked(probability: float) -> None:
    result = drop(torch.ones(2000, 200), probability, torch.arange(2000))
    # 400,000 choices: five standard deviations are below 0.4 %.
    assert abs(float((result == 0).float().mean()) - probability) < 0.004
    assert abs(float(result.mean()) - 1) < 0.05
    assert torch.allclose(result[result != 0], torch.tensor(1 / (1 - probability)), rtol=1e-3)


def test_columns_and_rows_are_independent() -> None:
    kept = (drop(torch.ones(4000, 64), 0.5, torch.arange(4000)) != 0).double() - 0.5
    columns = kept.T @ kept / len(kept) * 4
    # Correlations of 4000 fair coins: standard deviation 0.016.
    assert columns.fill_diagonal_(0).abs().max() < 0.08


def test_a_row_is_the_same_wherever_it_stands_and_later_layers_use_a_prefix() -> None:
    row_ids, order = torch.tensor([8, 3, 11, 5]), torch.tensor([2, 0])
    x = torch.ones(4, 10)
    together = drop(x, 0.5, row_ids)
    assert torch.equal(drop(x[order], 0.5, row_ids[order]), together[order])
    assert torch.equal(drop(x[:2], 0.5, row_ids), together[:2])


def test_gradient_passes_where_the_value_did() -> None:
    x = torch.randn(6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: drop(x, 0.5, torch.arange(6)), (x,))
    single = torch.ones(6, 9, requires_grad=True)
    result = drop(single, 0.5, torch.arange(6))
    result.backward(torch.ones_like(result).T.contiguous().T)
    assert torch.equal(single.grad, result)  # type: ignore[arg-type]


def test_every_counter_changes_the_choices() -> None:
    x, rows = torch.ones(50, 50), torch.arange(50)
    contexts = [context(rows), context(rows, seed=9), context(rows, epoch=9), context(rows, step=9)]
    results = [context(rows).drop(x, 0.5, layer=1), *(other.drop(x, 0.5, layer=0) for other in contexts)]
    for i, first in enumerate(results):
        assert not any(torch.equal(first, second) for second in results[:i])
    assert torch.equal(context(rows).drop(x, 0.5, layer=0), results[1])


def test_without_dropout_only_the_rectifier_is_left() -> None:
    x, rows = torch.tensor([[1.0, -1.0], [-2.0, 2.0]]), torch.arange(2)
    assert drop(x, 0, rows) is x
    assert torch.equal(drop(x, 0, rows, rectify=True), torch.relu(x))


@pytest.mark.parametrize("probability", [-0.1, 1.0, 0.9999999])
def test_refuses_probabilities_outside_the_range(probability: float) -> None:
    with pytest.raises(RecipeError, match=f"dropout probability {probability}"):
        drop(torch.ones(2, 2), probability, torch.arange(2))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_draws_the_same_bits() -> None:
    x, row_ids = torch.ones(100, 30), torch.arange(100) * 12345
    assert torch.equal(drop(x.cuda(), 0.3, row_ids.cuda()).cpu(), drop(x, 0.3, row_ids))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rectifying_on_the_way_is_rectifying_first(dtype: torch.dtype) -> None:
    values = torch.randn(50, 13, generator=torch.Generator().manual_seed(0), dtype=dtype)
    upstream = torch.randn(50, 13, generator=torch.Generator().manual_seed(1), dtype=dtype)
    results = []
    for rectify in (True, False):
        x = values.clone().requires_grad_()
        out = drop(x if rectify else torch.relu(x), 0.3, torch.arange(50), rectify=rectify)
        results.append((out, *torch.autograd.grad(out, x, upstream)))
    for mine, expected in zip(*results, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-7, atol=0)


@pytest.mark.parametrize("lowest", [-np.inf, 0, 7])
@pytest.mark.parametrize("columns", [1, 3, 4, 7, 16])
def test_keeps_what_the_law_says(columns: int, lowest: float) -> None:
    row_ids = np.array([5, 0, 2**40, 7], dtype=np.int64)
    x = np.arange(-columns, 3 * columns, dtype=np.float32).reshape(4, columns)
    out = np.empty_like(x)
    threshold = 20_000
    drop_columns(x, row_ids, np.uint64(KEY), np.uint16(threshold), np.float32(2), np.float32(lowest), out, 0, 4)
    row_keys = hash_ids(KEY, row_ids)
    for row in range(4):
        for column in range(columns):
            word = mix64(int(row_keys[row]) ^ mix64(column // 4 + GOLDEN))
            kept = (word >> 16 * (column % 4)) & 0xFFFF >= threshold
            assert out[row, column] == (2 * max(x[row, column], lowest) if kept else 0)
