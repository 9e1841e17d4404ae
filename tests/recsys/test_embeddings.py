from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.recsys import embeddings as expansion
from windrow.recsys.batches.jagged import Deduplicated, Jagged
from windrow.recsys.embeddings import Embeddings, PooledRows, expand_rows

DIMS = {"a": 2, "b": 1, "c": 3, "d": 4}


def rows_of(names: tuple[str, ...], num_rows: int, seed: int) -> Tensor:
    """Values whose sums are exact, so that orders of adding cannot be told apart."""
    width = sum(DIMS[name] for name in names)
    return torch.randint(-9, 9, (num_rows, width), generator=torch.Generator().manual_seed(seed)).float()


@pytest.mark.parametrize("by_pytorch", [False, True], ids=["compiled", "pytorch"])
@given(
    cuts=st.sets(st.integers(1, 3)),
    order=st.permutations(list(DIMS)),
    again=st.permutations(list(DIMS)),
    num_samples=st.integers(0, 5),
    data=st.data(),
)
def test_any_groups_in_any_order(
    cuts: set[int], order: list[str], again: list[str], num_samples: int, data: st.DataObject, by_pytorch: bool
) -> None:
    groups, columns = [], {}
    for first, last in pairwise([0, *sorted(cuts), 4]):
        names = tuple(order[first:last])
        inverse, size = None, num_samples
        if data.draw(st.booleans()):
            size = data.draw(st.integers(min(num_samples, 1), 3))
            picks = [data.draw(st.integers(0, size - 1)) for _ in range(num_samples)]
            inverse = torch.tensor(picks, dtype=torch.int64)
        # Some rows do not learn; those of the first group do.
        rows = rows_of(names, size, first).requires_grad_(first == 0 or data.draw(st.booleans()))
        dims = tuple(DIMS[name] for name in names)
        groups.append(PooledRows(names, dims, rows, inverse))
        of_samples = rows if inverse is None else rows[inverse]
        columns.update(dict(zip(names, of_samples.split(dims, 1), strict=True)))
    embeddings = Embeddings(groups, tuple(again))
    expected = torch.cat([columns[name] for name in again], 1)
    with pytest.MonkeyPatch.context() as patch:
        if by_pytorch:
            patch.setattr(expansion, "is_compiled", lambda rows: False)
        assert embeddings.num_samples == num_samples
        assert torch.equal(embeddings.pooled(), expected)
        assert all(torch.equal(embeddings.feature(name), columns[name]) for name in DIMS)
        (expanded,) = embeddings.expanded().groups
        assert expanded.names == tuple(again)
        assert expanded.inverse is None
        assert torch.equal(expanded.rows, expected)
        upstream = torch.arange(expected.numel()).float().view_as(expected)
        leaves = [group.rows for group in groups if group.rows.requires_grad]
        mine = torch.autograd.grad(embeddings.pooled(), leaves, upstream)
        slow = torch.autograd.grad(expected, leaves, upstream)
        assert all(torch.equal(*pair) for pair in zip(mine, slow, strict=True))


def test_one_group_in_order_is_not_copied() -> None:
    rows = rows_of(("a", "b"), 3, 0)
    assert Embeddings.of(rows, {"a": 2, "b": 1}).pooled() is rows
    assert expand_rows(rows, None) is rows


def test_rows_without_columns_have_samples_too() -> None:
    embeddings = Embeddings.of(torch.empty(3, 0), {})
    assert embeddings.pooled().shape == (3, 0)
    assert embeddings.num_samples == 3
    assert Embeddings([], ()).num_samples == 0
    lists = Deduplicated(Jagged(torch.ones(2, 4), torch.tensor([0, 2, 2])), torch.tensor([0, 1, 1]))
    assert Embeddings([], (), {"seen": lists}).pooled().shape == (3, 0)


def test_a_feature_that_is_not_there() -> None:
    with pytest.raises(DataError, match="'typo' is no pooled feature: choose one of a, b, c, d"):
        Embeddings.of(torch.zeros(1, 10), DIMS).feature("typo")


def test_duplicates_are_added_in_the_order_of_samples() -> None:
    rows = torch.zeros(1, 1, requires_grad=True)
    upstream = torch.tensor([[1e8], [1.0], [-1e8], [1.0]])
    (gradient,) = torch.autograd.grad(expand_rows(rows, torch.zeros(4, dtype=torch.int64)), rows, upstream)
    assert gradient.item() == 1.0  # ((1e8 + 1) - 1e8) + 1 in float32; other orders give 0 or 2.
