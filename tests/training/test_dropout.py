"""Dropout: the law number by number, and what follows from it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.comm.errors import RecipeError
from windrow.comm.random import GOLDEN, hash_ids, mix64, stream_key
from windrow.training.dropout import DropoutContext, _drop_anywhere, _drop_rows
from windrow.training.dropout_kernels import drop_columns

KEY = stream_key(3, 1, 4)


@given(
    rows=st.integers(0, 9),
    columns=st.integers(1, 21),
    probability=st.floats(0, 0.99),
    key=st.integers(0, 2**64 - 1),
    first_id=st.integers(0, 2**50),
)
@settings(deadline=None)
def test_kernel_and_torch_operations_draw_the_same_bits(
    rows: int, columns: int, probability: float, key: int, first_id: int
) -> None:
    x = torch.arange(1, rows * columns + 1, dtype=torch.float32).view(rows, columns)
    row_ids = torch.arange(first_id, first_id + rows)
    result = _drop_rows(x, probability, key=key, row_ids=row_ids)
    expected = _drop_anywhere(x, row_ids, key, round(probability * 65536))
    assert torch.equal(result, expected)


def test_share_and_mean_are_as_asked() -> None:
    x = torch.ones(2000, 200)
    for probability in (0.1, 0.5, 0.9):
        result = _drop_rows(x, probability, key=KEY, row_ids=torch.arange(2000))
        # 400,000 choices: five standard deviations are below 0.4 %.
        assert abs(float((result == 0).float().mean()) - probability) < 0.004
        assert abs(float(result.mean()) - 1) < 0.05
        assert torch.allclose(result[result != 0], torch.tensor(1 / (1 - probability)), rtol=1e-3)


def test_columns_and_rows_are_independent() -> None:
    kept = (_drop_rows(torch.ones(4000, 64), 0.5, key=KEY, row_ids=torch.arange(4000)) != 0).double() - 0.5
    columns = kept.T @ kept / len(kept) * 4
    off_diagonal = columns - torch.diag(columns.diag())
    # Correlations of 4000 fair coins: standard deviation 0.016.
    assert off_diagonal.abs().max() < 0.08


def test_a_row_is_the_same_wherever_it_stands() -> None:
    row_ids = torch.tensor([8, 3, 11, 5])
    x = torch.ones(4, 10)
    together = _drop_rows(x, 0.5, key=KEY, row_ids=row_ids)
    order = torch.tensor([2, 0])
    assert torch.equal(_drop_rows(x[order], 0.5, key=KEY, row_ids=row_ids[order]), together[order])


def test_gradient_passes_where_the_value_did() -> None:
    x = torch.randn(6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    row_ids = torch.arange(6)
    assert torch.autograd.gradcheck(lambda x: _drop_rows(x, 0.5, key=KEY, row_ids=row_ids), (x,))
    single = torch.ones(6, 9, requires_grad=True)
    result = _drop_rows(single, 0.5, key=KEY, row_ids=row_ids)
    result.backward(torch.ones_like(result).T.contiguous().T)
    assert torch.equal(single.grad, result)  # type: ignore[arg-type]


def context(*, seed: int = 1, epoch: int = 2, step: int = 3) -> DropoutContext:
    return DropoutContext(seed=seed, epoch=epoch, step=step, row_ids=torch.arange(50))


def test_every_counter_changes_the_choices() -> None:
    x = torch.ones(50, 50)
    results = [context().drop(x, 0.5, layer=0), context().drop(x, 0.5, layer=1)]
    results += [other.drop(x, 0.5, layer=0) for other in (context(seed=9), context(epoch=9), context(step=9))]
    for i, first in enumerate(results):
        assert not any(torch.equal(first, second) for second in results[:i])
    assert torch.equal(context().drop(x, 0.5, layer=0), results[0])


def test_later_layers_use_a_prefix_of_the_rows() -> None:
    x = torch.ones(50, 12)
    all_rows = context().drop(x, 0.5, layer=0)
    assert torch.equal(context().drop(x[:20], 0.5, layer=0), all_rows[:20])


def test_probability_zero_returns_the_input() -> None:
    x = torch.ones(50, 12)
    assert context().drop(x, 0, layer=0) is x


@pytest.mark.parametrize("probability", [-0.1, 1.0, 0.9999999])
def test_refuses_probabilities_outside_the_range(probability: float) -> None:
    with pytest.raises(RecipeError, match=f"dropout probability {probability}"):
        _drop_rows(torch.ones(2, 2), probability, key=KEY, row_ids=torch.arange(2))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_draws_the_same_bits() -> None:
    x = torch.ones(100, 30)
    row_ids = torch.arange(100) * 12345
    expected = _drop_rows(x, 0.3, key=KEY, row_ids=row_ids)
    assert torch.equal(_drop_rows(x.cuda(), 0.3, key=KEY, row_ids=row_ids.cuda()).cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rectifying_on_the_way_is_rectifying_first(dtype: torch.dtype) -> None:
    values = torch.randn(50, 13, generator=torch.Generator().manual_seed(0), dtype=dtype)
    upstream = torch.randn(50, 13, generator=torch.Generator().manual_seed(1), dtype=dtype)
    results = []
    for rectify in (True, False):
        x = values.clone().requires_grad_()
        before = x if rectify else torch.relu(x)
        out = _drop_rows(before, 0.3, key=KEY, row_ids=torch.arange(50), rectify=rectify)
        results.append((out, *torch.autograd.grad(out, x, upstream)))
    for mine, expected in zip(*results, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-7, atol=0)


def test_without_dropout_only_the_rectifier_is_left() -> None:
    context = DropoutContext(seed=1, epoch=0, step=0, row_ids=torch.arange(2))
    x = torch.tensor([[1.0, -1.0], [-2.0, 2.0]])
    assert torch.equal(context.drop(x, 0, layer=0, rectify=True), torch.relu(x))


@pytest.mark.parametrize("lowest", [-np.inf, 0, 7])
@pytest.mark.parametrize("columns", [1, 3, 4, 7, 16])
def test_keeps_what_the_law_says(columns: int, lowest: float) -> None:
    row_ids = np.array([5, 0, 2**40, 7], dtype=np.int64)
    x = np.arange(-columns, 3 * columns, dtype=np.float32).reshape(4, columns)
    out = np.empty_like(x)
    threshold = 20_000
    drop_columns(x, row_ids, np.uint64(KEY), np.uint16(threshold), np.float32(2), np.float32(lowest), out)
    row_keys = hash_ids(KEY, row_ids)
    for row in range(4):
        for column in range(columns):
            word = mix64(int(row_keys[row]) ^ mix64(column // 4 + GOLDEN))
            kept = (word >> 16 * (column % 4)) & 0xFFFF >= threshold
            assert out[row, column] == (2 * max(x[row, column], lowest) if kept else 0)
