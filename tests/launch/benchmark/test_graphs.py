"""windrow.launch.benchmark.data_sets: both graphs are written and read as they are."""

from pathlib import Path

import numpy as np
import pytest

from windrow.gnn.synthetic import power_law_graph
from windrow.launch.benchmark import data_sets as graphs
from windrow.launch.benchmark.data_sets import EGO_TWITTER, POWER_LAW, load_topology, save_topology


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
