import itertools
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError
from windrow.recsys.batches.deduplication import distinct_lists as module
from windrow.recsys.batches.deduplication.distinct_lists import distinct_lists, hash_lists
from windrow.recsys.batches.jagged import Jagged

WEIGHTS = st.sampled_from([0.0, -0.0, 1.0, float("nan"), np.float32(np.uint32(0x7FC00001).view(np.float32))])


def reference(samples):
    """Samples as tuples of bytes -> representatives and inverse, one at a time."""
    seen, representatives, inverse = {}, [], []
    for row, sample in enumerate(samples):
        if sample not in seen:
            seen[sample] = len(representatives)
            representatives.append(row)
        inverse.append(seen[sample])
    return representatives, inverse


@st.composite
def groups(draw):
    """Features of one group, and the samples as comparable tuples."""
    num_samples = draw(st.integers(0, 12))
    features, columns = [], []
    for _ in range(draw(st.integers(1, 3))):
        lists = [draw(st.lists(st.integers(-1, 1), max_size=6)) for _ in range(num_samples)]
        # Samples of a session: some repeat the one before.
        for row in range(1, num_samples):
            if draw(st.booleans()):
                lists[row] = list(lists[row - 1])
        unused = draw(st.integers(0, 3))
        bounds = np.cumsum([unused, *map(len, lists)]).astype(draw(st.sampled_from([np.int32, np.int64])))
        ids = np.array([7] * unused + [number for numbers in lists for number in numbers], np.int64)
        parts = None
        if draw(st.booleans()):
            parts = np.array([draw(WEIGHTS) for _ in ids], np.float32)
        features.append(Jagged(ids, bounds, parts))
        columns.append(
            [
                (ids[a:b].tobytes(), b"" if parts is None else parts[a:b].tobytes())
                for a, b in itertools.pairwise(bounds)
            ]
        )
    return features, list(zip(*columns, strict=True))


def same_hash_for_all(columns, rows):
    return np.full(len(rows), 5, np.uint64)


def hash_of_two_bits(columns, rows):
    return hash_lists(columns, rows) & np.uint64(3)


@pytest.mark.parametrize("hashing", [hash_lists, same_hash_for_all, hash_of_two_bits])
@given(group=groups())
def test_is_what_comparing_one_sample_after_the_other_gives(hashing, group):
    features, samples = group
    with patch.object(module, "hash_lists", hashing):
        found = distinct_lists(features)
    representatives, inverse = reference(samples)
    assert found.representatives.tolist() == representatives
    assert found.inverse.tolist() == inverse
    assert str(found.representatives.dtype)[-5:] == str(found.inverse.dtype)[-5:] == "int64"


@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
def test_a_difference_in_any_place_is_seen(length):
    rows = np.zeros((length + 2, length), np.int64)
    rows[np.arange(length), np.arange(length)] = 1
    offsets = np.arange(length + 3) * length
    found = distinct_lists([Jagged(rows.reshape(-1), offsets)])
    assert found.representatives.tolist() == list(range(length + 1))
    assert found.inverse.tolist() == [*range(length + 1), length]


@pytest.mark.parametrize(("length", "kinds"), [(1, 300), (7, 30), (64, 5), (100, 50), (300, 9)])
def test_many_lists_of_one_length(length, kinds):
    chance = np.random.default_rng(0)
    rows = chance.integers(0, 2, (kinds, length))[np.repeat(chance.integers(0, kinds, 400), 5)]
    found = distinct_lists([Jagged(rows.reshape(-1), np.arange(len(rows) + 1) * length)])
    representatives, inverse = reference([row.tobytes() for row in rows])
    assert found.representatives.tolist() == representatives
    assert found.inverse.tolist() == inverse


def test_arrays_that_may_not_be_written_are_read():
    ids = np.array([1, 1, 2])
    bounds = np.arange(4, dtype=np.int32)
    ids.flags.writeable = bounds.flags.writeable = False
    assert distinct_lists([Jagged(ids, bounds)]).inverse.tolist() == [0, 0, 1]


def test_hashes_are_those_of_the_representatives(lists_from):
    lists = [lists_from([[7, 3], [7, 3], [], [7, 3], [4]])]
    found = distinct_lists(lists)
    assert found.representatives.tolist() == [0, 2, 4]
    assert found.hashes.tolist() == hash_lists(lists, found.representatives).tolist()


def test_hashes_of_lists_that_are_alike_differ(lists_from):
    lists = [[], [0], [0, 0], [1], [1, 0], [0, 1], [0, 0, 0, 0], [1 << 62, 1 << 62], [-1], [0] * 5, [0] * 8]
    hashes = hash_lists([lists_from(lists)], np.arange(len(lists)))
    assert len(set(hashes.tolist())) == len(lists)


def test_refuses_a_group_of_nothing_and_features_of_different_samples():
    with pytest.raises(DataError, match="no features"):
        distinct_lists([])
    with pytest.raises(DataError, match=r"\[3, 2\]"):
        distinct_lists([Jagged.of_single(np.arange(3)), Jagged.of_single(np.arange(2))])


def test_small_lists_have_hashes_of_their_own(lists_from):
    """Not only that collisions do no harm: short lists of small ids are what logs are full of."""
    lists = [ids for length in range(4) for ids in itertools.product(range(4), repeat=length)]
    pairs = list(itertools.product(lists, repeat=2))
    columns = [lists_from(column) for column in zip(*pairs, strict=True)]
    assert len(np.unique(hash_lists(columns, np.arange(len(pairs))))) == len(pairs)
