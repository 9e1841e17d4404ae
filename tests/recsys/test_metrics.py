"""Metrics of click probabilities against their definitions, on any number of ranks."""

import math
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.comm.loopback import Loopback
from windrow.comm.world import World
from windrow.recsys.evaluation import ClickMetrics, base_entropy, check_split_can_be_scored

AUCKind = Literal["exact", "histogram"]


def samples(count: int = 300) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(count, generator=generator) * 3 - 1
    return logits, (torch.rand(count, generator=generator) < torch.sigmoid(logits)).float()


def measured(logits: Tensor, labels: Tensor, auc: AUCKind = "exact") -> dict[str, float]:
    metrics = ClickMetrics("test", auc=auc)
    metrics.update(logits, labels)
    return Loopback.run(1, metrics.compute)[0]


@given(
    st.lists(st.tuples(st.floats(-30, 30, width=32), st.integers(0, 1)), min_size=2, max_size=40).filter(
        lambda pairs: len({label for _, label in pairs}) == 2
    )
)
def test_definitions(pairs: list[tuple[float, int]]) -> None:
    logits, labels = [p[0] for p in pairs], [p[1] for p in pairs]
    probabilities = [1 / (1 + math.exp(-logit)) for logit in logits]
    # log(1 + exp(-|x|)) instead of log(probability), which rounds to log(1).
    losses = [math.log1p(math.exp(-abs(x))) + max(x if y == 0 else -x, 0) for x, y in pairs]
    share = sum(labels) / len(labels)
    entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
    result = measured(torch.tensor(logits), torch.tensor(labels, dtype=torch.float32))
    assert result["log_loss"] == pytest.approx(sum(losses) / len(losses))
    assert result["normalised_entropy"] == pytest.approx(sum(losses) / len(losses) / entropy)
    assert result["calibration"] == pytest.approx(sum(probabilities) / sum(labels))
    won = [(a > b) + (a == b) / 2 for a, y in pairs if y for b, z in pairs if not z]
    assert result["auc"] == pytest.approx(sum(won) / len(won))


def test_predicting_the_base_rate_gives_one() -> None:
    labels = torch.tensor([1.0, 0, 0, 0])
    result = measured(torch.full((4,), math.log(0.25 / 0.75), dtype=torch.float64), labels)
    assert result == pytest.approx(
        {"log_loss": base_entropy(4, 1), "normalised_entropy": 1, "calibration": 1, "auc": 0.5}
    )


@pytest.mark.parametrize("auc", ["exact", "histogram"])
def test_is_the_same_on_any_number_of_ranks(auc: AUCKind, spmd: Callable[..., list[Any]]) -> None:
    logits, labels = samples()

    def body(world: World) -> dict[str, float]:
        metrics = ClickMetrics("test", auc=auc)
        # Uneven batches; the last rank of four has nothing.
        ends = (
            [0, 250, 280, 300, 300]
            if world.size == 4
            else [300 * r // world.size for r in range(world.size + 1)]
        )
        start, stop = ends[world.rank], ends[world.rank + 1]
        for first in range(start, stop, 70):
            metrics.update(logits[first : min(first + 70, stop)], labels[first : min(first + 70, stop)])
        metrics.update(logits[:0], labels[:0])
        return metrics.compute(world)

    results = spmd(body)
    assert all(result == results[0] for result in results)
    expected = measured(logits, labels, auc)
    assert results[0] == pytest.approx(expected, rel=1e-12)
    assert results[0]["auc"] == expected["auc"]


def test_histogram_says_how_far_it_is_off() -> None:
    logits, labels = samples()
    estimate = measured(logits, labels, "histogram")
    assert abs(estimate["auc"] - measured(logits, labels)["auc"]) <= estimate["auc_error_bound"] + 1e-12


@pytest.mark.parametrize("lost", [math.nan, math.inf, -math.inf])
def test_every_rank_refuses_a_lost_prediction_of_one(lost: float) -> None:
    def body(world: World) -> str:
        logits, labels = samples()
        if world.rank == 1:
            logits[5] = lost
        metrics = ClickMetrics("validation")
        metrics.update(logits, labels)
        with pytest.raises(
            DataError, match=r"1 of 600 predictions for validation are NaN.*learning rate"
        ) as error:
            metrics.compute(world)
        return str(error.value)

    assert len(set(Loopback.run(2, body))) == 1


@pytest.mark.parametrize(
    ("num_samples", "num_clicks", "message"),
    [
        (0, 0, "no samples"),
        (7, 0, "7 samples all have the label 0"),
        (7, 7, "7 samples all have the label 1"),
    ],
)
def test_refuses_what_has_no_meaning(num_samples: int, num_clicks: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_split_can_be_scored("test", num_samples, num_clicks)
    with pytest.raises(DataError, match=message):
        measured(torch.zeros(num_samples), (torch.arange(num_samples) < num_clicks).float())
    check_split_can_be_scored("test", 7, 1)


def test_base_entropy_is_largest_for_a_fair_coin() -> None:
    assert base_entropy(10, 5) == pytest.approx(math.log(2))
    assert base_entropy(10, 0) == base_entropy(10, 10) == 0
