"""windrow.launch.commands.network: a described network without ranks, a measured one with them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from windrow.comm.errors import RecipeError, StoreError
from windrow.comm.launcher import launched_size
from windrow.comm.links import links_from_json
from windrow.launch.cli import build_parser

TIME_LIMIT_S = 120


def network_with(*arguments: object) -> int:
    parsed = build_parser().parse_args(["network", *map(str, arguments)])
    return int(parsed.run(parsed))


@pytest.fixture
def described(tmp_path: Path) -> Path:
    path = tmp_path / "network.toml"
    path.write_text('nodes = 4\nrate = "100gbit"\nlatency_us = 5\nnode_rates = { 3 = "25gbit" }\n')
    return path


def test_described_network_is_shown_and_written(described, tmp_path, capsys):
    out = tmp_path / "links.json"
    assert network_with("--describe", described, "--out", out) == 0
    printed = capsys.readouterr().out
    assert "4 ranks on 4 hosts" in printed
    assert "all-reduce ms" in printed
    links = links_from_json(out.read_text(), source=str(out))
    assert links.hosts == ("node0", "node1", "node2", "node3")
    assert links.seconds_per_byte[0, 3] == pytest.approx(8 / 25e9)


def test_one_rank_has_no_links(monkeypatch):
    monkeypatch.setattr("windrow.launch.commands.network.launched_size", lambda: 1)
    with pytest.raises(RecipeError, match="mpirun -n 4 windrow network"):
        network_with()


def test_an_output_that_cannot_be_written_is_said(described, tmp_path):
    with pytest.raises(StoreError, match=r"choose another --out"):
        network_with("--describe", described, "--out", tmp_path / "no" / "folder.json")


@pytest.mark.skipif(launched_size() > 1, reason="starts mpirun itself")
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun")
def test_ranks_measure_once(tmp_path):
    command = ["mpirun", "-n", "2", sys.executable, "-P", "-m", "windrow.launch", "network"]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}

    def say() -> str:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=True
        )
        return done.stdout

    assert "measured just now" in say()
    assert len(list((tmp_path / "windrow" / "links").glob("*.json"))) == 1
    assert "ago" in say()


def test_the_example_is_a_network(repository, capsys):
    assert network_with("--describe", repository / "examples" / "network.toml") == 0
    assert "32 ranks on 8 hosts" in capsys.readouterr().out
