"""windrow.launch.commands.partition: from the command line to a store."""

from pathlib import Path

import numpy as np
import pytest

from windrow.launch.cli import main
from windrow.launch.toml_file import write_toml
from windrow.partition import PartitionStore


@pytest.fixture
def graph_file(tmp_path: Path) -> Path:
    path = tmp_path / "ring.npz"
    ring = np.arange(40)
    np.savez(path, edges=np.stack([ring, (ring + 1) % 40], 1))
    return path


def test_a_graph_becomes_a_store(
    graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    arguments = [
        "partition",
        "--graph",
        str(graph_file),
        "--out",
        str(store),
        "--parts",
        "4",
        "--method",
        "random",
    ]
    assert main([*arguments, "--seed", "5"]) == 0
    assert "edge cut" in capsys.readouterr().out
    opened = PartitionStore.open(store, expect_parts=4)
    assert opened.manifest.options["method"] == "random"
    assert opened.manifest.options["seed"] == 5
    assert main(arguments) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main([*arguments, "--overwrite"]) == 0


def test_a_recipe_names_graph_and_store_and_options_win(graph_file: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    write_toml(
        recipe,
        {
            "store": "stores/a",
            "graph": {"path": graph_file.name},
            "partition": {"num_parts": 2, "method": "random"},
            "sampler": {"fanouts": [5, 5]},
        },
    )
    assert main(["partition", str(recipe)]) == 0
    assert PartitionStore.open(tmp_path / "stores" / "a").book.num_parts == 2
    other = tmp_path / 'a "quoted" name'
    arguments = [
        "partition",
        str(recipe),
        "--out",
        str(other),
        "--set",
        "partition.num_parts=5",
        "--parts",
        "3",
    ]
    assert main(arguments) == 0
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


def test_several_processes_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["partition", "r.toml"]) == 2
    assert "without mpirun" in capsys.readouterr().err
