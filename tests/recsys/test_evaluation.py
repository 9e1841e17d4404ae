import contextlib
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError
from windrow.comm.loopback import Loopback
from windrow.comm.rows import near_equal_split
from windrow.recsys.batches.batch import Batch
from windrow.recsys.evaluation import ClickEvaluator, check_split_can_be_scored, exact_auc, measure_clicks, measure_real
from windrow.recsys.models.click_models import ClickModel
from windrow.recsys.recommender import Recommender
from windrow.recsys.sharded.pooled import EmbeddingBagCollection
from windrow.recsys.tables.options import EmbeddingBagConfig


def random_samples(count=300):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(count, generator=generator) * 3 - 1
    return logits, (torch.rand(count, generator=generator) < torch.sigmoid(logits)).float()


def measured(logits, labels):
    return measure_clicks(Loopback.single(), logits, labels, split="test")


def slow_auc(logits, labels):
    """Pair by pair."""
    clicks = [logit for logit, label in zip(logits, labels, strict=True) if label]
    others = [logit for logit, label in zip(logits, labels, strict=True) if not label]
    won = sum((click > other) + (click == other) / 2 for click in clicks for other in others)
    return won / (len(clicks) * len(others)) if clicks and others else math.nan


SAMPLES = 10
TABLES = [EmbeddingBagConfig(num_embeddings=4, embedding_dim=4, name="item")]


class DenseIsTheLogit(ClickModel):
    """Predictions that the test can choose."""

    def begin(self, dense):
        return dense[:, 0]

    def finish(self, begun, embeddings, context=None):
        assert context is None, "nothing is dropped in evaluation"
        return begun


class Given:
    """Two steps of given samples, shared among the ranks."""

    def __init__(self, world, jagged_of):
        self._world, self._jagged_of = world, jagged_of

    @contextlib.contextmanager
    def batches(self, epoch, first_step=0):
        assert epoch == 0
        yield (self._batch(step) for step in range(2))

    def _batch(self, step):
        bounds = near_equal_split(SAMPLES // 2, self._world.size)
        start, stop = (step * SAMPLES // 2 + bounds[self._world.rank + end] for end in (0, 1))
        logits, labels = random_samples(SAMPLES)
        sparse = self._jagged_of({"item": [[0]] * (stop - start)})
        return Batch(logits[start:stop, None], sparse, labels[start:stop], torch.arange(start, stop))


def test_an_evaluator_measures_all_batches_of_all_ranks(spmd, jagged_of):
    def body(world):
        recommender = Recommender(EmbeddingBagCollection(TABLES, world=world), None, DenseIsTheLogit())
        return ClickEvaluator(world, recommender, {"test": Given(world, jagged_of)}).evaluate()

    expected = measured(*random_samples(SAMPLES))
    assert all(found == {"test": pytest.approx(expected)} for found in spmd(body))


@pytest.mark.parametrize(("metric", "higher"), [("auc", True), ("normalised_entropy", False), ("log_loss", False)])
def test_which_way_is_better(metric, higher):
    recommender = Recommender(EmbeddingBagCollection(TABLES), None, DenseIsTheLogit())
    evaluator = ClickEvaluator(Loopback.single(), recommender, {}, metric=metric)
    assert (evaluator.metric, evaluator.higher_is_better) == (metric, higher)


@given(
    st.lists(st.tuples(st.floats(-30, 30, width=32), st.integers(0, 1)), min_size=2, max_size=40).filter(
        lambda pairs: len({label for _, label in pairs}) == 2
    )
)
def test_definitions(pairs):
    logits, labels = [p[0] for p in pairs], [p[1] for p in pairs]
    probabilities = [1 / (1 + math.exp(-logit)) for logit in logits]
    # log(1 + exp(-|x|)) instead of log(probability), which rounds to log(1).
    losses = [math.log1p(math.exp(-abs(x))) + max(x if y == 0 else -x, 0) for x, y in pairs]
    share = sum(labels) / len(labels)
    entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
    assert measured(torch.tensor(logits), torch.tensor(labels, dtype=torch.float32)) == pytest.approx(
        {
            "log_loss": sum(losses) / len(losses),
            "normalised_entropy": sum(losses) / len(losses) / entropy,
            "calibration": sum(probabilities) / sum(labels),
            "auc": slow_auc(logits, labels),
        }
    )


def test_is_the_same_on_any_number_of_ranks(spmd):
    logits, labels = random_samples()

    def body(world):
        # The last rank of four has nothing.
        ends = [0, 250, 280, 300, 300] if world.size == 4 else near_equal_split(300, world.size)
        start, stop = ends[world.rank], ends[world.rank + 1]
        return measure_clicks(world, logits[start:stop], labels[start:stop])

    results = spmd(body)
    assert all(result == results[0] for result in results)
    expected = measured(logits, labels)
    assert results[0] == pytest.approx(expected, rel=1e-12)
    assert results[0]["auc"] == expected["auc"]


def test_is_the_same_whatever_is_measured_at_a_time(monkeypatch):
    logits, labels = random_samples()
    single = Loopback.single()
    clicks, real = measured(logits, labels), measure_real(single, logits, labels)
    monkeypatch.setattr("windrow.recsys.evaluation.BLOCK_SAMPLES", 7)
    found = measured(logits, labels)
    assert found == pytest.approx(clicks, rel=1e-12)
    assert found["auc"] == clicks["auc"]
    assert measure_real(single, logits, labels) == pytest.approx(real, rel=1e-12)


@pytest.mark.parametrize("lost", [math.nan, math.inf, -math.inf])
def test_every_rank_refuses_a_lost_prediction_of_one(lost):
    def body(world):
        logits, labels = random_samples()
        if world.rank == 1:
            logits[5] = lost
        with pytest.raises(DataError, match=r"1 of 600 predictions for validation are NaN.*learning rate"):
            measure_clicks(world, logits, labels, split="validation")

    Loopback.run(2, body)


@pytest.mark.parametrize(
    ("num_samples", "num_clicks", "message"),
    [(0, 0, "no samples"), (7, 0, "7 samples all have the label 0"), (7, 7, "7 samples all have the label 1")],
)
def test_refuses_what_has_no_meaning(num_samples, num_clicks, message):
    with pytest.raises(DataError, match=message):
        measured(torch.zeros(num_samples), (torch.arange(num_samples) < num_clicks).float())
    check_split_can_be_scored("test", 7, 1)


@given(
    samples=st.lists(
        # Few distinct numbers, so that ties are frequent, and both zeros.
        st.tuples(st.sampled_from([-1e30, -2.0, -0.0, 0.0, 1.0, 1.5]), st.booleans(), st.integers(0, 3)),
        max_size=30,
    ),
    num_ranks=st.sampled_from([1, 2, 4]),
    block=st.sampled_from([1, 3, 1 << 20]),
)
def test_the_exact_area_counts_every_pair_once(samples, num_ranks, block):
    logits, labels, owners = ([s[k] for s in samples] for k in range(3))

    def body(world):
        mine = [i for i, owner in enumerate(owners) if owner % world.size == world.rank]
        return exact_auc(
            world,
            torch.tensor([logits[i] for i in mine], dtype=torch.float32),
            torch.tensor([labels[i] for i in mine], dtype=torch.bool),
        )

    expected = slow_auc(logits, labels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("windrow.recsys.evaluation.BLOCK_SAMPLES", block)
        areas = Loopback.run(num_ranks, body)
    assert areas == [expected] * num_ranks or (math.isnan(expected) and all(map(math.isnan, areas)))


def test_the_exact_area_is_the_same_bit_for_bit_on_every_world(spmd):
    # Rounded, so that about three samples share a logit.
    logits = (random_samples(3001)[0] * 200 / 3).round() / 200
    clicked = torch.rand(3001, generator=torch.Generator().manual_seed(1)) < torch.sigmoid(logits)

    def body(world):
        # Rank 0 holds the lowest, to be sent away.
        order = logits.argsort().tensor_split(world.size)[world.rank]
        return exact_auc(world, logits[order], clicked[order])

    assert set(spmd(body)) == {exact_auc(Loopback.single(), logits, clicked)}
