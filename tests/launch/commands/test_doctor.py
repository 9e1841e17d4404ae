"""windrow.launch.commands.doctor: what is said of what works, works badly, and does not; launchers of every kind."""

import sys
from pathlib import Path

import pytest

from windrow.launch.cli import main
from windrow.launch.commands import doctor
from windrow.launch.commands.doctor import CHECKS, Check, examine, look_at_mpi


def failing(error: Exception) -> Check:
    def look() -> str:
        print("noise of a library", file=sys.stderr)
        raise error

    return Check("library", look, "cure " * 40)


def test_lines_are_aligned_and_narrow_and_have_the_cure(capsys: pytest.CaptureFixture[str]) -> None:
    checks = [Check("a", lambda: "1.0"), failing(ImportError("no such\nlibrary")), failing(UserWarning("slow"))]
    text, works = examine(checks)
    lines = text.splitlines()
    assert lines[0] == "ok       a        1.0"
    assert lines[1] == "missing  library  no such library"
    assert lines[2].startswith(f"{' ' * 18}-> cure cure")
    assert lines[3].startswith(f"{' ' * 21}cure cure")
    assert "warning  library  slow" in lines
    assert max(map(len, lines)) <= 100
    assert works
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("error", "works"), [(ImportError("x"), False), (UserWarning("x"), True)])
def test_only_what_is_essential_and_missing_stops_training(error: Exception, works: bool) -> None:
    check = failing(error)
    assert examine([Check(check.name, check.look, essential=True)])[1] == works


@pytest.mark.parametrize(
    ("mpirun", "error", "words"),
    [
        (None, UserWarning, "no mpirun on the PATH: only one rank"),
        ("echo 'no slots left' >&2; exit 1", RuntimeError, "no slots left"),
        ("true", RuntimeError, "do not print"),
        ('shift 2; "$@" & "$@"; wait', RuntimeError, "do not see each other: mpi4py is for another MPI"),
        ("""echo '["Some MPI", [1, 1]]'""", UserWarning, "binds ranks to 1 and 1 cores"),
        ("""echo '["Some MPI", [8, 8]]'""", None, "two ranks see each other, with 8 and 8 cores"),
    ],
)
def test_launchers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mpirun: str | None, error: type[Exception] | None, words: str
) -> None:
    monkeypatch.setattr(doctor, "usable_cores", lambda: 8)
    program = tmp_path / "mpirun"
    if mpirun is not None:
        program.write_text(f"#!/bin/sh\n{mpirun}\n")
        program.chmod(0o755)
    monkeypatch.setattr(doctor.shutil, "which", lambda _: None if mpirun is None else str(program))
    if error is None:
        assert words in look_at_mpi()
    else:
        with pytest.raises(error, match=words):
            look_at_mpi()


def test_what_these_tests_need_works_here() -> None:
    text, works = examine(CHECKS)
    assert works, text
    assert len(text.splitlines()) >= len(CHECKS)


@pytest.mark.parametrize(("works", "status"), [(True, 0), (False, 1)])
def test_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], works: bool, status: int) -> None:
    monkeypatch.setattr(doctor, "examine", lambda _: ("ok  PyTorch", works))
    assert main(["doctor"]) == status
    assert capsys.readouterr().out == "ok  PyTorch\n"
