import contextlib
import math

import pytest
import torch

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.loopback import Loopback
from windrow.comm.rows import near_equal_split
from windrow.recsys.batches.batch import Batch
from windrow.recsys.evaluation import ClickEvaluator, RecommendationEvaluationOptions
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
