import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError, RecipeError
from windrow.recsys.batches.jagged import Jagged
from windrow.recsys.batches.sampling import NegativeSampler
from windrow.recsys.batches.sessions import HISTORY, ITEM, SessionReader, Sessions, load_sessions, make_session_batch

LISTS = st.lists(st.lists(st.integers(0, 9), max_size=7), max_size=9)


def make(lists, **options):
    items = np.array([item for one in lists for item in one], dtype=np.int64)
    return Sessions(Jagged(items, np.cumsum([0, *map(len, lists)])), **options)


def reference(lists, max_history):
    """(history, target) of every sample, in order."""
    return [(one[max(0, place - max_history) : place], one[place]) for one in lists for place in range(1, len(one))]


def as_pairs(samples):
    offsets, ids = samples.histories.offsets, samples.histories.values.tolist()
    return [
        (ids[start:stop], target)
        for start, stop, target in zip(offsets[:-1], offsets[1:], samples.targets.tolist(), strict=True)
    ]


@given(LISTS, st.integers(1, 8), st.randoms(use_true_random=False))
def test_samples_are_all_prefixes(lists, max_history, random):
    sessions = make(lists, max_history=max_history)
    expected = reference(lists, max_history)
    assert sessions.num_samples == len(expected)
    numbers = list(range(len(expected)))
    random.shuffle(numbers)
    samples = sessions.samples(np.array(numbers, dtype=np.int64))
    assert len(samples) == len(expected)
    assert as_pairs(samples) == [expected[number] for number in numbers]


@given(LISTS, st.data())
def test_a_split_has_all_sessions(lists, data):
    cut = data.draw(st.integers(0, len(lists)))
    for part, wanted in zip(
        make(lists, max_history=3).split(len(lists) - cut), (lists[:cut], lists[cut:]), strict=True
    ):
        assert part.max_history == 3
        assert as_pairs(part.samples(np.arange(part.num_samples))) == reference(wanted, 3)


@pytest.mark.parametrize(
    ("items", "offsets", "max_history", "message"),
    [
        ([1, 2, 3], [0, 2, 1, 3], 5, "clicks, session 1: offset 1 comes after 2"),
        ([1, -4], [0, 2], 5, "item -4 of click 1"),
        ([1, 2], [0, 2], 0, "max_history = 0"),
    ],
)
def test_what_is_no_session_is_refused(items, offsets, max_history, message):
    with pytest.raises(DataError, match=message):
        Sessions(Jagged(np.array(items), np.array(offsets)), max_history)


def test_an_archive_is_read(tmp_path):
    file = tmp_path / "mine.npz"
    np.savez(file, items=np.array([4, 5, 6], np.int32), offsets=np.array([0, 1, 3], np.uint32))
    sessions = load_sessions(file, max_history=7)
    assert (sessions.clicks.values.dtype, sessions.clicks.offsets.dtype) == (np.int64, np.int64)
    assert sessions.max_history == 7
    assert as_pairs(sessions.samples(np.arange(1))) == [([5], 6)]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"items": np.arange(3)}, "there is no array 'offsets'"),
        ({"items": np.arange(3.0), "offsets": np.array([0, 3])}, r"'items' has type float64 and shape \(3,\)"),
        ({"items": np.arange(3), "offsets": np.array([[0, 3]])}, r"'offsets' has type int64 and shape \(1, 2\)"),
    ],
)
def test_another_archive_is_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(DataError, match=message):
        load_sessions(tmp_path / "mine.npz")


def make_batch(histories, items, **options):
    ids = np.array([item for one in histories for item in one], dtype=np.int64)
    offsets = np.cumsum([0, *map(len, histories)])
    numbers = 100 + np.arange(len(histories))
    return make_session_batch(Jagged(ids, offsets), np.array(items, dtype=np.int64), numbers, **options)


def dense_of(jagged):
    return [values.tolist() for values in jagged.to_dense()]


HISTORIES = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), max_size=6)


@given(HISTORIES, st.lists(st.integers(0, 5), max_size=4))
def test_rows_are_laid_out_as_drawn(histories, others):
    batch = make_batch(histories, [7] * len(histories) + others)
    rows = len(histories) + len(others)
    assert batch.num_samples == len(histories)
    assert batch.dense.shape == (len(histories), 0)
    assert batch.row_ids.tolist() == [100 + row for row in range(len(histories))]
    assert (batch.deduplicated, batch.windows) == ((), {})
    assert batch.sparse.stride() == rows
    assert dense_of(batch.sparse[HISTORY]) == histories + [[]] * len(others)
    assert dense_of(batch.sparse[ITEM]) == [[7]] * len(histories) + [[item] for item in others]


@given(HISTORIES, st.lists(st.integers(0, 5), max_size=9), st.booleans())
def test_deduplicated_holds_the_same(histories, items, has_targets):
    items = items + [1] * len(histories) if has_targets else items
    plain, batch = make_batch(histories, items), make_batch(histories, items, deduplicated=True)
    (group,) = batch.deduplicated
    assert dense_of(group.expand()[ITEM]) == dense_of(plain.sparse[ITEM])
    assert len(group.unique.values()) == len(set(items))
    packed = batch.windows[HISTORY]
    assert packed.lengths.tolist() == [len(one) for one in histories]
    # What is looked up for the packed ids, row after row, is what windows are cut from.
    assert batch.sparse[HISTORY].values().tolist() == packed.values.tolist()
    assert packed.expand().values.tolist() == plain.sparse[HISTORY].values().tolist()
    assert batch.sparse.stride() == plain.sparse.stride()
    assert torch.equal(batch.expanded().sparse[ITEM].values(), plain.sparse[ITEM].values())


def test_prefixes_of_a_session_are_looked_up_once():
    batch = make_batch([[4], [4, 4], [4, 4, 9], [2], [2, 6]], [4, 9, 9, 6, 9, 4], deduplicated=True)
    assert dense_of(batch.sparse[HISTORY]) == [[4], [4], [9], [2], [6], []]
    assert batch.deduplicated[0].unique.values().tolist() == [4, 9, 6]


def test_an_empty_history_is_refused():
    with pytest.raises(DataError, match="history of sample 101 is empty"):
        make_batch([[1], []], [2, 2])


NUM_ITEMS = 30


def make_sessions():
    generator = np.random.default_rng(0)
    lengths = generator.integers(0, 9, 25)
    return Sessions(Jagged.of_lengths(generator.integers(0, NUM_ITEMS, lengths.sum()), lengths), max_history=5)


SESSIONS = make_sessions()


def make_reader(rank=0, size=1, batch_size=20, sessions=SESSIONS, **options):
    negatives = NegativeSampler(np.bincount(SESSIONS.clicks.values, minlength=NUM_ITEMS), 7, seed=5)
    return SessionReader(sessions, rank=rank, size=size, batch_size=batch_size, negatives=negatives, seed=5, **options)


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
        assert histories == [history for history, _ in as_pairs(samples)]
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
@pytest.mark.parametrize("size", [3, 32])
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


def test_what_cannot_be_read_is_refused():
    with pytest.raises(RecipeError, match='order = "random": expected one of samples, sessions'):
        make_reader(order="random")
    with pytest.raises(DataError, match="no session has two clicks"):
        make_reader(sessions=Sessions(Jagged.of_single(np.arange(3))))
