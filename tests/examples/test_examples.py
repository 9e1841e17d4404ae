"""Every Python example runs as it is, on one rank and, where it trains, on two."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from windrow.comm.launcher import launched_rank
from windrow.launch.settings import write_toml

RunExample = Callable[..., list[str]]

ON_ONE_AND_TWO_RANKS = pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.parallel(2))])


@pytest.fixture
def run_example(
    repository: Path, shared_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> RunExample:
    """Run an example as a script, elsewhere, where its run folders go; gives the lines that it printed."""
    monkeypatch.chdir(shared_tmp_path)

    def run(name: str, *arguments: str) -> list[str]:
        script = str(repository / "examples" / name)
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        with torch.random.fork_rng():  # Users seed torch's generator for their weights.
            runpy.run_path(script, run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


def test_every_example_is_tested_and_short(repository: Path) -> None:
    examples = sorted((repository / "examples").glob("*.py"))
    tested = ["compare_partitioners", "compare_runs", "daily_run", "graph_of_log", "joint_graph", "next_item"]
    assert [path.stem for path in examples] == [*tested, "own_click_model", "own_graph", "train_from_recipe"]
    assert max(len(path.read_text().splitlines()) for path in examples) < 100


@ON_ONE_AND_TWO_RANKS
def test_own_graph(run_example: RunExample, ranks: int) -> None:
    lines = run_example("own_graph.py", "--epochs", "4")
    if launched_rank() > 0:
        assert lines == []
        return
    assert float(lines[-1].split()[2].rstrip(";")) > 0.6
    assert "vertices 0 to 9" in lines[-1]


@ON_ONE_AND_TWO_RANKS
def test_own_click_model(run_example: RunExample, ranks: int) -> None:
    lines = run_example("own_click_model.py", "--steps", "25")
    if launched_rank() > 0:
        assert lines == []
        return
    # Each rank makes up samples of its own, so more ranks see more of them.
    assert len(lines) == 1
    assert lines[0].startswith({1: "step 25: loss 0.058", 2: "step 25: loss 0.031"}[ranks])


@ON_ONE_AND_TWO_RANKS
def test_daily_run(run_example: RunExample, shared_tmp_path: Path, ranks: int) -> None:
    lines = run_example("daily_run.py", "--folder", str(shared_tmp_path))
    if launched_rank() > 0:
        assert lines == []
        return
    days = [line for line in lines if line.startswith(("monday", "tuesday"))]
    areas = [[float(word.rstrip(",;")) for word in line.split() if word[:2] == "0."] for line in days]
    assert len(days) == 2
    assert min(map(min, areas)) > 0.7
    assert lines[-1].startswith("customer 7 clicks on lamp 3 with probability 0.")


@pytest.fixture
def prepared_recipe(
    prepare_clicks: Callable[[Path], None], click_recipe: Callable[..., Any], shared_tmp_path: Path, ranks: int
) -> Path:
    """A recipe of two epochs, whose log is prepared."""
    recipe = shared_tmp_path / "clicks.toml"
    if launched_rank() == 0:
        prepare_clicks(shared_tmp_path)
        write_toml(recipe, click_recipe(shared_tmp_path, training={"epochs": 2}).settings())
    meet(ranks)
    return recipe


@ON_ONE_AND_TWO_RANKS
def test_graph_of_log(run_example: RunExample, prepared_recipe: Path, shared_tmp_path: Path, ranks: int) -> None:
    lines = run_example(
        "graph_of_log.py", str(prepared_recipe), "--folder", str(shared_tmp_path / "out"), "--epochs", "2"
    )
    rows = np.load(shared_tmp_path / "out" / "item.npy")
    assert rows.shape == (14, 8)
    assert np.sqrt(np.mean(rows**2)) == pytest.approx((14 * 3) ** -0.5, rel=1e-4)  # as of uniform first values
    if launched_rank() == 0:
        said = [line.split() for line in lines if line.startswith("first rows ")]
        assert [words[2] for words in said] == ["random:", "from_graph:"]
        assert min(float(words[-1]) for words in said) > 0.7


@ON_ONE_AND_TWO_RANKS
def test_joint_graph(run_example: RunExample, prepared_recipe: Path, ranks: int) -> None:
    areas = {}
    for weight in ("0.1", "0"):
        lines = run_example("joint_graph.py", str(prepared_recipe), "--link", "user,item", "--weight", weight)
        if launched_rank() == 0:
            assert len(lines) == 3
            areas[weight] = float(lines[-1].split()[-1])
    if launched_rank() == 0:
        assert min(areas.values()) > 0.6
        assert areas["0.1"] != areas["0"]


@ON_ONE_AND_TWO_RANKS
def test_next_item(run_example: RunExample, ranks: int) -> None:
    lines = run_example("next_item.py", "--epochs", "2")
    if launched_rank() > 0:
        assert lines == []
        return
    # Neither minibatches nor figures depend on the number of ranks.
    first, second = (line.split() for line in lines if line.split()[:1] in (["1"], ["2"]))
    assert (first[0], first[1][:4], second[0], second[1][:3]) == ("1", "4.35", "2", "0.7")
    assert float(second[3]) > 0.98


def test_next_item_of_a_file(run_example: RunExample, tmp_path: Path) -> None:
    lengths = np.full(200, 4)
    items = (np.arange(800) % 4 + np.repeat(np.arange(200) % 9, 4)) % 12
    np.savez(tmp_path / "mine.npz", items=items, offsets=np.cumsum([0, *lengths]))
    lines = run_example("next_item.py", "--epochs", "1", "--sessions", str(tmp_path / "mine.npz"))
    assert lines[-1].split()[0] == "1"


@ON_ONE_AND_TWO_RANKS
def test_train_from_recipe(run_example: RunExample, repository: Path, shared_tmp_path: Path, ranks: int) -> None:
    recipe = shared_tmp_path / "short.toml"
    if launched_rank() == 0:
        values = {
            "store": "store",
            "graph": {"path": str(repository / "examples" / "data" / "minesweeper.npz")},
            "partition": {"method": "fennel"},
            "model": {"hidden": 8, "num_layers": 2},
            "sampler": {"fanouts": [4, 4]},
            "run": {"folder": "run", "tensorboard": False, "threads": 1},
        }
        write_toml(recipe, values)
    # The other ranks read the file too: they go past the first meeting of all only when it is there.
    meet(ranks)
    lines = run_example("train_from_recipe.py", str(recipe), "training.epochs=2")
    if launched_rank() == 0:
        assert lines[-1].startswith("test roc_auc 0.")
        assert lines[-1].endswith(str(shared_tmp_path / "run"))
        assert (shared_tmp_path / "run" / "summary.json").is_file()
        assert len(list((shared_tmp_path / "store" / "parts").iterdir())) == ranks


def test_compare_partitioners(run_example: RunExample, repository: Path) -> None:
    graph = repository / "examples" / "data" / "minesweeper.npz"
    lines = run_example("compare_partitioners.py", str(graph), "--parts", "2")
    cut = {line.split()[0]: int(line.split()[2].replace(",", "")) for line in lines[2:]}
    assert list(cut) == ["metis", "fennel", "random"]
    assert cut["metis"] < cut["fennel"] < cut["random"]


def meet(ranks: int) -> None:
    """Wait for all ranks of the test."""
    if ranks > 1:
        from mpi4py import MPI

        MPI.COMM_WORLD.Barrier()
