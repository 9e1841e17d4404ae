"""windrow.recsys.log.synthetic.values_kernels: against the same written slowly in Python, and against distributions."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.random import GOLDEN, MASK, mix64
from windrow.recsys.log.synthetic.options import SessionFeature
from windrow.recsys.log.synthetic.sessions import popularity
from windrow.recsys.log.synthetic.values_kernels import draw_dense, draw_ids, id_effects, walk

KEY = 12345


def hash_id(key, number):
    return mix64(key ^ mix64((number + GOLDEN) & MASK))


def unit(number):
    return (number >> 11) * 2.0**-53


def slow_walk(session, place, unchanged, shifted):
    version = shift = 0
    state = hash_id(KEY, session)
    for _ in range(place):
        state = (state + GOLDEN) & MASK
        draw = unit(mix64(state))
        if draw < unchanged:
            continue
        if draw < unchanged + (1 - unchanged) * shifted:
            shift += 1
        else:
            version, shift = version + 1, 0
    return version, shift


@given(
    samples=st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 40)), min_size=1, max_size=20),
    unchanged=st.floats(0, 1),
    shifted=st.floats(0, 1),
)
def test_walk(samples, unchanged, shifted):
    sessions, places = (np.array(column, np.int64) for column in zip(*samples, strict=True))
    versions, shifts = np.empty_like(sessions), np.empty_like(sessions)
    walk(np.uint64(KEY), sessions, places, unchanged, shifted, versions, shifts)
    expected = [slow_walk(session, place, unchanged, shifted) for session, place in samples]
    assert list(zip(versions.tolist(), shifts.tolist(), strict=True)) == expected


def draw(sessions, versions, shifts, lengths, *, rows=1000, skew=0.9, multiplier=617, effects=0, centre=0.0):
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids, found = np.empty(offsets[-1], np.int64), np.empty(effects)
    columns = (np.array(column, np.int64) for column in (sessions, versions, shifts))
    draw_ids(np.uint64(KEY), *columns, offsets, rows, skew, multiplier, np.uint64(7), centre, ids, found)
    return [ids[start:stop] for start, stop in itertools.pairwise(offsets)], found


def test_a_list_that_moves_on_loses_its_oldest_id_and_gains_a_newest():
    lists, _ = draw([5, 5, 5, 5, 6], [0, 0, 0, 1, 0], [0, 1, 3, 0, 0], [8, 8, 8, 8, 8])
    np.testing.assert_array_equal(lists[0][1:], lists[1][:-1])
    np.testing.assert_array_equal(lists[0][3:], lists[2][:-3])
    assert not np.array_equal(lists[0], lists[3])
    assert not np.array_equal(lists[0], lists[4])


@pytest.mark.parametrize("skew", [0.0, 0.9, 1.0, 1.2])
def test_ids_are_as_popular_as_said(skew):
    rows, count = 50, 400_000
    (ids,), _ = draw([1], [0], [0], [count], rows=rows, skew=skew, multiplier=31)
    shares = np.bincount(ids, minlength=rows) / count
    expected = popularity(SessionFeature(name="a", rows=rows, skew=skew))
    assert expected.sum() == pytest.approx(1)
    np.testing.assert_allclose(
        shares[np.arange(rows) * 31 % rows], expected, atol=5 * math.sqrt(0.25 / count)
    )


@given(rows=st.integers(1, 2**31 - 1), skew=st.floats(0, 3), length=st.integers(0, 50))
def test_ids_are_rows_of_the_table(rows, skew, length):
    (ids,), _ = draw([3], [1], [2], [length], rows=rows, skew=skew, multiplier=1)
    assert ((ids >= 0) & (ids < rows)).all()


def test_effects():
    lists, effects = draw([1, 2, 3], [0, 0, 0], [0, 0, 0], [4, 0, 9], effects=3, centre=0.25)
    for ids, effect in zip(lists, effects, strict=True):
        expected = np.array([(unit(mix64(int(number) ^ 7)) - 0.5) * math.sqrt(12) for number in ids])
        single = np.empty(ids.size)
        id_effects(np.uint64(7), ids, single)
        np.testing.assert_allclose(single, expected, rtol=1e-12)
        total = (expected - 0.25).sum() / math.sqrt(max(ids.size, 1))
        assert effect == pytest.approx(total, abs=1e-12)


def test_effects_of_many_ids_have_mean_0_and_deviation_1():
    effects = np.empty(100_000)
    id_effects(np.uint64(7), np.arange(100_000), effects)
    assert effects.mean() == pytest.approx(0, abs=0.02)
    assert effects.std() == pytest.approx(1, abs=0.01)


def test_dense_values_are_normal_and_change_with_version_and_shift():
    count = 200_000
    values = np.empty(count, np.float32)
    zeros = np.zeros(count, np.int64)
    draw_dense(np.uint64(KEY), np.arange(count), zeros, zeros, values)
    assert np.isfinite(values).all()
    assert values.mean() == pytest.approx(0, abs=0.01)
    assert values.std() == pytest.approx(1, abs=0.01)
    assert (np.abs(values) < 1).mean() == pytest.approx(0.6827, abs=0.005)
    four = np.empty(4, np.float32)
    draw_dense(np.uint64(KEY), np.full(4, 9), np.array([0, 0, 1, 0]), np.array([0, 1, 0, 0]), four)
    assert four[0] == four[3]
    assert len(set(four.tolist())) == 3
