import contextlib
import math
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.loopback import Loopback
from windrow.comm.rows import near_equal_split
from windrow.comm.world import World
from windrow.recsys.batches.batch import Batch
from windrow.recsys.evaluation import (
    AUCEstimate,
    ClickEvaluator,
    ClickMetrics,
    RecommendationEvaluationOptions,
    StreamingAUC,
    auc_of_counts,
    base_entropy,
    check_split_can_be_scored,
    exact_auc,
)
from windrow.recsys.models.click_models import ClickModel
from windrow.recsys.recommender import Recommender
from windrow.recsys.sharded.pooled import EmbeddingBagCollection
from windrow.recsys.tables.options import EmbeddingBagConfig
from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

SAMPLES = 10
TABLES = [EmbeddingBagConfig(num_embeddings=4, embedding_dim=4, name="item", feature_names=["item"])]


class DenseIsTheLogit(ClickModel):
    """Predictions that the test can choose."""

    def begin(self, dense):
        return dense[:, 0]

    def finish(self, begun, embeddings, context=None):
        assert context is None, "nothing is dropped in evaluation"
        return begun


class Given:
    """Two steps of given logits and labels, shared among the ranks."""

    steps_per_epoch = 2
    samples_per_epoch = SAMPLES

    def __init__(self, world, logits, labels):
        self._world, self._logits, self._labels = world, logits, labels

    def global_batch_size(self, epoch, step):
        return SAMPLES // 2

    @contextlib.contextmanager
    def batches(self, epoch, first_step=0):
        assert epoch == 0
        yield (self._batch(step) for step in range(2))

    def _batch(self, step):
        bounds = near_equal_split(SAMPLES // 2, self._world.size)
        start, stop = (step * SAMPLES // 2 + bounds[self._world.rank + end] for end in (0, 1))
        count = stop - start
        sparse = KeyedJaggedTensor(
            keys=["item"],
            values=torch.zeros(count, dtype=torch.int64),
            lengths=torch.ones(count, dtype=torch.int64),
        )
        return Batch(
            self._logits[start:stop, None], sparse, self._labels[start:stop], torch.arange(start, stop)
        )


def measure(world, logits, labels, **options):
    recommender = Recommender(EmbeddingBagCollection(TABLES, world=world), None, DenseIsTheLogit())
    evaluator = ClickEvaluator(world, recommender, {"test": Given(world, logits, labels)}, **options)
    return evaluator.evaluate()["test"]


LOGITS = torch.tensor([-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, -0.5, 0.5, 0.0])
LABELS = torch.tensor([0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0])


@pytest.mark.parametrize("auc", ["exact", "histogram"])
def test_figures_are_those_of_the_formulas_on_every_world(spmd, auc):
    probability = torch.sigmoid(LOGITS.double())
    loss = float(-(LABELS * probability.log() + (1 - LABELS) * (1 - probability).log()).mean())
    pairs = [(float(a), float(b)) for a in LOGITS[LABELS == 1] for b in LOGITS[LABELS == 0]]
    area = sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs)
    for figures in spmd(lambda world: measure(world, LOGITS, LABELS, auc=auc)):
        assert figures["log_loss"] == pytest.approx(loss, rel=1e-6)
        assert figures["normalised_entropy"] == pytest.approx(loss / math.log(2), rel=1e-6)
        assert figures["calibration"] == pytest.approx(float(probability.sum()) / 5, rel=1e-6)
        assert figures["auc"] == pytest.approx(area, abs=1e-4)


def test_a_prediction_that_is_lost_is_refused():
    logits = LOGITS.clone()
    logits[3] = math.nan
    with pytest.raises(DataError, match="learning rate"):
        measure(Loopback.single(), logits, LABELS)


@pytest.mark.parametrize(
    ("metric", "higher"), [("auc", True), ("normalised_entropy", False), ("log_loss", False)]
)
def test_which_way_is_better(metric, higher):
    world = Loopback.single()
    recommender = Recommender(EmbeddingBagCollection(TABLES), None, DenseIsTheLogit())
    evaluator = ClickEvaluator(world, recommender, {}, metric=metric)
    assert (evaluator.metric, evaluator.higher_is_better) == (metric, higher)


@pytest.mark.parametrize("field", ["batch_size", "every_epochs", "k"])
def test_options_out_of_range_are_refused(field):
    with pytest.raises(RecipeError, match=f"evaluation.{field} = 0"):
        RecommendationEvaluationOptions(**{field: 0})


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
