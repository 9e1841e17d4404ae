import numpy as np
import pytest
import torch

from windrow.comm.errors import RecipeError
from windrow.recsys.batches.interaction_reader import FEATURES, Neighbourhoods
from windrow.recsys.batches.interactions import Interactions, item_lists_from_pairs

NUM_USERS, NUM_ITEMS = 12, 30


def make_interactions():
    taken = np.random.default_rng(0).random((NUM_USERS, NUM_ITEMS)) < 0.4
    taken[3], taken[:, 7] = False, False
    train = item_lists_from_pairs(*taken.nonzero(), NUM_USERS)
    nothing = item_lists_from_pairs(train.rows[:0], train.values[:0], NUM_USERS)
    return Interactions(NUM_USERS, NUM_ITEMS, train, nothing, nothing), taken


INTERACTIONS, TAKEN = make_interactions()


@pytest.mark.parametrize("side", ["histories", "audiences"])
@pytest.mark.parametrize("limit", [0, 3, 1000, None])
def test_samples(side, limit):
    sampler = getattr(Neighbourhoods.of(INTERACTIONS, limit, limit, seed=1), side)
    matrix = TAKEN if side == "histories" else TAKEN.T
    rows = np.arange(len(matrix))
    seen = np.zeros_like(matrix)
    for draw in range(60):
        columns, lengths, weights = sampler.sample(rows, np.full(len(rows), draw, dtype=np.uint64))
        expected = matrix.sum(axis=1) if limit is None else np.minimum(limit, matrix.sum(axis=1))
        assert lengths.tolist() == expected.tolist()
        of = np.repeat(rows, lengths)
        assert len(set(zip(of.tolist(), columns.tolist(), strict=True))) == len(columns)
        seen[of, columns] = True
        counts = matrix.sum(axis=1)[of], matrix.sum(axis=0)[columns]
        assert weights.dtype == np.float32
        assert weights == pytest.approx(counts[0] / lengths[of] / np.sqrt(counts[0] * counts[1]))
    # Every neighbour comes up, whatever the limit.
    assert np.array_equal(seen, matrix & (limit != 0))


def test_whole_neighbourhoods_are_a_layer_of_lightgcn():
    embeddings = np.random.default_rng(1).normal(size=(NUM_ITEMS, 4))
    sampler = Neighbourhoods.of(INTERACTIONS, seed=0).histories
    columns, lengths, weights = sampler.sample(np.arange(NUM_USERS), np.zeros(NUM_USERS, dtype=np.uint64))
    found = np.zeros((NUM_USERS, 4))
    np.add.at(found, np.repeat(np.arange(NUM_USERS), lengths), weights[:, None] * embeddings[columns])
    degrees = np.maximum(np.outer(TAKEN.sum(axis=1), TAKEN.sum(axis=0)), 1)
    assert found == pytest.approx(TAKEN / np.sqrt(degrees) @ embeddings, abs=1e-5)


def features_of(users, items):
    zeros = np.zeros(max(len(users), len(items)), dtype=np.uint64)
    users, items = (np.asarray(ids, dtype=np.int64) for ids in (users, items))
    whole = Neighbourhoods.of(INTERACTIONS, seed=0)
    return whole.features(users, items, zeros[: len(users)], zeros[: len(items)])


def test_users_and_items_come_with_their_neighbours():
    features = features_of([4, 2], [9])
    assert features.keys() == list(FEATURES) == ["user", "audience", "history", "item"]
    assert features.stride() == 2
    user, audience, history, item = (
        [set(row.tolist()) for row in features[key].to_dense()] for key in FEATURES
    )
    assert (user, item) == ([{4}, {2}], [{9}, set()])
    assert history == [set(TAKEN[user].nonzero()[0].tolist()) for user in (4, 2)]
    assert audience == [set(TAKEN[:, 9].nonzero()[0].tolist()), set()]
    for key in ("user", "item"):
        assert torch.equal(features[key].weights(), torch.ones_like(features[key].weights()))


def test_either_side_may_be_absent():
    assert features_of([], [5]).lengths().view(4, 1)[[0, 2]].tolist() == [[0], [0]]
    assert features_of([], []).stride() == 0


def test_a_negative_limit_is_refused():
    with pytest.raises(RecipeError, match="-1"):
        Neighbourhoods.of(INTERACTIONS, -1, seed=0)
