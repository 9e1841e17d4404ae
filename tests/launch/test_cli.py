"""windrow.launch.cli: help, errors in one line, exit status; python -m windrow.launch."""

import argparse
import subprocess
import sys
import time

import pytest

from windrow.comm.errors import RecipeError
from windrow.launch import cli
from windrow.launch.commands import train

ALONE = {
    "cluster": ["--hosts", "2", "--rate", "1gbit", "--", "true"],
    "cluster-log": ["a.parquet", "--output", "b", "--by", "c", "--no-sort"],
    "explain": ["r.toml"],
    "generate-log": ["a.parquet"],
    "prepare": ["r.toml"],
    "export": ["run", "--out", "f"],
    "groups": ["r.toml"],
    "network": ["--describe", "n.toml"],
    "partition": ["r.toml"],
    "plan": ["r.toml", "--ranks", "2"],
    "report": ["run"],
}
"""Commands that are the work of one process."""


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], *([name, "--help"] for name in (*ALONE, "train", "predict"))):
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
    assert cli.main(["partition", "no-such.toml"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == lines
    if lines:
        assert captured.err.startswith("windrow: error: windrow partition is the work of one process")


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


def test_parsing_is_quick() -> None:
    start = time.perf_counter()
    cli.build_parser()
    assert time.perf_counter() - start < 1


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
