"""What models read: rows of samples out of rows of groups."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError
from windrow.recsys.embeddings import Embeddings, PooledRows, SequenceRows
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
    lists = SequenceRows(torch.ones(2, 4), torch.tensor([2, 0]), torch.tensor([0, 1, 1]))
    assert Embeddings([], (), {"seen": lists}).pooled().shape == (3, 0)


def test_lists_of_samples() -> None:
    items = torch.arange(6.0).view(3, 2)
    unique = SequenceRows(items, torch.tensor([2, 1]), torch.tensor([1, 0, 1]))
    for pad in (False, True):
        expanded = unique.expanded(pad=pad)
        assert torch.equal(expanded.items, items[[2, 0, 1, 2]])
        assert expanded.lengths.tolist() == [1, 2, 1]
        assert expanded.inverse is None
        assert expanded.expanded() is expanded
    assert unique.num_samples == expanded.num_samples == 3
    container = JaggedTensor(items, lengths=torch.tensor([1, 2]))
    given_ = Embeddings.of(torch.ones(2, 1), {"a": 1}, {"seen": container}).sequences["seen"]
    assert given_.items is items
    assert given_.lengths.tolist() == [1, 2]
    assert given_.num_samples == 2


def test_a_feature_that_is_not_there() -> None:
    with pytest.raises(DataError, match="'typo' is no pooled feature: choose one of a, b, c, d"):
        Embeddings.of(torch.zeros(1, 10), DIMS).feature("typo")
