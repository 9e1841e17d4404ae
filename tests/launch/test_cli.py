"""windrow.launch.cli: help, version, one line for an error, rank 0 alone."""

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from windrow.comm.errors import RecipeError
from windrow.launch import cli
from windrow.launch.commands import train


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["partition", "--help"], ["train", "--help"]):
        with pytest.raises(SystemExit) as caught:
            cli.main(arguments)
        assert caught.value.code == 0
        assert "examples:\n" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("windrow ")


@pytest.mark.parametrize(("rank", "named"), [("0", ""), ("1", "rank 1: ")])
def test_a_windrow_error_is_one_line_and_others_than_rank_0_wait_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str, named: str
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(cli.time, "sleep", pauses.append)
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert cli.main(["train", "no-such.toml"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert captured.err.startswith(f"windrow: error: {named}no-such.toml: no such file")
    assert pauses == ([] if rank == "0" else [cli.PAUSE_S])


JOB = ["-P", "-m", "windrow.launch", "train"]


@pytest.mark.parametrize("bad_ranks", [[0, 1], [1]], ids=str)
def test_an_error_before_the_ranks_meet_is_printed_once_whoever_has_it(
    tmp_path: Path, bad_ranks: list[int]
) -> None:
    mpirun = shutil.which("mpirun")
    assert mpirun is not None
    waiting = [sys.executable, "-c", "import time; time.sleep(60)"]
    failing = [sys.executable, *JOB, str(tmp_path / "no-such.toml")]
    first, second = (["-n", "1", *(failing if rank in bad_ranks else waiting)] for rank in (0, 1))
    done = subprocess.run(
        [mpirun, *first, ":", *second], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("no-such.toml: no such file") == 1


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
