import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.loopback import Loopback
from windrow.recsys import ranking_evaluation
from windrow.recsys.batches.interaction_reader import Neighbourhoods
from windrow.recsys.batches.interactions import Interactions, item_lists_from_pairs
from windrow.recsys.models.retrieval import RetrievalVectors
from windrow.recsys.ranking_evaluation import RankingEvaluator, _find_hits, _mrr_at_k, _ndcg_at_k

NUM_USERS, NUM_ITEMS, K = 37, 50, 4


def make_interactions():
    kind = np.random.default_rng(0).choice(4, (NUM_USERS, NUM_ITEMS), p=[0.7, 0.15, 0.05, 0.1])
    kind[5] = 0
    kind[6, kind[6] == 3] = 0
    splits = [item_lists_from_pairs(*(kind == split).nonzero(), NUM_USERS) for split in (1, 2, 3)]
    return Interactions(NUM_USERS, NUM_ITEMS, *splits)


INTERACTIONS = make_interactions()
GENERATOR = torch.Generator().manual_seed(0)
USERS = torch.randn(NUM_USERS, 6, generator=GENERATOR)
ITEMS = torch.randn(NUM_ITEMS, 6, generator=GENERATOR)


def vectors(batch):
    """A user is a table row and the mean of the history; computed row by row."""
    rows = batch.sparse.stride()
    users, items = torch.zeros(rows, 6), torch.zeros(rows, 6)
    columns = [batch.sparse[key].to_dense() for key in ("user", "history", "item")]
    for row, (user, history, item) in enumerate(zip(*columns, strict=True)):
        if len(user):
            users[row] = USERS[user[0]] + (ITEMS[history].mean(0) if len(history) else 0)
        if len(item):
            items[row] = ITEMS[item[0]]
    return RetrievalVectors(users, items)


def dense(lists):
    matrix = np.zeros((NUM_USERS, NUM_ITEMS), dtype=bool)
    matrix[lists.rows, lists.values] = True
    return matrix


def expected():
    """All scores at once."""
    train, validation, test = (dense(lists) for lists in INTERACTIONS.splits().values())
    users = torch.stack(
        [
            USERS[user] + (ITEMS[torch.from_numpy(train[user])].mean(0) if train[user].any() else 0)
            for user in range(NUM_USERS)
        ]
    )
    figures = {}
    for split, relevant, past in (("validation", validation, train), ("test", test, train | validation)):
        scores = np.where(past, -np.inf, (users @ ITEMS.T).numpy())
        recommended = np.argsort(-scores, axis=1)[:, :K]
        hits = np.take_along_axis(relevant, recommended, axis=1)
        counts = relevant.sum(axis=1)
        some = counts > 0
        recall, ndcg = hits[some].sum(1) / counts[some], _ndcg_at_k(hits[some], counts[some])
        figures[split] = {"recall@4": recall.mean(), "ndcg@4": ndcg.mean()}
    return figures


def evaluate(world, interactions=INTERACTIONS, vectors=vectors, k=K, **options):
    neighbourhoods = Neighbourhoods.of(interactions, seed=0)
    return RankingEvaluator(world, vectors, interactions, neighbourhoods, k=k, **options).evaluate()


def check(all_found):
    """The same on every rank, and that of all scores at once."""
    wanted = {split: pytest.approx(figures, rel=1e-6) for split, figures in expected().items()}
    assert all_found[0] == wanted
    assert all(found == all_found[0] for found in all_found)


def test_one_block_equals_all_scores_at_once(spmd):
    check(spmd(evaluate))


def test_many_blocks_equal_all_scores_at_once_on_any_number_of_ranks(spmd, monkeypatch):
    """Chunks and blocks of which there are many, the last of each short; some ranks have fewer chunks."""
    monkeypatch.setattr(ranking_evaluation, "QUERIES_PER_CHUNK", 8)
    monkeypatch.setattr(ranking_evaluation, "ITEMS_PER_BLOCK", 7)
    found = spmd(lambda world: evaluate(world, batch_size=5))
    check([*found, *(Loopback.run(size, partial(evaluate, batch_size=5))[0] for size in (1, 3, 9))])


def test_recommendations_are_the_best_of_what_is_new_to_users(spmd, monkeypatch):
    monkeypatch.setattr(ranking_evaluation, "QUERIES_PER_CHUNK", 8)
    monkeypatch.setattr(ranking_evaluation, "ITEMS_PER_BLOCK", 7)
    users = np.array([36, 3, 3, 5, *range(20)])

    def body(world):
        neighbourhoods = Neighbourhoods.of(INTERACTIONS, seed=0)
        evaluator = RankingEvaluator(world, vectors, INTERACTIONS, neighbourhoods, k=K, batch_size=5)
        with pytest.raises(DataError, match="there is no user 37"):
            evaluator.recommend(np.array([37]), 3)
        with pytest.raises(RecipeError, match="k = 51"):
            evaluator.recommend(users, 51)
        assert [tuple(part.shape) for part in evaluator.recommend(users[:0], 3)] == [(0, 3), (0, 3)]
        return evaluator.recommend(users, 3), evaluator.recommend(users, NUM_ITEMS)

    known = np.logical_or.reduce([dense(lists) for lists in INTERACTIONS.splits().values()])[users]
    queries = torch.stack(
        [
            USERS[u] + (ITEMS[m].mean(0) if m.any() else 0)
            for u, m in zip(users, torch.from_numpy(dense(INTERACTIONS.train)[users]), strict=True)
        ]
    )
    scores = np.where(known, -np.inf, (queries @ ITEMS.T).numpy())
    order = np.argsort(-scores, axis=1)
    for (items, found), (everything, _) in spmd(body):
        np.testing.assert_array_equal(items, order[:, :3])
        np.testing.assert_allclose(found, np.take_along_axis(scores, order[:, :3], axis=1), rtol=1e-5)
        assert ((everything == -1).sum(1).numpy() == known.sum(1)).all()


NOTHING = item_lists_from_pairs(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), NUM_USERS)


def only_test(test):
    return Interactions(NUM_USERS, NUM_ITEMS, INTERACTIONS.train, NOTHING, test)


def test_splits_without_items_are_left_out():
    assert list(evaluate(Loopback.single(), only_test(INTERACTIONS.test))) == ["test"]


def broken(batch):
    found = vectors(batch)
    return RetrievalVectors(found.queries, found.items * torch.nan)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"vectors": broken}, DataError, "vector of an item is NaN"),
        ({"k": 0}, RecipeError, r"evaluation.k = 0: must be 1 \.\. 50"),
        ({"k": 51}, RecipeError, r"evaluation.k = 51: must be 1 \.\. 50"),
        ({"interactions": only_test(NOTHING)}, DataError, "neither validation nor test"),
    ],
)
def test_what_means_nothing_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        evaluate(Loopback.single(), **options)


MANY_ITEMS = 15


@given(
    st.lists(st.sets(st.integers(0, MANY_ITEMS - 1), min_size=1), min_size=1, max_size=5),
    st.integers(1, 6),
    st.integers(0, 1000),
)
def test_metrics_equal_their_definitions(relevant, k, seed):
    generator = np.random.default_rng(seed)
    users = generator.permutation(len(relevant))
    recommended = np.stack([generator.permutation(MANY_ITEMS)[:k] for _ in users])
    pairs = np.array([(user, item) for user, items in enumerate(relevant) for item in items])
    hits = _find_hits(recommended, users, item_lists_from_pairs(*pairs.T, len(relevant)))
    counts = np.array([len(relevant[user]) for user in users])
    ndcg, reciprocal = _ndcg_at_k(hits, counts), _mrr_at_k(hits)
    for row, user in enumerate(users):
        found = [item in relevant[user] for item in recommended[row].tolist()]
        assert hits[row].tolist() == found
        assert reciprocal[row] == (1 / (found.index(True) + 1) if True in found else 0)
        gain = sum(1 / math.log2(place + 2) for place, hit in enumerate(found) if hit)
        best = sum(1 / math.log2(place + 2) for place in range(min(k, len(relevant[user]))))
        assert ndcg[row] == pytest.approx(gain / best)


def test_nothing_relevant_nothing_hit():
    assert not _find_hits(np.array([[0, 1]]), np.array([2]), NOTHING).any()
    none = np.zeros((0, 2), dtype=np.int64)
    assert _find_hits(none, none[:, 0], NOTHING).shape == (0, 2)
