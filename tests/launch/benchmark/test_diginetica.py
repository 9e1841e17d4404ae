"""windrow.launch.benchmark.data_sets: prefixes of sessions as samples."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError
from windrow.launch.benchmark.data_sets import DIGINETICA, interleaved, prefix_samples, read_sessions


@given(sessions=st.lists(st.lists(st.integers(1, 50), max_size=9), min_size=1, max_size=8))
def test_every_prefix_is_a_sample(sessions: list[list[int]]) -> None:
    items = np.array([item for session in sessions for item in session], np.int64)
    offsets = np.cumsum([0, *map(len, sessions)])
    expected = [
        {
            "label": 1,
            "session": number,
            "time": place,
            "history": session[: place + 1],
            "item": session[place + 1],
        }
        for number, session in enumerate(sessions)
        for place in range(len(session) - 1)
    ]
    assert prefix_samples(items, offsets).to_pylist() == expected
    first = [sample for sample in expected if sample["session"] == 0]
    assert prefix_samples(items, offsets, max_sessions=1).to_pylist() == first


def test_sessions_lie_among_each_other_in_order_of_time() -> None:
    samples = prefix_samples(np.arange(6000), np.arange(0, 6001, 6))
    mixed = interleaved(samples, concurrent_sessions=100)
    assert mixed.sort_by([("session", "ascending"), ("time", "ascending")]).equals(samples)
    session, time = (mixed[name].to_numpy() for name in ("session", "time"))
    assert all((np.diff(time[session == number]) == 1).all() for number in range(1000))
    inside = session[2000:2050]
    assert np.unique(inside).size > 35
    assert np.ptp(inside) <= 110


def test_the_real_file(shared_data: Path) -> None:
    items, offsets = read_sessions(shared_data / "recsys" / DIGINETICA)
    samples = prefix_samples(items, offsets)
    assert samples.num_rows == 719_470
    assert len(samples["history"].combine_chunks().values) == 2_973_403


def test_another_file_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", items=np.arange(3))
    for name, message in (("a.npz", "no array 'train_items'"), ("absent.npz", "no such file")):
        with pytest.raises(DataError, match=message):
            read_sessions(tmp_path / name)
