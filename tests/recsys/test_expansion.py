"""Expansion against plain loops, and its gradients against PyTorch's."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from windrow.recsys import embeddings as expansion
from windrow.recsys.embeddings import ColumnRun, expand_columns, expand_lists, expand_rows


@st.composite
def inverses(draw: st.DrawFn, max_rows: int = 4) -> tuple[int, list[int]]:
    """A number of rows, and the row of each of some samples; no rows, no samples."""
    rows = draw(st.integers(0, max_rows))
    return rows, draw(st.lists(st.integers(0, rows - 1), max_size=8)) if rows else []


def whole_numbers(*shape: int) -> Tensor:
    """Values whose sums are exact, so that orders of adding cannot be told apart."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-50, 50, shape, generator=generator).float().requires_grad_()


@given(shape=inverses(), width=st.integers(0, 5))
def test_rows_and_their_gradients(shape: tuple[int, list[int]], width: int) -> None:
    rows = whole_numbers(shape[0], width)
    inverse = torch.tensor(shape[1], dtype=torch.int64)
    result, expected = expand_rows(rows, inverse), rows.index_select(0, inverse)
    assert torch.equal(result, expected)
    upstream = whole_numbers(*expected.shape).detach()
    (gradient,) = torch.autograd.grad(result, rows, upstream)
    slow = torch.zeros_like(rows)
    for sample, row in enumerate(shape[1]):
        slow[row] = slow[row] + upstream[sample]
    assert torch.equal(gradient, slow)


def test_without_an_inverse_nothing_is_copied() -> None:
    rows = whole_numbers(3, 4)
    assert expand_rows(rows, None) is rows
    assert expand_lists(rows, torch.tensor([1, 2]), None)[0] is rows


def test_duplicates_are_added_in_the_order_of_samples() -> None:
    rows = torch.zeros(1, 1, requires_grad=True)
    upstream = torch.tensor([[1e8], [1.0], [-1e8], [1.0]])
    (gradient,) = torch.autograd.grad(expand_rows(rows, torch.zeros(4, dtype=torch.int64)), rows, upstream)
    assert gradient.item() == 1.0  # ((1e8 + 1) - 1e8) + 1 in float32; other orders give 0 or 2.


@pytest.mark.parametrize("by_pytorch", [False, True], ids=["compiled", "pytorch"])
def test_groups_side_by_side(monkeypatch: pytest.MonkeyPatch, *, by_pytorch: bool) -> None:
    if by_pytorch:
        monkeypatch.setattr(expansion, "is_compiled", lambda rows: False)
    shared, own, idle = whole_numbers(2, 5), whole_numbers(3, 2), torch.ones(1, 1)
    inverse = torch.tensor([1, 0, 1])
    runs = [[ColumnRun(0, 3, 2), ColumnRun(2, 0, 3)], [ColumnRun(0, 5, 2)], [ColumnRun(0, 7, 1)]]
    result = expand_columns([shared, own, idle], [inverse, None, inverse * 0], runs, 3)
    of_samples = shared[inverse]
    expected = torch.cat([of_samples[:, 2:], of_samples[:, :2], own, torch.ones(3, 1)], 1)
    assert torch.equal(result, expected)
    upstream = whole_numbers(3, 8).detach()
    mine = torch.autograd.grad(result, [shared, own], upstream)
    slow = torch.autograd.grad(expected, [shared, own], upstream)
    assert all(torch.equal(*pair) for pair in zip(mine, slow, strict=True))


@given(shape=inverses(), data=st.data(), way=st.sampled_from(["compiled", "pytorch", "padded"]))
def test_lists_and_their_gradients(shape: tuple[int, list[int]], data: st.DataObject, way: str) -> None:
    lengths = data.draw(st.lists(st.integers(0, 4), min_size=shape[0], max_size=shape[0]))
    items = whole_numbers(sum(lengths), 3)
    inverse = torch.tensor(shape[1], dtype=torch.int64)
    with pytest.MonkeyPatch.context() as patch:
        if way == "pytorch":
            patch.setattr(expansion, "is_compiled", lambda rows: False)
        result, of_samples = expand_lists(
            items, torch.tensor(lengths, dtype=torch.int32), inverse, pad=way == "padded"
        )
    lists = items.split(lengths)
    expected = torch.cat([items[:0], *(lists[row] for row in shape[1])])
    assert of_samples.tolist() == [lengths[row] for row in shape[1]]
    assert of_samples.dtype == torch.int64
    assert torch.equal(result, expected)
    upstream = whole_numbers(*expected.shape).detach()
    (mine,) = torch.autograd.grad(result, items, upstream)
    (slow,) = torch.autograd.grad(expected, items, upstream)
    assert torch.equal(mine, slow)


def test_gradients_of_double_precision() -> None:
    rows = torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    inverse = torch.tensor([2, 0, 2, 2])
    assert torch.autograd.gradcheck(lambda value: expand_rows(value, inverse), rows)
    lengths = torch.tensor([1, 0, 2])
    assert torch.autograd.gradcheck(lambda value: expand_lists(value, lengths, inverse)[0], rows)
