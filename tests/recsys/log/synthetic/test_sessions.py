"""windrow.recsys.log.synthetic.sessions: samples and their values, against slow ones and distributions."""

import dataclasses
import itertools
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.random import GOLDEN, MASK, mix64
from windrow.recsys.log.synthetic import sessions as module
from windrow.recsys.log.synthetic.options import FeatureGroup, SessionFeature, SessionLogOptions
from windrow.recsys.log.synthetic.sessions import Samples, draw_samples, popularity, sample_blocks
from windrow.recsys.log.synthetic.values_kernels import draw_dense, draw_ids, id_effects, walk

OPTIONS = SessionLogOptions(groups=(FeatureGroup(name="g", dense=("a",)),), concurrent_sessions=20)


def everything(samples, options=OPTIONS, *, order="time", block_rows=64):
    blocks = list(sample_blocks(options, samples, order=order, block_rows=block_rows))
    assert all(block.times.size == block_rows for block in blocks[:-1])
    return Samples.joined(blocks)


def assert_equal(one, other):
    for name in ("sessions", "places", "times"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("mean", [1.0, 2.5, 16.5])
def test_sizes_have_their_mean(mean):
    options = dataclasses.replace(OPTIONS, samples_per_session=mean)
    # The last session is not whole.
    sizes = np.bincount(everything(int(100_000 * mean), options, order="sessions", block_rows=1 << 16).sessions)[:-1]
    assert sizes.min() == 1
    assert sizes.mean() == pytest.approx(mean, rel=0.015)
    # Geometric: the variance follows from the mean.
    assert sizes.var() == pytest.approx(mean * (mean - 1), rel=0.04)


@pytest.mark.parametrize("order", ["time", "sessions"])
def test_every_sample_is_there_once_and_in_order(order):
    found = everything(8000, order=order)
    by_session = found.take(np.lexsort((found.places, found.sessions)))
    sizes = np.bincount(by_session.sessions)
    assert sizes.sum() == 8000
    np.testing.assert_array_equal(by_session.places, np.concatenate([np.arange(size) for size in sizes]))
    same = np.diff(by_session.sessions) == 0
    assert (np.diff(by_session.times)[same] > 0).all()
    if order == "time":
        assert (np.diff(found.times) >= 0).all()
    else:
        assert_equal(found, by_session)


@given(
    order=st.sampled_from(["time", "sessions"]),
    block_rows=st.integers(1, 300),
    per_chunk=st.integers(1, 60),
    samples=st.integers(1, 700),
)
def test_pieces_do_not_matter(order, block_rows, per_chunk, samples):
    whole = everything(samples, order=order, block_rows=10_000)
    assert whole.times.size == samples
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SESSIONS_PER_CHUNK", per_chunk)
        pieces = everything(samples, order=order, block_rows=block_rows)
    assert_equal(whole, pieces)


@pytest.mark.parametrize("order", ["time", "sessions"])
def test_no_more_is_held_than_the_sessions_under_way(monkeypatch, order):
    # Samples leave while later sessions of an endless log have not been looked at yet.
    monkeypatch.setattr(module, "SESSIONS_PER_CHUNK", 10)
    first = next(sample_blocks(OPTIONS, 10**15, order=order, block_rows=50))
    assert first.times.size == 50
    assert first.sessions.max() < 60


def test_samples_of_a_batch_are_of_as_many_sessions_as_published():
    options = SessionLogOptions(groups=OPTIONS.groups)
    found = everything(990_000, options, block_rows=4096)
    # Without the beginning and the end, where fewer sessions are under way.
    starts = range(330_000, 660_000, 4096)
    distinct = sum(np.unique(found.sessions[start : start + 4096]).size for start in starts)
    assert len(starts) * 4096 / distinct == pytest.approx(1.15, abs=0.01)


VALUED = SessionLogOptions(
    groups=(
        FeatureGroup(
            name="history",
            features=(SessionFeature(name="items", rows=1000), SessionFeature(name="shops", rows=100, effect=0.5)),
            mean_length=5,
            unchanged=0.8,
            shifted=0.5,
            empty=0.1,
        ),
        FeatureGroup(name="user", features=(SessionFeature(name="user", rows=10_000),), unchanged=1.0),
        FeatureGroup(
            name="item",
            features=(SessionFeature(name="item", rows=50, effect=1.0),),
            dense=("price", "age"),
            dense_effect=0.5,
        ),
    ),
    samples_per_session=4,
    concurrent_sessions=10,
    seed=3,
)


def samples(count=800, order="time"):
    return everything(count, VALUED, order=order, block_rows=100)


def lists(values, name):
    return values[name].to_pylist()


def test_a_sample_depends_on_the_seed_and_not_on_the_others_or_on_threads():
    chosen = samples()
    whole = draw_samples(VALUED, chosen)
    with ThreadPoolExecutor(3) as pool:
        backwards = draw_samples(VALUED, chosen.take(np.arange(chosen.times.size)[::-1]), pool.map)
    for name in whole.schema.names:
        assert lists(whole, name) == lists(backwards, name)[::-1]
    other_seed = draw_samples(dataclasses.replace(VALUED, seed=4), chosen)
    assert (whole["user"].to_numpy() != other_seed["user"].to_numpy()).mean() > 0.9


def test_features_of_a_group_have_lists_of_one_length_and_change_together():
    chosen = samples(order="sessions")
    values = draw_samples(VALUED, chosen)
    items, shops = lists(values, "items"), lists(values, "shops")
    assert [len(ids) for ids in items] == [len(ids) for ids in shops]
    same = np.diff(chosen.sessions) == 0
    changed = np.array([a != b for a, b in itertools.pairwise(items)])
    other = np.array([a != b for a, b in itertools.pairwise(shops)])
    # A new id of a small table may be the old one, never the other way round.
    assert not (other & ~changed & same).any()
    assert (other & changed & same).sum() > 0.7 * (changed & same).sum() > 10


def test_empty_lists_are_of_whole_sessions():
    chosen = samples(8000)
    lengths = draw_samples(VALUED, chosen)["items"].value_lengths().to_numpy()
    empty = np.unique(chosen.sessions[lengths == 0])
    assert not np.isin(chosen.sessions[lengths > 0], empty).any()
    assert empty.size / np.unique(chosen.sessions).size == pytest.approx(0.1, abs=0.03)
    assert lengths[lengths > 0].mean() == pytest.approx(5, abs=0.3)


def test_session_ids_are_different_and_hide_their_order():
    chosen = samples(8000, "sessions")
    ids = draw_samples(VALUED, chosen)["session"].to_numpy()
    firsts = ids[np.unique(chosen.sessions, return_index=True)[1]]
    assert np.unique(firsts).size == np.unique(chosen.sessions).size
    assert (firsts >= 0).all()
    assert 0.3 < (np.diff(firsts) > 0).mean() < 0.7


def test_clicks_depend_on_the_features():
    chosen = samples(80_000)
    values = {name: draw_samples(VALUED, chosen)[name].to_numpy() for name in ("label", "item", "price", "age")}
    assert values["label"].mean() == pytest.approx(VALUED.click_share, abs=0.015)
    # Rates of items, learnt from one half, put the other half into order.
    half = chosen.times.size // 2
    items, clicked = values["item"], values["label"].astype(float)
    shown = np.bincount(items[:half], minlength=50) + 1
    rates = (np.bincount(items[:half], clicked[:half], minlength=50) + 0.2) / shown
    assert np.corrcoef(rates[items[half:]], clicked[half:])[0, 1] > 0.25
    assert np.corrcoef(values["price"], clicked)[0, 1] > 0.1
    assert np.corrcoef(values["age"], clicked)[0, 1] < -0.1


@pytest.mark.parametrize("skew", [40.0, 60.0, 300.0])
def test_an_id_that_is_nearly_all_there_is_says_nothing_about_clicks(skew):
    feature = SessionFeature(name="item", rows=1000, skew=skew, effect=0.1)
    options = SessionLogOptions(groups=(FeatureGroup(name="item", features=(feature,)),))
    assert draw_samples(options, samples(80_000))["label"].to_numpy().mean() == pytest.approx(0.2, abs=0.01)


def test_popularity_of_the_head_is_that_of_all():
    feature = SessionFeature(name="a", rows=500)
    np.testing.assert_array_equal(popularity(feature)[:20], popularity(feature, 20))
    assert (np.diff(popularity(feature)) < 0).all()


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


def draw(sessions, versions, shifts, lengths, *, rows, skew, multiplier):
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.empty(offsets[-1], np.int64)
    columns = (np.array(column, np.int64) for column in (sessions, versions, shifts))
    draw_ids(np.uint64(KEY), *columns, offsets, rows, skew, multiplier, ids)
    return [ids[start:stop] for start, stop in itertools.pairwise(offsets)]


@pytest.mark.parametrize("skew", [0.0, 0.9, 1.0, 1.2])
def test_ids_are_as_popular_as_said(skew):
    rows, count = 50, 400_000
    (ids,) = draw([1], [0], [0], [count], rows=rows, skew=skew, multiplier=31)
    shares = np.bincount(ids, minlength=rows) / count
    expected = popularity(SessionFeature(name="a", rows=rows, skew=skew))
    assert expected.sum() == pytest.approx(1)
    np.testing.assert_allclose(shares[np.arange(rows) * 31 % rows], expected, atol=5 * math.sqrt(0.25 / count))


@given(rows=st.integers(1, 2**31 - 1), skew=st.floats(0, 3), length=st.integers(0, 50))
def test_ids_are_rows_of_the_table(rows, skew, length):
    (ids,) = draw([3], [1], [2], [length], rows=rows, skew=skew, multiplier=1)
    assert ((ids >= 0) & (ids < rows)).all()


def test_effects():
    ids = np.arange(1000)
    effects = np.empty(ids.size)
    id_effects(np.uint64(7), ids, effects)
    expected = [(unit(mix64(int(number) ^ 7)) - 0.5) * math.sqrt(12) for number in ids]
    np.testing.assert_allclose(effects, expected, rtol=1e-12)


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
