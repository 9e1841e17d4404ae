import subprocess
import sys

import numpy as np
import pytest


@pytest.fixture(scope="module")
def finished(tmp_path_factory, ring_of_cliques):
    pytest.importorskip("dgl", reason="METIS comes with DGL")
    folder = tmp_path_factory.mktemp("metis")
    graph = ring_of_cliques(8, 8)
    np.save(folder / "indptr.npy", graph.indptr)
    np.save(folder / "indices.npy", graph.indices)
    np.save(folder / "vertex_weights.npy", np.ones((64, 2), np.int32))
    command = [sys.executable, "-P", "-m", "windrow.partition.metis_worker", str(folder), "2", "5", "3"]
    completed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    return folder, graph, completed.stdout


def test_says_what_is_finished(finished):
    assert [line for line in finished[2].splitlines() if line.startswith("finished")] == [
        "finished 0",
        "finished 1",
        "finished 2",
    ]


def test_every_run_is_a_good_partition_in_the_callers_order(finished):
    folder, graph, _ = finished
    for run in range(3):
        parts = np.load(folder / f"run-{run}.npy")
        assert parts.dtype == np.int32
        assert np.bincount(parts).tolist() == [32, 32]
        assert graph.cut(parts) <= 12
