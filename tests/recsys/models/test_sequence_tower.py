"""Attention over lists of items against one sample at a time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import RecipeError
from windrow.recsys.models.dcn import DCN
from windrow.recsys.models.sequence_tower import AttentionPooling, SequenceModel, segment_softmax
from windrow.recsys.torchrec_adapter import JaggedTensor


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(lengths=st.lists(st.integers(0, 4), max_size=6), scale=st.sampled_from([0.0, 1.0, 1e4]))
def test_softmax_is_that_of_each_run(lengths: list[int], scale: float) -> None:
    scores = (torch.randn(sum(lengths), generator=generator(), dtype=torch.float64) * scale).requires_grad_()
    result = segment_softmax(scores, torch.tensor(lengths, dtype=torch.int64))
    expected = torch.cat([scores[:0], *(run.softmax(0) for run in scores.split(lengths))])
    torch.testing.assert_close(result, expected)
    upstream = torch.randn(len(scores), generator=generator(1), dtype=torch.float64)
    for mine, slow in zip(
        torch.autograd.grad(result, scores, upstream),
        torch.autograd.grad(expected, scores, upstream),
        strict=True,
    ):
        torch.testing.assert_close(mine, slow, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("lengths", [[], [0], [0, 0], [3, 0, 1, 5], [2, 2]])
def test_pools_each_sample_by_itself(lengths: list[int], dtype: torch.dtype) -> None:
    pooling = AttentionPooling(4, hidden=(6,), generator=generator())
    items = torch.randn(sum(lengths), 4, generator=generator(1)).requires_grad_()
    queries = torch.randn(len(lengths), 4, generator=generator(2)).requires_grad_()
    result = pooling(items, torch.tensor(lengths, dtype=dtype), queries)
    rows = []
    for run, query in zip(items.split(lengths), queries, strict=True):
        asked = query.expand(len(run), 4)
        scores = pooling.score(pooling.mlp(torch.cat([run, asked, run - asked, run * asked], 1)))
        rows.append((scores.softmax(0) * run).sum(0))
    expected = torch.stack(rows) if rows else torch.empty(0, 4)
    torch.testing.assert_close(result, expected)
    wanted = [items, queries, *pooling.parameters()]
    slow = torch.autograd.grad(expected.sum() + sum(p.sum() * 0 for p in wanted), wanted)
    for mine, other in zip(torch.autograd.grad(result.sum(), wanted), slow, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def make(query: str = "item", sequence_dim: int = 4) -> SequenceModel:
    pooled = {"user": 3, "item": 4}
    inner = DCN(num_dense=0, pooled_dims={**pooled, "seen": sequence_dim}, deep=(5,), generator=generator())
    return SequenceModel(
        inner, pooled_dims=pooled, sequence_dims={"seen": sequence_dim}, query=query, generator=generator()
    )


def test_model_inside_sees_one_more_embedding() -> None:
    model = make()
    pooled = torch.randn(2, 7, generator=generator(1))
    items = torch.randn(3, 4, generator=generator(2))
    lengths = torch.tensor([3, 0])
    logits = model(torch.ones(2, 0), pooled, {"seen": JaggedTensor(items, lengths=lengths)})
    attended = model.poolings[0](items, lengths, pooled[:, 3:])
    assert not attended[1].any()
    torch.testing.assert_close(logits, model.model(torch.ones(2, 0), torch.cat([pooled, attended], 1)))


def test_refuses_queries_that_do_not_fit() -> None:
    with pytest.raises(RecipeError, match=r'"shop" is no pooled feature: choose one of user, item'):
        make(query="shop")
    with pytest.raises(RecipeError, match="'seen', 8 columns, with 'item', 4"):
        make(sequence_dim=8)
