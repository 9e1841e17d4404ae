"""The exact area under the ROC curve against counting pair by pair, however samples are spread."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.loopback import Loopback
from windrow.comm.world import World
from windrow.recsys.evaluation import exact_auc


def slow_auc(logits: list[float], labels: list[bool]) -> float:
    """Pair by pair."""
    clicks = [logit for logit, label in zip(logits, labels, strict=True) if label]
    others = [logit for logit, label in zip(logits, labels, strict=True) if not label]
    won = sum((click > other) + (click == other) / 2 for click in clicks for other in others)
    return won / (len(clicks) * len(others)) if clicks and others else math.nan


def on_ranks(num_ranks: int, owners: list[int], logits: list[float], labels: list[bool]) -> list[float]:
    def body(world: World) -> float:
        mine = [i for i, owner in enumerate(owners) if owner % world.size == world.rank]
        return exact_auc(
            world,
            torch.tensor([logits[i] for i in mine], dtype=torch.float32),
            torch.tensor([labels[i] for i in mine], dtype=torch.bool),
        )

    return Loopback.run(num_ranks, body)


@given(
    samples=st.lists(
        # Few distinct numbers, so that ties are frequent, and both zeros.
        st.tuples(st.sampled_from([-1e30, -2.0, -0.0, 0.0, 1.0, 1.5]), st.booleans(), st.integers(0, 3)),
        max_size=30,
    ),
    num_ranks=st.sampled_from([1, 2, 4]),
)
def test_counts_every_pair_once(samples: list[tuple[float, bool, int]], num_ranks: int) -> None:
    logits, labels, owners = ([s[k] for s in samples] for k in range(3))
    expected = slow_auc(logits, labels)
    areas = on_ranks(num_ranks, owners, logits, labels)
    assert areas == [expected] * num_ranks or (math.isnan(expected) and all(map(math.isnan, areas)))


def test_is_the_same_bit_for_bit_on_every_world(spmd: Callable[..., list[Any]]) -> None:
    generator = torch.Generator().manual_seed(0)
    # Rounded, so that about three samples share a logit.
    logits = (torch.randn(3001, generator=generator) * 200).round() / 200
    clicked = torch.rand(3001, generator=generator) < torch.sigmoid(logits)

    def body(world: World) -> float:
        # Rank 0 holds the lowest, to be sent away.
        order = logits.argsort()[: len(logits)].tensor_split(world.size)[world.rank]
        return exact_auc(world, logits[order], clicked[order])

    assert set(spmd(body)) == set(Loopback.run(1, lambda world: exact_auc(world, logits, clicked)))


def test_agrees_with_torchmetrics() -> None:
    functional = pytest.importorskip("torchmetrics.functional.classification")
    generator = torch.Generator().manual_seed(1)
    scores = torch.rand(2000, generator=generator)
    clicked = torch.rand(2000, generator=generator) < scores
    area = Loopback.run(1, lambda world: exact_auc(world, scores, clicked))[0]
    assert area == pytest.approx(float(functional.binary_auroc(scores.double(), clicked.long())), abs=1e-6)
