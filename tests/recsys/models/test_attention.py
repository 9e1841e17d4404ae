from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.recsys.batches.jagged import Deduplicated, Jagged
from windrow.recsys.models import attention as item_pairs
from windrow.recsys.models.attention import AttentionPooling, ItemPairs, segment_softmax


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("hidden", [(), (6,), (6, 5)])
@pytest.mark.parametrize(
    ("lengths", "inverse"),
    [
        ([], None),
        ([0], None),
        ([0, 0], None),
        ([3, 0, 1, 5], None),
        ([], []),
        ([2], [0, 0, 0]),
        ([3, 0, 1], [0, 1, 1, 0, 2, 0]),
    ],
)
def test_pools_each_sample_by_itself(
    lengths: list[int], inverse: list[int] | None, hidden: tuple[int, ...], dtype: torch.dtype
) -> None:
    pooling = AttentionPooling(4, hidden=hidden, generator=generator())
    rows = list(range(len(lengths))) if inverse is None else inverse
    items = torch.randn(sum(lengths), 4, generator=generator(1)).requires_grad_()
    queries = torch.randn(len(rows), 4, generator=generator(2)).requires_grad_()
    of_samples = None if inverse is None else torch.tensor(inverse, dtype=torch.int64)
    result = pooling(Deduplicated(Jagged.of_lengths(items, torch.tensor(lengths, dtype=dtype)), of_samples), queries)
    lists, vectors = items.split(lengths), []
    for row, query in zip(rows, queries, strict=True):
        run = lists[row]
        asked = query.expand(len(run), 4)
        scores = pooling.score(pooling.mlp(torch.cat([run, asked, run - asked, run * asked], 1)))
        vectors.append((scores.softmax(0) * run).sum(0))
    expected = torch.stack(vectors) if vectors else torch.empty(0, 4)
    torch.testing.assert_close(result, expected)
    wanted = [items, queries, *pooling.parameters()]
    slow = torch.autograd.grad(expected.sum() + sum(p.sum() * 0 for p in wanted), wanted)
    for mine, other in zip(torch.autograd.grad(result.sum(), wanted), slow, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_weights_have_the_names_of_the_formula() -> None:
    state = AttentionPooling(4, hidden=(6,), generator=generator()).state_dict()
    assert {name: tuple(value.shape) for name, value in state.items()} == {
        "mlp.layers.0.weight": (6, 16),
        "mlp.layers.0.bias": (6,),
        "score.weight": (1, 6),
        "score.bias": (1,),
    }


@pytest.mark.parametrize("by_pytorch", [False, True], ids=["compiled", "pytorch"])
@given(lengths=st.lists(st.integers(0, 3), min_size=1, max_size=4), picks=st.none() | st.lists(st.integers(0, 3)))
def test_against_indexing(lengths: list[int], picks: list[int] | None, *, by_pytorch: bool) -> None:
    inverse = None if picks is None else torch.tensor(picks, dtype=torch.int64) % len(lengths)
    rows = range(len(lengths)) if inverse is None else inverse.tolist()
    starts = [sum(lengths[:row]) for row in range(len(lengths))]
    places = torch.tensor([starts[row] + item for row in rows for item in range(lengths[row])], dtype=torch.int64)
    samples = torch.tensor([sample for sample, row in enumerate(rows) for _ in range(lengths[row])], dtype=torch.int64)
    draw = partial(torch.randn, generator=generator(), dtype=torch.float64)
    sizes = (sum(lengths), len(rows), len(places))
    items, queries, of_pairs = (draw(size, 4).requires_grad_() for size in sizes)
    weights = draw(len(places)).requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        if by_pytorch:
            patch.setattr(item_pairs, "is_compiled", lambda rows: False)
        pairs = ItemPairs(
            Deduplicated(Jagged.of_lengths(items.detach(), torch.tensor(lengths, dtype=torch.int32)), inverse)
        )
        assert pairs.num_pairs == len(places)
        assert pairs.lengths.tolist() == [lengths[row] for row in rows]
        results = (pairs.multiply(items, queries), pairs.add(items, queries, of_pairs * 1), pairs.sum(items, weights))
    expected = (
        items[places] * queries[samples],
        items[places] + queries[samples] + of_pairs,
        torch.zeros_like(queries).index_add(0, samples, items[places] * weights[:, None]),
    )
    leaves = [items, queries, of_pairs, weights]
    for mine, slow in zip(results, expected, strict=True):
        torch.testing.assert_close(mine, slow)
        upstream = draw(slow.shape)
        gradients = (
            torch.autograd.grad(result, leaves, upstream, allow_unused=True, materialize_grads=True)
            for result in (mine, slow)
        )
        for pair in zip(*gradients, strict=True):
            torch.testing.assert_close(*pair)


def test_scores_may_be_computed_in_fewer_bits() -> None:
    pooling = AttentionPooling(4, generator=generator())
    items, queries = (torch.randn(size, 4, generator=generator(size)) for size in (5, 2))
    lists = Deduplicated(Jagged.of_lengths(items, torch.tensor([2, 3], dtype=torch.int32)))
    with torch.autocast("cpu", torch.bfloat16):
        rounded = pooling(lists, queries)
    torch.testing.assert_close(rounded, pooling(lists, queries), rtol=0.05, atol=0.05)


@given(lengths=st.lists(st.integers(0, 4), max_size=6), scale=st.sampled_from([0.0, 1.0, 1e4]))
def test_softmax_is_that_of_each_run(lengths: list[int], scale: float) -> None:
    scores = (torch.randn(sum(lengths), generator=generator(), dtype=torch.float64) * scale).requires_grad_()
    result = segment_softmax(scores, torch.tensor(lengths, dtype=torch.int64))
    expected = torch.cat([scores[:0], *(run.softmax(0) for run in scores.split(lengths))])
    torch.testing.assert_close(result, expected)
    upstream = torch.randn(len(scores), generator=generator(1), dtype=torch.float64)
    for mine, slow in zip(
        torch.autograd.grad(result, scores, upstream), torch.autograd.grad(expected, scores, upstream), strict=True
    ):
        torch.testing.assert_close(mine, slow, atol=1e-12, rtol=1e-9)
