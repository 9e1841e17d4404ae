from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.recsys import embeddings as expansion
from windrow.recsys.batches.jagged import Deduplicated, Jagged
from windrow.recsys.embeddings import ColumnRun, Embeddings, PooledRows, expand_columns, expand_rows
from windrow.recsys.torchrec_adapter import JaggedTensor

DIMS = {"a": 2, "b": 1, "c": 3, "d": 4}


def rows_of(names: tuple[str, ...], num_rows: int, seed: int) -> torch.Tensor:
    width = sum(DIMS[name] for name in names)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-9, 9, (num_rows, width), generator=generator).float().requires_grad_()


@given(
    cuts=st.sets(st.integers(1, 3)),
    order=st.permutations(list(DIMS)),
    again=st.permutations(list(DIMS)),
    num_samples=st.integers(0, 5),
    data=st.data(),
)
def test_any_groups_in_any_order(
    cuts: set[int], order: list[str], again: list[str], num_samples: int, data: st.DataObject
) -> None:
    bounds = [0, *sorted(cuts), 4]
    groups, columns = [], {}
    for first, last in pairwise(bounds):
        names = tuple(order[first:last])
        inverse = None
        if data.draw(st.booleans()):
            size = data.draw(st.integers(min(num_samples, 1), 3))
            picks = [data.draw(st.integers(0, size - 1)) for _ in range(num_samples)]
            inverse = torch.tensor(picks, dtype=torch.int64)
            rows = rows_of(names, size, first)
        else:
            rows = rows_of(names, num_samples, first)
        dims = tuple(DIMS[name] for name in names)
        groups.append(PooledRows(names, dims, rows, inverse))
        of_samples = rows if inverse is None else rows[inverse]
        columns.update(dict(zip(names, of_samples.split(dims, 1), strict=True)))
    embeddings = Embeddings(groups, tuple(again))
    expected = torch.cat([columns[name] for name in again], 1)
    assert embeddings.num_samples == num_samples
    assert torch.equal(embeddings.pooled(), expected)
    assert all(torch.equal(embeddings.feature(name), columns[name]) for name in DIMS)
    (expanded,) = embeddings.expanded().groups
    assert expanded.names == tuple(again)
    assert expanded.inverse is None
    assert torch.equal(expanded.rows, expected)
    upstream = torch.arange(expected.numel()).float().view_as(expected)
    leaves = [group.rows for group in groups]
    mine = torch.autograd.grad(embeddings.pooled(), leaves, upstream)
    slow = torch.autograd.grad(expected, leaves, upstream)
    assert all(torch.equal(*pair) for pair in zip(mine, slow, strict=True))


def test_one_group_in_order_is_not_copied() -> None:
    rows = rows_of(("a", "b"), 3, 0)
    assert Embeddings.of(rows, {"a": 2, "b": 1}).pooled() is rows
    turned = Embeddings([PooledRows(("a", "b"), (2, 1), rows, None)], ("b", "a"))
    assert torch.equal(turned.pooled(), torch.cat([rows[:, 2:], rows[:, :2]], 1))


def test_rows_without_columns_have_samples_too() -> None:
    embeddings = Embeddings.of(torch.empty(3, 0), {})
    assert embeddings.pooled().shape == (3, 0)
    assert embeddings.num_samples == 3
    assert Embeddings([], ()).num_samples == 0
    lists = Deduplicated(Jagged(torch.ones(2, 4), torch.tensor([0, 2, 2])), torch.tensor([0, 1, 1]))
    assert Embeddings([], (), {"seen": lists}).pooled().shape == (3, 0)


def test_lists_of_samples() -> None:
    items = torch.arange(6.0).view(3, 2)
    container = JaggedTensor(items, lengths=torch.tensor([1, 2]))
    given_ = Embeddings.of(torch.ones(2, 1), {"a": 1}, {"seen": container}).sequences["seen"]
    assert given_.jagged.values is items
    assert given_.jagged.lengths.tolist() == [1, 2]
    assert given_.num_samples == 2


def test_a_feature_that_is_not_there() -> None:
    with pytest.raises(DataError, match="'typo' is no pooled feature: choose one of a, b, c, d"):
        Embeddings.of(torch.zeros(1, 10), DIMS).feature("typo")


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


def test_gradients_of_double_precision() -> None:
    rows = torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    inverse = torch.tensor([2, 0, 2, 2])
    assert torch.autograd.gradcheck(lambda value: expand_rows(value, inverse), rows)
