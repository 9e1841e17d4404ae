"""windrow.launch.cli: help, errors in one line, exit status; python -m windrow.launch."""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from windrow.comm.errors import RecipeError
from windrow.launch import cli
from windrow.launch.commands import train

ALONE = {
    "cluster-log": ["a.parquet", "--output", "b", "--by", "c", "--no-sort"],
    "explain": ["r.toml"],
    "generate-log": ["a.parquet"],
    "completion": ["bash"],
    "doctor": [],
    "export": ["run", "--out", "f"],
    "groups": ["r.toml"],
    "network": ["--describe", "n.toml"],
    "plan": ["r.toml", "--ranks", "2"],
    "report": ["run"],
}
"""Commands that are the work of one process."""


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["--help"],
        *([name, "--help"] for name in (*ALONE, "partition", "prepare", "train", "predict", "profile")),
    ):
        with pytest.raises(SystemExit) as caught:
            cli.main(arguments)
        assert caught.value.code == 0
        assert "examples:\n" in capsys.readouterr().out


@pytest.mark.parametrize(("rank", "lines"), [("0", 1), ("1", 0)])
def test_a_windrow_error_is_one_line_of_rank_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str, lines: int
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert cli.main(["plan", "no-such.toml", "--ranks", "2"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == lines
    if lines:
        assert captured.err.startswith("windrow: error: windrow plan is the work of one process")


@pytest.mark.parametrize(("rank", "shown"), [("0", True), ("1", False)])
def test_wrong_use_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str, shown: bool
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit) as caught:
        cli.main(["train", "--no-such-option"])
    assert caught.value.code == 2
    assert ("unrecognized arguments" in capsys.readouterr().err) == shown


def test_an_unexpected_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: argparse.Namespace) -> int:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(train, "run", fail)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        cli.main(["train", "r.toml"])


@pytest.mark.parametrize(("error", "status"), [(RecipeError("x"), 2), (KeyboardInterrupt(), 130)])
def test_exit_status(monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int) -> None:
    def fail(_: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr(train, "run", fail)
    assert cli.main(["train", "r.toml"]) == status


EARLY = """
import contextlib, sys
from windrow.launch.cli import main
for line in sys.stdin.read().splitlines():
    arguments = line.split()
    status = 0
    with contextlib.suppress(SystemExit):
        status = main(arguments)
    loaded = {"torch", "numpy", "numba"} & sys.modules.keys()
    assert not loaded, f"{line} imported {loaded}"
    assert status == (0 if "--help" in arguments else 2), line
"""


def test_help_and_refusals_come_before_heavy_libraries(tmp_path: Path) -> None:
    recipes = {"broken": "[graph\n", "neither": "store = 's'\n", "graph": "[graph]\n", "log": "[log]\n"}
    for name, text in recipes.items():
        (tmp_path / f"{name}.toml").write_text(text)
    either = ("missing", "broken", "neither")
    wrong = {
        **dict.fromkeys(("train", "explain", "profile"), either),
        "partition": (*either, "log"),
        **dict.fromkeys(("prepare", "groups", "plan --ranks 2"), (*either, "graph")),
    }
    lines = ["--help", *(f"{name} --help" for name in cli.COMMANDS), "tarin"]
    lines += [f"{command} {tmp_path}/{name}.toml" for command, names in wrong.items() for name in names]
    lines += [f"{command} {tmp_path}" for command in ("train --resume", "report", "evaluate", "export --out x")]
    command = [sys.executable, "-P", "-c", EARLY]
    done = subprocess.run(
        command, input="\n".join(lines), capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("windrow: error: ") == len(lines) - len(cli.COMMANDS) - 1


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("tarin", "Did you mean 'train'? Commands: init, pa"),
        ("cluster", "Did you mean 'cluster-log'? Commands: init, pa"),
        ("xyz", "'xyz'. Commands: init, pa"),
    ],
)
def test_a_misspelt_command_is_answered_with_the_nearest(
    capsys: pytest.CaptureFixture[str], typed: str, said: str
) -> None:
    assert cli.main([typed, "r.toml"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"windrow: error: no command '{typed}'. ")
    assert said in captured.err


REFUSED = [
    ["train", "missing.toml"],
    ["train", "r.toml", "--set", "model.kindd=gat"],
    ["train", "r.toml"],  # there is no store
    ["train", "--resume", "missing"],
    ["prepare", "r.toml"],
    ["tarin"],
]


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_ranks_refuse_once_and_mpi_says_nothing(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "r.toml").write_text('store = "s"\n[graph]\npath = "g.npz"\n')
    command = [str(shutil.which("mpirun")), "-n", "2", sys.executable, "-P", "-m", "windrow.launch", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("windrow: error: ")
    assert str(tmp_path) not in line


def test_it_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "windrow.launch", "--version"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0
    assert done.stdout.startswith("windrow ")


@pytest.mark.parametrize("command", ALONE)
def test_the_work_of_one_process_is_refused_to_several(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert cli.main([command, *ALONE[command]]) == 2
    assert "is the work of one process, but the launcher started 2: run it without mpirun" in capsys.readouterr().err
