"""Pooling a list by itself: one list at a time, from its formula."""

import pytest
import torch

from windrow.recsys.models.self_attention import ListBuckets, SelfAttentionPooling


def make(layers: int = 2, positions: int = 3) -> SelfAttentionPooling:
    return SelfAttentionPooling(
        8,
        layers=layers,
        heads=2,
        hidden=(5,),
        positions=positions,
        generator=torch.Generator().manual_seed(0),
    )


@pytest.mark.parametrize("lengths", [[], [0], [0, 0], [3, 0, 1, 5, 3], [18, 2, 17]])
@pytest.mark.parametrize("layers", [1, 2])
def test_pools_each_list_by_itself(lengths: list[int], layers: int) -> None:
    tower = make(layers)
    generator = torch.Generator().manual_seed(1)
    items = torch.randn(sum(lengths), 8, generator=generator).requires_grad_()
    result = tower(items, torch.tensor(lengths, dtype=torch.int64))
    rows = []
    for run in items.split(lengths) if lengths else ():
        position = [min(len(run) - 1 - place, 2) for place in range(len(run))]
        x = run + tower.positions[position]
        for layer in tower.layers:
            x = layer(x, ListBuckets(torch.tensor([len(run)])))
        x = tower.norm(x)
        rows.append((tower.score(x).softmax(0) * x).sum(0))
    expected = torch.stack(rows) if rows else torch.empty(0, 8)
    torch.testing.assert_close(result, expected)
    wanted = [items, *tower.parameters()]
    upstream = torch.randn(result.shape, generator=generator)
    slow = torch.autograd.grad((expected * upstream).sum() + sum(p.sum() * 0 for p in wanted), wanted)
    for mine, other in zip(torch.autograd.grad(result, wanted, upstream), slow, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_order_and_place_from_the_end_matter() -> None:
    tower = make(positions=4)
    items = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    turned = tower(items.flip(0), torch.tensor([3]))
    assert not torch.allclose(tower(items, torch.tensor([3])), turned, atol=1e-3)


def test_no_items_no_vector() -> None:
    assert not make()(torch.empty(0, 8), torch.tensor([0, 0])).any()
