import numpy as np
import pytest
import torch
import torch.nn.functional as F

from windrow.comm.loopback import Loopback
from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.interaction_reader import FEATURES, InteractionReader, Neighbourhoods
from windrow.recsys.batches.interactions import Interactions, item_lists_from_pairs
from windrow.recsys.batches.sampling import NegativeSampler
from windrow.recsys.embeddings import Embeddings
from windrow.recsys.models.retrieval import TwoTower, two_tower_tables
from windrow.recsys.ranking_evaluation import RankingEvaluator
from windrow.recsys.recommender import Recommender
from windrow.recsys.sharded.pooled import EmbeddingBagCollection
from windrow.recsys.tables.options import TableOptions
from windrow.recsys.task import RecommendationTask
from windrow.training.trainer import Trainer

DIM = 8


def make_batch(positives, negatives):
    """User u took item u and no other."""
    everyone = np.arange(7)
    train = item_lists_from_pairs(everyone, everyone, 7)
    nothing = item_lists_from_pairs(everyone[:0], everyone[:0], 7)
    neighbourhoods = Neighbourhoods.of(Interactions(7, 7, train, nothing, nothing), seed=0)
    users, items = np.arange(len(positives)), np.array([*positives, *negatives], dtype=np.int64)
    draws = np.zeros(len(items), dtype=np.uint64)
    features = neighbourhoods.features(users, items, draws[: len(users)], draws)
    rows = len(positives) + len(negatives)
    return Batch(torch.empty(rows, 0), features, torch.ones(len(users)), torch.arange(len(users)))


def make_pooled(rows):
    return torch.randn(rows, 4 * DIM, generator=torch.Generator().manual_seed(0), requires_grad=True)


def embeddings_of(pooled):
    return Embeddings.of(pooled, dict.fromkeys(FEATURES, DIM))


def reference_loss(model, pooled, positives, negatives, temperature, log_probabilities=None):
    """One positive and one negative at a time."""
    user, audience, history, item = pooled.detach().split(DIM, dim=1)
    user_gate, item_gate = torch.sigmoid(model.user_gate.detach()), torch.sigmoid(model.item_gate.detach())
    users = user_gate * user + (1 - user_gate) * history
    items = item_gate * item + (1 - item_gate) * audience
    total = 0.0
    for row, positive in enumerate(positives):

        def score(place, item_id, row=row):
            value = F.cosine_similarity(users[row], items[place], dim=0) / temperature
            return value if log_probabilities is None else value - log_probabilities[item_id]

        scores = [score(row, positive)]
        scores += [
            score(len(positives) + place, negative)
            for place, negative in enumerate(negatives)
            if negative not in (positive, row)
        ]
        total += float(torch.stack(scores).logsumexp(0) - scores[0])
    return total


@pytest.mark.parametrize("corrected", [False, True])
def test_the_loss_is_the_sampled_softmax(corrected):
    positives, negatives = [3, 1, 4, 1], [5, 1, 2, 6, 5, 2]
    log_probabilities = torch.linspace(-3, -1, 7) if corrected else None
    model = TwoTower(DIM, temperature=0.2, log_probabilities=log_probabilities)
    torch.nn.init.constant_(model.user_gate, 0.7)
    torch.nn.init.constant_(model.item_gate, -0.4)
    pooled, batch = make_pooled(10), make_batch(positives, negatives)
    loss = model.loss_sum(model(batch.dense, embeddings_of(pooled)), batch)
    expected = reference_loss(model, pooled, positives, negatives, 0.2, log_probabilities)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.backward()
    assert pooled.grad.abs().sum() > 0
    assert model.user_gate.grad.abs().sum() > 0
    assert model.item_gate.grad.abs().sum() > 0


@pytest.mark.parametrize(("positives", "negatives"), [([], [1, 2]), ([2, 2], [2, 2, 2])])
def test_nothing_to_tell_apart_costs_nothing_and_has_gradients(positives, negatives):
    model, pooled = TwoTower(DIM), make_pooled(len(positives) + len(negatives))
    batch = make_batch(positives, negatives)
    loss = model.loss_sum(model(batch.dense, embeddings_of(pooled)), batch)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(pooled.grad, torch.zeros_like(pooled))


def test_empty_rows_have_vector_zero():
    vectors = TwoTower(DIM)(torch.empty(2, 0), embeddings_of(torch.zeros(2, 4 * DIM)))
    assert not vectors.queries.any()
    assert not vectors.items.any()


def test_tables_come_in_the_order_of_the_pooled_columns():
    tables = two_tower_tables(5, 7, DIM)
    assert [feature for table in tables for feature in table.feature_names] == list(FEATURES)
    assert [(table.num_embeddings, table.embedding_dim) for table in tables] == [(5, DIM), (7, DIM)]


def make_interactions():
    """Users and items of two kinds that go together."""
    users, items = (np.add.outer(np.arange(24), np.arange(16)) % 2 == 0).nonzero()
    test = (users * 7 + items * 5) % 6 == 0
    splits = [item_lists_from_pairs(users[mask], items[mask], 24) for mask in (~test, test & False, test)]
    return Interactions(24, 16, *splits)


def train(world):
    interactions = make_interactions()
    tables = two_tower_tables(interactions.num_users, interactions.num_items, DIM)
    options = TableOptions(dim=DIM, learning_rate=0.1)
    bags = EmbeddingBagCollection(tables, is_weighted=True, world=world, optimizer=options, seed=1)
    recommender = Recommender(bags, None, TwoTower(DIM))
    negatives = NegativeSampler(interactions.item_counts(), 8, seed=0)
    source = InteractionReader(
        interactions,
        rank=world.rank,
        size=world.size,
        batch_size=30,
        negatives=negatives,
        neighbourhoods=Neighbourhoods.of(interactions, 5, 5, seed=0),
        seed=0,
    )
    trainer = Trainer(world, recommender, RecommendationTask(source), batch_size=30, learning_rate=0.01)
    losses = [trainer.train_epoch(epoch) for epoch in range(5)]
    trainer.close()
    evaluator = RankingEvaluator(world, recommender, interactions, Neighbourhoods.of(interactions, seed=0), k=8)
    return losses, evaluator.evaluate()["test"]


def test_training_learns_and_does_not_depend_on_the_number_of_ranks():
    [(losses, figures)], *others = [Loopback.run(size, train) for size in (1, 2, 4)]
    assert losses[-1] < 0.8 * losses[0]
    assert figures["recall@8"] > 0.95  # Of 16 items 8 are of the user's kind.
    for ranks in others:
        for other_losses, other_figures in ranks:
            assert other_losses == pytest.approx(losses, rel=1e-4)
            assert other_figures == pytest.approx(figures, rel=1e-2)
