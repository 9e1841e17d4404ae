"""benchmarks.harness.data_sets: topologies on disk; samples of sessions."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness import data_sets as graphs
from benchmarks.harness.data_sets import (
    DIGINETICA,
    EGO_TWITTER,
    POWER_LAW,
    interleaved,
    load_topology,
    prefix_samples,
    read_sessions,
    save_topology,
)
from benchmarks.harness.power_law import power_law_graph
from windrow.comm.errors import DataError


def test_the_generated_graph_comes_back_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "POWER_LAW_VERTICES", 200)
    monkeypatch.setattr(graphs, "POWER_LAW_EDGES", 1000)
    path = save_topology(POWER_LAW, tmp_path, tmp_path)
    assert path is not None
    indptr, indices = load_topology(path)
    expected = power_law_graph(200, 1000, seed=graphs.POWER_LAW_SEED)
    assert indptr.equal(expected.indptr)
    assert indices.equal(expected.indices)


def test_a_data_set_is_made_undirected_and_counted_from_0(tmp_path: Path) -> None:
    (tmp_path / "graphs").mkdir()
    np.savez(tmp_path / "graphs" / "ego_twitter.npz", edges=np.array([[1, 2], [3, 2]]))
    path = save_topology(EGO_TWITTER, tmp_path, tmp_path)
    assert path is not None
    indptr, indices = load_topology(path)
    assert indptr.tolist() == [0, 1, 3, 4]
    assert indices.tolist() == [1, 0, 2, 1]


def test_a_data_set_that_is_not_there_is_none(tmp_path: Path) -> None:
    assert save_topology(EGO_TWITTER, tmp_path, tmp_path) is None


@given(sessions=st.lists(st.lists(st.integers(1, 50), max_size=9), min_size=1, max_size=8))
def test_every_prefix_is_a_sample(sessions: list[list[int]]) -> None:
    items = np.array([item for session in sessions for item in session], np.int64)
    offsets = np.cumsum([0, *map(len, sessions)])
    expected = [
        {"label": 1, "session": number, "time": place, "history": session[: place + 1], "item": session[place + 1]}
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
