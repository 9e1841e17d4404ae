import numpy as np
import pytest
import torch

from windrow.comm.errors import RecipeError
from windrow.recsys.batches.interaction_reader import FEATURES, InteractionReader, Neighbourhoods
from windrow.recsys.batches.interactions import Interactions, item_lists_from_pairs
from windrow.recsys.batches.sampling import NegativeSampler

NUM_USERS, NUM_ITEMS = 12, 30


def make_interactions():
    generator = np.random.default_rng(0)
    taken = generator.random((NUM_USERS, NUM_ITEMS)) < 0.4
    taken[3] = False
    users, items = taken.nonzero()
    train = item_lists_from_pairs(users, items, NUM_USERS)
    nothing = item_lists_from_pairs(users[:0], items[:0], NUM_USERS)
    return Interactions(NUM_USERS, NUM_ITEMS, train, nothing, nothing)


INTERACTIONS = make_interactions()
TAKEN = set(zip(INTERACTIONS.train.rows.tolist(), INTERACTIONS.train.values.tolist(), strict=True))


def make_reader(rank=0, size=1, batch_size=20):
    return InteractionReader(
        INTERACTIONS,
        rank=rank,
        size=size,
        batch_size=batch_size,
        negatives=NegativeSampler(INTERACTIONS.item_counts(), 7, seed=5),
        neighbourhoods=Neighbourhoods.of(INTERACTIONS, 6, 4, seed=5),
        seed=5,
    )


def rows_of(batch):
    """(user, audience, history, item) of each row, each a list."""
    columns = [[values.tolist() for values in batch.sparse[key].to_dense()] for key in FEATURES]
    return list(zip(*columns, strict=True))


def test_an_epoch_has_every_pair_once():
    reader = make_reader()
    assert reader.samples_per_epoch == len(INTERACTIONS.train.values)
    pairs = []
    for step in range(reader.steps_per_epoch):
        batch = reader.read(3, step)
        assert batch.num_samples == reader.global_batch_size(3, step) <= 20
        pairs += [(user, item) for [user], _, _, [item] in rows_of(batch)[: batch.num_samples]]
    assert sorted(pairs) == sorted(TAKEN)


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
        assert (INTERACTIONS.train.rows[pair], INTERACTIONS.train.values[pair]) == (user, positive)
    negatives = NegativeSampler(INTERACTIONS.item_counts(), 7, seed=5).sample(0, 1)
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


def test_batches_begin_anywhere_and_equal_what_is_read():
    reader = make_reader()
    with reader.batches(2, 3) as batches:
        found = list(batches)
    expected = [make_reader().read(2, step) for step in range(3, reader.steps_per_epoch)]
    assert [rows_of(batch) for batch in found] == [rows_of(batch) for batch in expected]


def test_epochs_differ():
    reader = make_reader()
    assert not torch.equal(reader.read(0, 0).row_ids, reader.read(1, 0).row_ids)


def test_numbers_out_of_range_are_refused():
    with pytest.raises(RecipeError, match="batch_size = 0"):
        make_reader(batch_size=0)
