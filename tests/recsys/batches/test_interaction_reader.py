import numpy as np
import pytest
import torch

from windrow.recsys.batches.interaction_reader import FEATURES, InteractionReader, Neighbourhoods
from windrow.recsys.batches.interactions import Interactions, item_lists_from_pairs
from windrow.recsys.batches.sampling import NegativeSampler

NUM_USERS, NUM_ITEMS = 12, 30


def make_taken():
    taken = np.random.default_rng(0).random((NUM_USERS, NUM_ITEMS)) < 0.4
    taken[3], taken[:, 7] = False, False
    train = item_lists_from_pairs(*taken.nonzero(), NUM_USERS)
    nothing = item_lists_from_pairs(train.rows[:0], train.values[:0], NUM_USERS)
    return Interactions(NUM_USERS, NUM_ITEMS, train, nothing, nothing), taken


WITH_GAPS, MATRIX = make_taken()
TAKEN = set(zip(WITH_GAPS.train.rows.tolist(), WITH_GAPS.train.values.tolist(), strict=True))


@pytest.mark.parametrize("side", ["histories", "audiences"])
@pytest.mark.parametrize("limit", [0, 3, 1000, None])
def test_samples(side, limit):
    sampler = getattr(Neighbourhoods.of(WITH_GAPS, limit, limit, seed=1), side)
    matrix = MATRIX if side == "histories" else MATRIX.T
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
    sampler = Neighbourhoods.of(WITH_GAPS, seed=0).histories
    columns, lengths, weights = sampler.sample(np.arange(NUM_USERS), np.zeros(NUM_USERS, dtype=np.uint64))
    found = np.zeros((NUM_USERS, 4))
    np.add.at(found, np.repeat(np.arange(NUM_USERS), lengths), weights[:, None] * embeddings[columns])
    degrees = np.maximum(np.outer(MATRIX.sum(axis=1), MATRIX.sum(axis=0)), 1)
    assert found == pytest.approx(MATRIX / np.sqrt(degrees) @ embeddings, abs=1e-5)


def features_of(users, items):
    zeros = np.zeros(max(len(users), len(items)), dtype=np.uint64)
    users, items = (np.asarray(ids, dtype=np.int64) for ids in (users, items))
    whole = Neighbourhoods.of(WITH_GAPS, seed=0)
    return whole.features(users, items, zeros[: len(users)], zeros[: len(items)])


def test_users_and_items_come_with_their_neighbours():
    features = features_of([4, 2], [9])
    assert features.keys() == list(FEATURES) == ["user", "audience", "history", "item"]
    assert features.stride() == 2
    user, audience, history, item = ([set(row.tolist()) for row in features[key].to_dense()] for key in FEATURES)
    assert (user, item) == ([{4}, {2}], [{9}, set()])
    assert history == [set(MATRIX[user].nonzero()[0].tolist()) for user in (4, 2)]
    assert audience == [set(MATRIX[:, 9].nonzero()[0].tolist()), set()]
    for key in ("user", "item"):
        assert torch.equal(features[key].weights(), torch.ones_like(features[key].weights()))


def test_either_side_may_be_absent():
    assert features_of([], [5]).lengths().view(4, 1)[[0, 2]].tolist() == [[0], [0]]
    assert features_of([], []).stride() == 0


def make_reader(rank=0, size=1, batch_size=20):
    return InteractionReader(
        WITH_GAPS,
        rank=rank,
        size=size,
        batch_size=batch_size,
        negatives=NegativeSampler(WITH_GAPS.item_counts(), 7, seed=5),
        neighbourhoods=Neighbourhoods.of(WITH_GAPS, 6, 4, seed=5),
        seed=5,
    )


def rows_of(batch):
    """(user, audience, history, item) of each row, each a list."""
    columns = [[values.tolist() for values in batch.sparse[key].to_dense()] for key in FEATURES]
    return list(zip(*columns, strict=True))


def test_an_epoch_has_every_pair_once():
    reader = make_reader()
    assert reader.samples_per_epoch == len(WITH_GAPS.train.values)
    pairs = []
    for step in range(reader.steps_per_epoch):
        batch = reader.read(3, step)
        assert batch.num_samples == reader.global_batch_size(3, step) <= 20
        pairs += [(user, item) for [user], _, _, [item] in rows_of(batch)[: batch.num_samples]]
    assert sorted(pairs) == sorted(TAKEN)
    assert not torch.equal(reader.read(0, 0).row_ids, reader.read(1, 0).row_ids)


def test_rows_are_laid_out_as_promised():
    batch = make_reader().read(0, 1)
    assert batch.sparse.keys() == list(FEATURES)
    assert batch.sparse.stride() == batch.num_samples + 7
    assert batch.dense.shape == (batch.num_samples + 7, 0)
    assert batch.labels.tolist() == [1.0] * batch.num_samples
    rows = rows_of(batch)
    for row, ([user], _, history, [positive]) in enumerate(rows[: batch.num_samples]):
        assert len(history) <= 6
        assert {(user, item) for item in history} <= TAKEN
        pair = int(batch.row_ids[row])
        assert (WITH_GAPS.train.rows[pair], WITH_GAPS.train.values[pair]) == (user, positive)
    negatives = NegativeSampler(WITH_GAPS.item_counts(), 7, seed=5).sample(0, 1)
    others = rows[batch.num_samples :]
    assert [(user, history, item) for user, _, history, item in others] == [
        ([], [], [item]) for item in negatives.tolist()
    ]
    for _, audience, _, [item] in rows:
        assert len(audience) <= 4
        assert {(user, item) for user in audience} <= TAKEN


@pytest.mark.parametrize("size", [2, 3, 32])
def test_minibatches_do_not_depend_on_the_number_of_ranks(size):
    whole = make_reader()
    ranks = [make_reader(rank, size) for rank in range(size)]
    for step in range(whole.steps_per_epoch):
        expected = whole.read(1, step)
        parts = [reader.read(1, step) for reader in ranks]
        assert {reader.global_batch_size(1, step) for reader in ranks} == {expected.num_samples}
        assert torch.equal(torch.cat([part.row_ids for part in parts]), expected.row_ids)
        joined = [row for part in parts for row in rows_of(part)[: part.num_samples]]
        assert joined == rows_of(expected)[: expected.num_samples]
        for part in parts:
            assert rows_of(part)[part.num_samples :] == rows_of(expected)[expected.num_samples :]
