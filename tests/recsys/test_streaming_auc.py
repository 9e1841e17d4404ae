"""The estimated area under the ROC curve: its bound, and that nothing but the samples matters."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.loopback import Loopback
from windrow.comm.world import World
from windrow.recsys.evaluation import AUCEstimate, StreamingAUC, auc_of_counts


def slow_auc(logits: list[float], labels: list[int]) -> float:
    """Pair by pair."""
    won = [
        (click > other) + (click == other) / 2
        for click, is_click in zip(logits, labels, strict=True)
        if is_click
        for other, is_other_click in zip(logits, labels, strict=True)
        if not is_other_click
    ]
    return sum(won) / len(won) if won else math.nan


def estimate(logits: Any, labels: Any, num_bins: int = 1 << 16) -> AUCEstimate:
    streaming = StreamingAUC(num_bins)
    streaming.update(torch.as_tensor(logits), torch.as_tensor(labels))
    return Loopback.run(1, streaming.compute)[0]


@given(
    samples=st.lists(st.tuples(st.floats(-20, 20, width=32), st.integers(0, 1)), min_size=1, max_size=30),
    num_bins=st.sampled_from([1, 2, 16, 1 << 16]),
)
def test_exact_area_is_within_the_bound(samples: list[tuple[float, int]], num_bins: int) -> None:
    logits, labels = [s[0] for s in samples], [s[1] for s in samples]
    area, bound = estimate(logits, labels, num_bins)
    exact = slow_auc(logits, labels)
    if math.isnan(exact):
        assert math.isnan(area)
        assert math.isnan(bound)
    else:
        assert abs(area - exact) <= bound + 1e-12
        assert num_bins > 1 or (area, bound) == (0.5, 0.5)


def test_bins_hold_what_lies_beyond_their_ends() -> None:
    area, bound = estimate([-1e30, 1e30, -17.0], [0, 1, 0])
    assert (area, bound) == (1, 0)


def test_bound_is_small_for_click_rates_of_real_logs() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(100_000, generator=generator) * 0.5 - 5
    labels = torch.rand(100_000, generator=generator) < torch.sigmoid(logits)
    assert estimate(logits, labels).error_bound < 1e-3


def test_merging_is_counting_together() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(50, generator=generator), torch.rand(50, generator=generator) < 0.3
    first, second = StreamingAUC(), StreamingAUC()
    first.update(logits[:20], labels[:20])
    second.update(logits[20:], labels[20:])
    first.merge(second)
    assert Loopback.run(1, first.compute)[0] == estimate(logits, labels)


def test_is_the_same_on_every_rank(spmd: Callable[..., list[Any]]) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(61, generator=generator), torch.rand(61, generator=generator) < 0.3

    def body(world: World) -> AUCEstimate:
        streaming = StreamingAUC()
        streaming.update(logits[world.rank :: world.size], labels[world.rank :: world.size])
        assert streaming.compute(world) == streaming.compute(world)
        return streaming.compute(world)

    assert set(spmd(body)) == {estimate(logits, labels)}


def test_counts_give_the_area_of_the_formula() -> None:
    area = auc_of_counts(positives=torch.tensor([1, 2]), negatives=torch.tensor([3, 1]))
    assert area.auc == pytest.approx((2 * 3 + (1 * 3 + 2 * 1) / 2) / (3 * 4))
    assert area.error_bound == pytest.approx((1 * 3 + 2 * 1) / 2 / (3 * 4))
