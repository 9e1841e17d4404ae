"""windrow.launch.commands.partition: from the command line to a store."""

import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from windrow.comm.launcher import launched_size
from windrow.launch.cli import main
from windrow.launch.settings import write_toml
from windrow.partition import PartitionStore

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def graph_file(tmp_path: Path) -> Path:
    path = tmp_path / "ring.npz"
    ring = np.arange(40)
    np.savez(path, edges=np.stack([ring, (ring + 1) % 40], 1))
    return path


def test_a_graph_becomes_a_store(graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    arguments = f"partition --graph {graph_file} --out {store} --parts 4 --method random".split()
    assert main([*arguments, "--seed", "5"]) == 0
    assert "edge cut" in capsys.readouterr().out
    opened = PartitionStore.open(store, expect_parts=4)
    assert opened.manifest.options["method"] == "random"
    assert opened.manifest.options["seed"] == 5
    assert main(arguments) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main([*arguments, "--overwrite"]) == 0


@pytest.mark.skipif(launched_size() > 1, reason="starts mpirun itself")
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun")
@pytest.mark.skipif(find_spec("pyarrow") is None, reason="reads CSV by pyarrow")
def test_several_ranks_split_an_edge_list(tmp_path: Path, windrow_that_frees: list[str]) -> None:
    ring = np.arange(400)
    np.savetxt(tmp_path / "edges.csv", np.stack([ring, (ring + 1) % 400], 1), "%d", ",", header="from,to", comments="")
    (command,) = re.findall(r"mpirun .*partition.*", (REPOSITORY / "docs" / "partitioning.md").read_text())
    launcher, words = command.split(" windrow ")
    arguments = [*launcher.split(), *windrow_that_frees, *words.split()]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "edge cut" in done.stdout
    assert PartitionStore.open(tmp_path / "stores" / "mine-4", expect_parts=4).manifest.num_edges == 800
    again = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert again.returncode == 2
    assert "already exists: replace it by --overwrite" in again.stderr


def test_a_recipe_names_graph_and_store_and_options_win(graph_file: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    write_toml(
        recipe,
        {"store": "stores/a", "graph": {"path": graph_file.name}, "partition": {"num_parts": 2, "method": "random"}},
    )
    assert main(["partition", str(recipe)]) == 0
    assert PartitionStore.open(tmp_path / "stores" / "a").book.num_parts == 2
    other = tmp_path / 'a "quoted" name'
    options = ["--set", "partition.num_parts=5", "--parts", "3"]
    assert main(["partition", str(recipe), "--out", str(other), *options]) == 0
    assert PartitionStore.open(other).book.num_parts == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name the graph to split"),
        (["r.toml", "--graph", "g.npz"], "name the graph to split"),
        (["--graph", "g.npz"], "--graph needs --out"),
        (["--graph", "g.npz", "--out", "s"], "g.npz: no such file"),
        (["--graph", "g.npz", "--out", "s", "--method", "metiss"], "method = 'metiss'"),
        (["--graph", "g.npz", "--out", "s", "--parts", "0"], "num_parts = 0"),
        (["--graph", "g.npz", "--out", "s", "--set", "sampler.fanouts=[0]"], "[sampler] fanouts[0] = 0 must be"),
        (
            ["--graph", "g.npz", "--out", "s", "--set", "sampler.fanouts=[]"],
            "[sampler] fanouts = [] must be a list of one or more",
        ),
    ],
)
def test_wrong_use_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["partition", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_vertices_are_ordered_for_the_minibatches_of_the_recipe(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", **good_arrays())
    recipe = tmp_path / "r.toml"
    sections = {
        "partition": {"num_parts": 2, "method": "random"},
        "model": {"num_layers": 2},
        "sampler": {"fanouts": [3, 2], "order": "local"},
        "training": {"batch_size": 2},
    }
    write_toml(recipe, {"store": "a", "graph": {"path": "g.npz"}, **sections})
    assert main(["partition", str(recipe)]) == 0
    made_for = {"by": "vip", "fanouts": [3, 2], "batch_size": 2, "seed_order": "local"}
    assert PartitionStore.open(tmp_path / "a").metadata["order"] == made_for
    assert main(["partition", str(recipe), "--overwrite", "--set", "partition.order=original"]) == 0
    assert PartitionStore.open(tmp_path / "a").metadata["order"] == {"by": "original"}
    arguments = ["--graph", str(tmp_path / "g.npz"), "--out", str(tmp_path / "b"), "--method", "random"]
    assert main(["partition", *arguments, "--set", "training.batch_size=3"]) == 0
    # What nobody says is as in a recipe that says nothing.
    made_for = {"by": "vip", "fanouts": [15, 10, 5], "batch_size": 3, "seed_order": "global"}
    assert PartitionStore.open(tmp_path / "b").metadata["order"] == made_for


def good_arrays() -> dict[str, npt.NDArray[Any]]:
    """A ring of 12 vertices with everything that training needs."""
    ring = np.arange(12)
    return {
        "edges": np.stack([ring, (ring + 1) % 12], 1),
        "x": np.ones((12, 2), np.float32),
        "y": ring % 3,
        "train": ring[:4],
        "val": ring[4:8],
        "test": ring[8:],
    }


def altered(name: str, place: Any, value: float) -> dict[str, npt.NDArray[Any]]:
    array = good_arrays()[name].copy()
    array[place] = value
    return {name: array}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (altered("edges", (3, 1), 12), ["row 3 of edges", "destination 12 is not a vertex", "numbered 0 to 11"]),
        (altered("edges", (5, 0), -2), ["row 5 of edges", "source -2 is not a vertex"]),
        ({"x": np.ones((11, 2), np.float32)}, ["11 rows of features", "12 labels"]),
        ({"x": np.ones((13, 2), np.float32)}, ["13 rows of features", "12 labels"]),
        (altered("x", (7, 1), np.nan), ["feature column 1 of vertex 7 is nan", "must be finite"]),
        (altered("x", (2, 0), np.inf), ["feature column 0 of vertex 2 is inf", "must be finite"]),
        (altered("y", 6, -3), ["-3", "vertex 6"]),
        ({"y": np.array([np.inf] * 12)}, ["label of vertex 0 is inf", "whole number"]),
        ({"train": np.empty(0, int)}, ["training"]),
        (altered("train", 1, 99), ["99", "numbered 0 to 11"]),
        (altered("val", 0, 3), ["3", "train"]),
    ],
)  # fmt: skip
def test_a_bad_graph_is_refused_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, npt.NDArray[Any]], words: list[str]
) -> None:
    np.savez(tmp_path / "bad.npz", **(good_arrays() | changes))
    store = tmp_path / "store"
    status = main(["partition", "--graph", str(tmp_path / "bad.npz"), "--out", str(store), "--method", "random"])
    said = capsys.readouterr().err
    assert status == 2, said
    assert len(said.splitlines()) == 1
    assert "bad.npz" in said
    for word in words:
        assert word in said
    assert [entry.name for entry in tmp_path.iterdir()] == ["bad.npz"]


def test_more_parts_than_training_vertices_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "g.npz", **good_arrays())
    arguments = ["--graph", str(tmp_path / "g.npz"), "--out", str(tmp_path / "store"), "--method", "random"]
    assert main(["partition", *arguments, "--parts", "5"]) == 2
    assert "4 training vertices" in capsys.readouterr().err
    assert main(["partition", *arguments, "--parts", "4"]) == 0
