import numpy as np
import pytest
import torch
import torch.nn.functional as F

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.loopback import Loopback
from windrow.recsys import ranking_evaluation
from windrow.recsys.batches.jagged import Jagged
from windrow.recsys.batches.sessions import HISTORY, ITEM, NextItemSamples
from windrow.recsys.models.retrieval import RetrievalVectors
from windrow.recsys.ranking_evaluation import NextItemEvaluator

NUM_ITEMS, NUM_SAMPLES, K = 40, 33, 5
ITEMS = F.normalize(torch.randn(NUM_ITEMS, 6, generator=torch.Generator().manual_seed(0)), dim=1)


def make_samples(seed=0):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 5, NUM_SAMPLES)
    offsets = np.cumsum([3, *lengths])  # Lists may begin behind the first id.
    ids = generator.integers(0, NUM_ITEMS, offsets[-1])
    targets = np.where(generator.random(NUM_SAMPLES) < 0.5, ids[offsets[1:] - 1], generator.integers(0, NUM_ITEMS))
    return NextItemSamples(Jagged(ids, offsets), targets)


def vectors(batch):
    """A session is the mean of its items, and more of the last."""
    histories = batch.sparse[HISTORY].to_dense()[: batch.num_samples]
    sessions = [ITEMS[one].mean(0) + ITEMS[one[-1]] for one in histories]
    stacked = torch.stack(sessions) if sessions else torch.empty(0, 6)
    return RetrievalVectors(stacked, ITEMS[batch.sparse[ITEM].values()])


def expected(samples):
    """One sample at a time."""
    recalls, reciprocals = [], []
    offsets, ids = samples.histories.offsets, samples.histories.values
    for row, target in enumerate(samples.targets):
        history = ITEMS[ids[offsets[row] : offsets[row + 1]]]
        scores = ITEMS @ (history.mean(0) + history[-1])
        rank = 1 + int((scores > scores[target]).sum())
        recalls.append(rank <= K)
        reciprocals.append(1 / rank if rank <= K else 0)
    return {"recall@5": np.mean(recalls), "mrr@5": np.mean(reciprocals)}


SAMPLES = {"validation": make_samples(1), "test": make_samples(2)}


def evaluate(world, vectors=vectors, samples=SAMPLES, **options):
    options = {"num_items": NUM_ITEMS, "k": K, "batch_size": 7} | options
    return NextItemEvaluator(world, vectors, samples, **options).evaluate()


def test_equals_one_sample_at_a_time(spmd):
    for found in spmd(evaluate):
        for split, samples in SAMPLES.items():
            assert found[split] == pytest.approx(expected(samples), rel=1e-6)
            assert 0.1 < found[split]["mrr@5"] < found[split]["recall@5"] < 0.9


def test_figures_are_the_same_on_any_number_of_ranks(monkeypatch):
    monkeypatch.setattr(ranking_evaluation, "QUERIES_PER_CHUNK", 4)
    one, *others = [Loopback.run(size, evaluate)[0] for size in (1, 2, 3, 12)]
    assert all(found == one for found in others)
    assert one["test"] == pytest.approx(expected(SAMPLES["test"]), rel=1e-6)


def test_items_are_looked_up_once_for_all_splits():
    looked_up = []

    def watched(batch):
        looked_up.extend(batch.sparse[ITEM].values().tolist())
        return vectors(batch)

    evaluate(Loopback.single(), watched)
    assert looked_up == list(range(NUM_ITEMS))


def spoiled(batch):
    found = vectors(batch)
    return RetrievalVectors(found.queries * float("nan"), found.items)


NOTHING = NextItemSamples(Jagged(np.zeros(0, np.int64), np.zeros(1, np.int64)), np.zeros(0, np.int64))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"k": 41}, RecipeError, r"evaluation.k = 41: must be 1 \.\. 40"),
        ({"samples": SAMPLES | {"test": NOTHING}}, DataError, "test: no samples"),
        ({"samples": {}}, DataError, "no split"),
        ({"vectors": spoiled}, DataError, "a session is NaN"),
    ],
)
def test_what_cannot_be_measured_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        evaluate(Loopback.single(), **options)
