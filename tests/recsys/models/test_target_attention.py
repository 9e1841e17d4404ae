"""Attention to the item at hand against one sample at a time."""

import pytest
import torch

from windrow.recsys.batches.jagged import Deduplicated, Jagged
from windrow.recsys.models.attention import AttentionPooling


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
    result = pooling(
        Deduplicated(Jagged.of_lengths(items, torch.tensor(lengths, dtype=dtype)), of_samples), queries
    )
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
