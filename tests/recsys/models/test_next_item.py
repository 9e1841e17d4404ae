import numpy as np
import pytest
import torch
import torch.nn.functional as F

from windrow.comm.errors import RecipeError
from windrow.comm.loopback import Loopback
from windrow.partition.tables.planners import plan_with_planner
from windrow.recsys.batches.jagged import Deduplicated, Jagged
from windrow.recsys.batches.sampling import NegativeSampler
from windrow.recsys.batches.sessions import HISTORY, ITEM, SessionReader, Sessions, make_session_batch
from windrow.recsys.embeddings import Embeddings
from windrow.recsys.models.retrieval import NextItem, next_item_tables
from windrow.recsys.ranking_evaluation import NextItemEvaluator
from windrow.recsys.recommender import Recommender
from windrow.recsys.sharded.sequences import EmbeddingCollection
from windrow.recsys.sharded.tables_of_ranks import table_specs
from windrow.recsys.tables.options import TableOptions
from windrow.recsys.task import RecommendationTask
from windrow.training.dropout import DropoutContext
from windrow.training.trainer import Trainer

DIM, NUM_ITEMS = 8, 24


def make_model(**options):
    return NextItem(DIM, generator=torch.Generator().manual_seed(3), **({"positions": 3} | options))


def make_batch(histories, items):
    ids = np.array([item for one in histories for item in one], dtype=np.int64)
    offsets = np.cumsum([0, *map(len, histories)])
    return make_session_batch(Jagged(ids, offsets), np.array(items, dtype=np.int64), np.arange(len(histories)))


def embeddings_of(batch, table):
    rows = {name: batch.sparse[name] for name in (HISTORY, ITEM)}
    return Embeddings(
        [], (), {name: Deduplicated(Jagged(table[ids.values()], ids.offsets())) for name, ids in rows.items()}
    )


def random_table():
    return torch.randn(NUM_ITEMS, DIM, generator=torch.Generator().manual_seed(0), requires_grad=True)


def reference_session(model, rows):
    """One history, [n, d]."""
    places = [min(len(rows) - 1 - place, 2) for place in range(len(rows))]
    x = rows + model.positions[places]
    q = rows[-1].expand_as(x)
    hidden = model.attention.mlp(torch.cat([x, q, x - q, x * q], 1))
    weights = torch.softmax(model.attention.score(hidden)[:, 0], 0)
    return F.normalize(model.mix(torch.cat([rows[-1], weights @ x])), dim=0)


def test_vectors_and_loss_equal_one_sample_at_a_time():
    histories, targets, negatives = [[3], [5, 5, 1, 2, 7], [1, 2]], [4, 9, 2], [9, 2, 0, 11]
    log_probabilities = torch.linspace(-4, -1, NUM_ITEMS)
    model, table = make_model(temperature=0.2, log_probabilities=log_probabilities), random_table()
    batch = make_batch(histories, targets + negatives)
    vectors = model(batch.dense, embeddings_of(batch, table))
    loss = model.loss_sum(vectors, batch)
    with torch.no_grad():
        items = F.normalize(table, dim=1)
        expected = 0.0
        for row, (history, target) in enumerate(zip(histories, targets, strict=True)):
            session = reference_session(model, table[history])
            torch.testing.assert_close(vectors.queries[row], session)
            scores = items @ session / 0.2 - log_probabilities
            against = [target] + [item for item in negatives if item != target]
            expected += float(scores[against].logsumexp(0) - scores[target])
        torch.testing.assert_close(vectors.items, items[targets + negatives])
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.backward()
    assert table.grad.abs().sum() > 0
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_no_samples_cost_nothing_and_have_gradients():
    model, table = make_model(), random_table()
    batch = make_batch([], [1, 2])
    loss = model.loss_sum(model(batch.dense, embeddings_of(batch, table)), batch)
    loss.backward()
    assert loss.item() == 0
    assert not table.grad.any()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_dropout_goes_with_the_sample():
    model, table = make_model(dropout=0.5), random_table()
    batch = make_batch([[3, 1], [3, 1], [2]], [1, 1, 1])
    context = DropoutContext(seed=1, epoch=0, step=0, row_ids=torch.tensor([7, 8, 7]))
    dropped = model.finish(batch.dense, embeddings_of(batch, table), context).queries
    assert not torch.equal(dropped[0], dropped[1])
    again = make_batch([[3, 1]], [1])
    alone = DropoutContext(seed=1, epoch=0, step=0, row_ids=torch.tensor([8]))
    torch.testing.assert_close(model.finish(again.dense, embeddings_of(again, table), alone).queries, dropped[1:2])


def test_numbers_out_of_range_are_refused():
    with pytest.raises(RecipeError, match="temperature = 0"):
        make_model(temperature=0.0)
    with pytest.raises(RecipeError, match="positions = 0"):
        make_model(positions=0)


def make_sessions():
    """Each click is on the item 5 or 7 places behind the one before."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 7, 60)
    steps = generator.choice([5, 7], lengths.sum())
    steps[np.cumsum(lengths) - lengths] = generator.integers(0, NUM_ITEMS, len(lengths))
    items = np.concatenate([np.cumsum(part) for part in np.split(steps, np.cumsum(lengths)[:-1])]) % NUM_ITEMS
    return Sessions(Jagged.of_lengths(items, lengths))


def train(world, *, order="sessions", deduplicated=False, planner="row_wise", epochs=6, batch_size=30):
    sessions = make_sessions()
    negatives = NegativeSampler(np.bincount(sessions.clicks.values, minlength=NUM_ITEMS), 12, seed=0)
    source = SessionReader(
        sessions,
        rank=world.rank,
        size=world.size,
        batch_size=batch_size,
        negatives=negatives,
        seed=0,
        order=order,
        deduplicated=deduplicated,
    )
    options = TableOptions(dim=DIM, learning_rate=0.1)
    tables = next_item_tables(NUM_ITEMS, DIM)
    collection = EmbeddingCollection(
        tables,
        world=world,
        plan=plan_with_planner(planner, table_specs(tables, options), world.size),
        groups=[[ITEM]] if deduplicated else (),
        optimizer=options,
        seed=1,
    )
    model = make_model(temperature=0.1, dropout=0.1, log_probabilities=torch.from_numpy(negatives.log_probabilities()))
    recommender = Recommender(None, collection, model)
    trainer = Trainer(world, recommender, RecommendationTask(source), batch_size=batch_size, learning_rate=0.01)
    losses = [trainer.train_epoch(epoch) for epoch in range(epochs)]
    trainer.close()
    samples = {"train": sessions.samples(np.arange(sessions.num_samples))}
    evaluator = NextItemEvaluator(world, recommender, samples, num_items=NUM_ITEMS, k=2, deduplicated=deduplicated)
    return losses, evaluator.evaluate()["train"]


def test_training_learns_and_does_not_depend_on_the_number_of_ranks():
    [(losses, figures)], *others = [Loopback.run(size, train) for size in (1, 2, 4)]
    assert losses[-1] < 0.6 * losses[0]
    assert figures["recall@2"] > 0.8
    assert 0.4 < figures["mrr@2"] < 0.9  # Which of both comes next, chance decides.
    for ranks in others:
        for other_losses, other_figures in ranks:
            assert other_losses == pytest.approx(losses, rel=1e-3)
            assert other_figures == pytest.approx(figures, abs=0.05)


@pytest.mark.parametrize("order", ["samples", "sessions"])
@pytest.mark.parametrize("planner", ["row_wise", "round_robin"])
def test_deduplicated_training_is_the_same_but_for_rounding(order, planner):
    for size in (1, 3):
        plain, deduplicated = (
            Loopback.run(
                size, lambda world, flag=flag: train(world, order=order, deduplicated=flag, planner=planner, epochs=2)
            )[0]
            for flag in (False, True)
        )
        assert deduplicated[0] == pytest.approx(plain[0], rel=1e-5)
        assert deduplicated[1] == pytest.approx(plain[1], abs=0.02)


def test_ranks_without_samples_take_part():
    def short(world):
        return train(world, deduplicated=True, epochs=1, batch_size=3)

    (alone,), ranks = Loopback.run(1, short), Loopback.run(4, short)
    for losses, _ in ranks:
        assert losses == pytest.approx(alone[0], rel=1e-3)
