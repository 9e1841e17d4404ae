"""windrow.recsys.log.synthetic.sessions: sizes, times and order, however they are cut into pieces."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.recsys.log.synthetic.options import FeatureGroup, SessionLogOptions
from windrow.recsys.log.synthetic.sessions import Samples, sample_blocks, session_sizes, sessions_for

OPTIONS = SessionLogOptions(groups=(FeatureGroup(name="g", dense=("a",)),), concurrent_sessions=20)


def everything(sessions, **settings):
    blocks = list(sample_blocks(OPTIONS, sessions, **{"order": "time", "block_rows": 64, **settings}))
    assert all(block.times.size == settings.get("block_rows", 64) for block in blocks[:-1])
    return Samples.joined(blocks)


def assert_equal(one, other):
    for name in ("sessions", "places", "times"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("mean", [1.0, 2.5, 16.5])
def test_sizes_have_their_mean(mean):
    options = dataclasses.replace(OPTIONS, samples_per_session=mean)
    sizes = session_sizes(options, np.arange(200_000))
    assert sizes.min() == 1
    assert sizes.mean() == pytest.approx(mean, rel=0.01)
    # Geometric: the variance follows from the mean.
    assert sizes.var() == pytest.approx(mean * (mean - 1), rel=0.03)


@given(samples=st.integers(1, 500_000))
def test_just_enough_sessions(samples):
    count = sessions_for(OPTIONS, samples)
    sizes = session_sizes(OPTIONS, np.arange(count))
    assert sizes.sum() >= samples > sizes[:-1].sum()


@pytest.mark.parametrize("order", ["time", "sessions"])
def test_every_sample_is_there_once_and_in_order(order):
    found = everything(range(5, 505), order=order)
    sizes = session_sizes(OPTIONS, np.arange(5, 505))
    by_session = found.take(np.lexsort((found.places, found.sessions)))
    np.testing.assert_array_equal(by_session.sessions, np.repeat(np.arange(5, 505), sizes))
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
    sessions = range(sessions_for(OPTIONS, samples))
    whole = everything(sessions, order=order, block_rows=10_000, samples=samples)
    assert whole.times.size == samples
    pieces = everything(
        sessions, order=order, block_rows=block_rows, samples=samples, sessions_per_chunk=per_chunk
    )
    assert_equal(whole, pieces)


def test_ranges_of_sessions_add_up_to_the_whole():
    whole = everything(range(100), order="sessions")
    assert_equal(
        whole,
        Samples.joined(
            [everything(range(40), order="sessions"), everything(range(40, 100), order="sessions")]
        ),
    )


def test_no_more_is_held_than_the_sessions_under_way():
    # Samples leave while later sessions have not been looked at yet.
    first = next(sample_blocks(OPTIONS, range(10**12), order="time", block_rows=50, sessions_per_chunk=10))
    assert first.times.size == 50
    assert first.sessions.max() < 60


def test_samples_of_a_batch_are_of_as_many_sessions_as_published():
    options = SessionLogOptions(groups=OPTIONS.groups)
    found = Samples.joined(list(sample_blocks(options, range(60_000), order="time", block_rows=4096)))
    # Without the beginning and the end, where fewer sessions are under way.
    starts = range(330_000, 660_000, 4096)
    distinct = sum(np.unique(found.sessions[start : start + 4096]).size for start in starts)
    assert len(starts) * 4096 / distinct == pytest.approx(1.15, abs=0.01)
