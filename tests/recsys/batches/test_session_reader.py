import numpy as np
import pytest
import torch

from windrow.comm.errors import DataError, RecipeError
from windrow.recsys.batches.jagged import Jagged
from windrow.recsys.batches.sampling import NegativeSampler
from windrow.recsys.batches.sessions import HISTORY, ITEM, SessionReader, Sessions

NUM_ITEMS = 30


def make_sessions():
    generator = np.random.default_rng(0)
    lengths = generator.integers(0, 9, 25)
    return Sessions(
        Jagged.of_lengths(generator.integers(0, NUM_ITEMS, lengths.sum()), lengths), max_history=5
    )


SESSIONS = make_sessions()


def make_reader(rank=0, size=1, batch_size=20, sessions=SESSIONS, **options):
    negatives = NegativeSampler(np.bincount(SESSIONS.clicks.values, minlength=NUM_ITEMS), 7, seed=5)
    return SessionReader(
        sessions, rank=rank, size=size, batch_size=batch_size, negatives=negatives, seed=5, **options
    )


def rows_of(batch):
    """(history, item) of each row, each a list."""
    sparse = batch.expanded().sparse
    histories = (
        torch.split(batch.windows[HISTORY].expand().values, batch.windows[HISTORY].lengths.tolist())
        if batch.windows
        else sparse[HISTORY].to_dense()[: batch.num_samples]
    )
    return [one.tolist() for one in histories], [one.tolist() for one in sparse[ITEM].to_dense()]


@pytest.mark.parametrize("order", ["samples", "sessions"])
@pytest.mark.parametrize("deduplicated", [False, True])
def test_an_epoch_has_every_sample_once(order, deduplicated):
    reader = make_reader(order=order, deduplicated=deduplicated)
    assert reader.samples_per_epoch == SESSIONS.num_samples
    numbers = []
    for step in range(reader.steps_per_epoch):
        batch = reader.read(3, step)
        assert batch.num_samples == reader.global_batch_size(3, step) <= 20
        samples = SESSIONS.samples(batch.row_ids.numpy())
        histories, items = rows_of(batch)
        assert histories == [
            samples.histories.values[start:stop].tolist()
            for start, stop in zip(samples.histories.offsets, samples.histories.offsets[1:], strict=False)
        ]
        negatives = NegativeSampler(np.bincount(SESSIONS.clicks.values, minlength=NUM_ITEMS), 7, seed=5)
        assert items == [[item] for item in [*samples.targets, *negatives.sample(3, step)]]
        numbers += batch.row_ids.tolist()
    assert sorted(numbers) == list(range(SESSIONS.num_samples))


def order_of_epoch(reader, epoch):
    return torch.cat([reader.read(epoch, step).row_ids for step in range(reader.steps_per_epoch)]).numpy()


def test_sessions_stay_together_and_change_places():
    reader = make_reader(order="sessions")
    found = [order_of_epoch(reader, epoch) for epoch in (0, 1)]
    assert found[0].tolist() != found[1].tolist()
    for numbers in found:
        sessions = np.searchsorted(SESSIONS.sample_offsets, numbers, side="right") - 1
        firsts = np.flatnonzero(np.diff(sessions, prepend=-1))
        assert len(firsts) == len(np.unique(sessions))
        steps = np.diff(numbers)
        assert (steps[np.diff(sessions) == 0] == 1).all()


def test_samples_are_mixed():
    numbers = order_of_epoch(make_reader(), 0)
    assert (np.diff(numbers) == 1).mean() < 0.2


@pytest.mark.parametrize("order", ["samples", "sessions"])
@pytest.mark.parametrize("size", [2, 3, 32])
def test_minibatches_do_not_depend_on_the_number_of_ranks(size, order):
    whole = make_reader(order=order)
    ranks = [make_reader(rank, size, order=order, deduplicated=True) for rank in range(size)]
    for step in range(whole.steps_per_epoch):
        expected = whole.read(1, step)
        parts = [reader.read(1, step) for reader in ranks]
        assert {reader.global_batch_size(1, step) for reader in ranks} == {expected.num_samples}
        assert torch.equal(torch.cat([part.row_ids for part in parts]), expected.row_ids)
        assert [one for part in parts for one in rows_of(part)[0]] == rows_of(expected)[0]
        for part in parts:
            assert rows_of(part)[1][part.num_samples :] == rows_of(expected)[1][expected.num_samples :]


def test_clustered_and_deduplicated_looks_fewer_ids_up():
    def lookups(**options):
        batches = [make_reader(**options).read(0, step) for step in range(3)]
        return sum(
            len(batch.sparse.values()) + sum(len(group.unique.values()) for group in batch.deduplicated)
            for batch in batches
        )

    assert lookups(order="sessions", deduplicated=True) < 0.7 * lookups(order="sessions")


def test_batches_begin_anywhere_and_equal_what_is_read():
    reader = make_reader(order="sessions")
    with reader.batches(2, 2) as batches:
        found = list(batches)
    expected = [make_reader(order="sessions").read(2, step) for step in range(2, reader.steps_per_epoch)]
    assert [rows_of(batch) for batch in found] == [rows_of(batch) for batch in expected]


def test_what_cannot_be_read_is_refused():
    with pytest.raises(RecipeError, match="batch_size = 0"):
        make_reader(batch_size=0)
    with pytest.raises(RecipeError, match='order = "random": expected one of samples, sessions'):
        make_reader(order="random")
    with pytest.raises(DataError, match="no session has two clicks"):
        make_reader(sessions=Sessions(Jagged.of_single(np.arange(3))))
