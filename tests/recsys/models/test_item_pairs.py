"""Pairs of samples and items: compiled loops and PyTorch's operations do the same."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.recsys.batches.jagged import Deduplicated, Jagged
from windrow.recsys.models import attention as item_pairs
from windrow.recsys.models.attention import ItemPairs


@pytest.mark.parametrize("by_pytorch", [False, True], ids=["compiled", "pytorch"])
@given(
    lengths=st.lists(st.integers(0, 3), min_size=1, max_size=4), picks=st.none() | st.lists(st.integers(0, 3))
)
def test_against_indexing(lengths: list[int], picks: list[int] | None, *, by_pytorch: bool) -> None:
    inverse = None if picks is None else torch.tensor(picks, dtype=torch.int64) % len(lengths)
    rows = range(len(lengths)) if inverse is None else inverse.tolist()
    starts = [sum(lengths[:row]) for row in range(len(lengths))]
    places = torch.tensor(
        [starts[row] + item for row in rows for item in range(lengths[row])], dtype=torch.int64
    )
    samples = torch.tensor(
        [sample for sample, row in enumerate(rows) for _ in range(lengths[row])], dtype=torch.int64
    )
    generator = torch.Generator().manual_seed(0)
    sizes = (sum(lengths), len(rows), len(places))
    items, queries, of_pairs = (
        torch.randn(size, 4, generator=generator, dtype=torch.float64).requires_grad_() for size in sizes
    )
    weights = torch.randn(len(places), generator=generator, dtype=torch.float64).requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        if by_pytorch:
            patch.setattr(item_pairs, "is_compiled", lambda rows: False)
        pairs = ItemPairs(
            Deduplicated(Jagged.of_lengths(items.detach(), torch.tensor(lengths, dtype=torch.int32)), inverse)
        )
        assert pairs.num_pairs == len(places)
        assert pairs.lengths.tolist() == [lengths[row] for row in rows]
        results = (
            pairs.multiply(items, queries),
            pairs.add(items, queries, of_pairs * 1),
            pairs.sum(items, weights),
        )
    expected = (
        items[places] * queries[samples],
        items[places] + queries[samples] + of_pairs,
        torch.zeros_like(queries).index_add(0, samples, items[places] * weights[:, None]),
    )
    leaves = [items, queries, of_pairs, weights]
    for mine, slow in zip(results, expected, strict=True):
        torch.testing.assert_close(mine, slow)
        upstream = torch.randn(slow.shape, generator=generator, dtype=torch.float64)
        gradients = (
            torch.autograd.grad(result, leaves, upstream, allow_unused=True, materialize_grads=True)
            for result in (mine, slow)
        )
        for pair in zip(*gradients, strict=True):
            torch.testing.assert_close(*pair)
