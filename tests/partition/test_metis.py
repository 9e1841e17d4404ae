"""METIS: the search, and the process that it runs in."""

import re
import subprocess
import sys

import numpy as np
import pytest

from windrow.comm.errors import DataError
from windrow.partition import metis
from windrow.partition.metis import metis_runs, metis_search
from windrow.partition.options import PartitionOptions
from windrow.partition.refine import badness


@pytest.fixture(scope="module", autouse=True)
def needs_dgl():
    pytest.importorskip("dgl", reason="METIS comes with DGL")


def test_search_is_reproducible_quiet_and_better_than_its_runs(ring_of_cliques, capfd):
    graph = ring_of_cliques(12, 10)
    weights = np.stack([np.ones(120), np.diff(graph.indptr)], axis=1).astype(np.int32)
    seen = []
    options = PartitionOptions(num_parts=3, imbalance=0.05, seed=1, restarts=2)
    found = [metis_search(graph, weights, options, lambda *step: seen.append(step)) for _ in range(2)]
    assert (found[0] == found[1]).all()
    assert badness(graph, weights, found[0], 3, 0.05)[0] == 0
    plain = min(graph.cut(run) for run in metis_runs(graph, weights, options))
    assert graph.cut(found[0]) <= plain
    assert [share for _, share in seen[:3]] == [1 / 3, 2 / 3, 1.0]
    assert capfd.readouterr() == ("", "")


def test_failure_shows_what_the_worker_said(ring_of_cliques, monkeypatch):
    monkeypatch.setattr(metis, "WORKER", "windrow.partition.no_such_module")
    graph = ring_of_cliques(2, 3)
    with pytest.raises(DataError, match=r'METIS failed on 6 vertices .*use method = "fennel"(.|\n)*no_such_module'):
        list(metis_runs(graph, np.ones((6, 1), np.int32), PartitionOptions(restarts=1)))


def test_absent_dgl_is_named(ring_of_cliques, monkeypatch):
    monkeypatch.setattr(metis.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r'not installed: install dgl==1.1.3 or use method = "fennel"'):
        list(metis_runs(ring_of_cliques(2, 3), np.ones((6, 1), np.int32), PartitionOptions(restarts=1)))


def test_the_worker_says_what_is_finished_and_every_run_is_good_in_the_callers_order(tmp_path, ring_of_cliques):
    graph = ring_of_cliques(8, 8)
    arrays = {"indptr": graph.indptr, "indices": graph.indices, "vertex_weights": np.ones((64, 2), np.int32)}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    command = [sys.executable, "-P", "-m", "windrow.partition.metis", str(tmp_path), "2", "5", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert re.findall(r"^finished \d$", done.stdout, re.MULTILINE) == ["finished 0", "finished 1", "finished 2"]
    for run in range(3):
        parts = np.load(tmp_path / f"run-{run}.npy")
        assert parts.dtype == np.int32
        assert np.bincount(parts).tolist() == [32, 32]
        assert graph.cut(parts) <= 12
