import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError
from windrow.recsys.batches.jagged import Jagged
from windrow.recsys.batches.sessions import Sessions, load_sessions

LISTS = st.lists(st.lists(st.integers(0, 9), max_size=7), max_size=9)


def make(lists, **options):
    items = np.array([item for one in lists for item in one], dtype=np.int64)
    return Sessions(Jagged(items, np.cumsum([0, *map(len, lists)])), **options)


def reference(lists, max_history):
    """(history, target) of every sample, in order."""
    return [
        (one[max(0, place - max_history) : place], one[place])
        for one in lists
        for place in range(1, len(one))
    ]


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
    last = data.draw(st.integers(0, len(lists)))
    parts = make(lists, max_history=3).split(last)
    for part, wanted in zip(parts, (lists[: len(lists) - last], lists[len(lists) - last :]), strict=True):
        assert part.max_history == 3
        assert as_pairs(part.samples(np.arange(part.num_samples))) == reference(wanted, 3)


@pytest.mark.parametrize(
    ("items", "offsets", "max_history", "message"),
    [
        ([1, 2], [1, 2], 5, "clicks: offsets start at 1"),
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
        (
            {"items": np.arange(3.0), "offsets": np.array([0, 3])},
            r"'items' has type float64 and shape \(3,\)",
        ),
        (
            {"items": np.arange(3), "offsets": np.array([[0, 3]])},
            r"'offsets' has type int64 and shape \(1, 2\)",
        ),
    ],
)
def test_another_archive_is_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(DataError, match=message):
        load_sessions(tmp_path / "mine.npz")
