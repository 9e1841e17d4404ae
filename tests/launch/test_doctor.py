"""windrow.launch.doctor: libraries that fail and crash, launchers of every kind, what is printed."""

from pathlib import Path

import pytest

from windrow.launch import doctor
from windrow.launch.doctor import Finding, Library, State, describe_findings, examine, mpi_finding, try_libraries


def test_what_fails_and_what_crashes_is_told_apart_from_what_works() -> None:
    codes = {
        "works": "print('noise'); found = '1.2'",
        "fails": "raise ImportError('no such library')",
        "crashes": "import os; os.abort()",
        "is there": "found = 3",
    }
    findings = try_libraries([Library(name=name, code=code, cure=f"get {name}") for name, code in codes.items()])
    assert [(each.what, each.state, each.found, each.cure) for each in findings] == [
        ("works", "ok", "1.2", ""),
        ("fails", "missing", "no such library", "get fails"),
        ("crashes", "missing", "ended Python with status -6", "get crashes"),
        ("is there", "ok", "3", ""),
    ]


@pytest.mark.parametrize(
    ("mpirun", "state", "words"),
    [
        (None, "warning", "no mpirun on the PATH: one rank only"),
        ("echo 'no slots left' >&2; exit 1", "missing", "no slots left"),
        ('shift 2; "$@" & "$@"; wait', "missing", "is of another MPI than mpi4py"),
        ("""echo '["Some MPI", [1, 1]]'""", "warning", "2 ranks, 1 and 1 cores"),
        ("""echo '["Some MPI", [4, 4]]'""", "ok", "2 ranks, 4 and 4 cores"),
    ],
)
def test_launchers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mpirun: str | None, state: State, words: str
) -> None:
    monkeypatch.setattr(doctor, "usable_cores", lambda: 8)
    program = tmp_path / "mpirun"
    if mpirun is not None:
        program.write_text(f"#!/bin/sh\n{mpirun}\n")
        program.chmod(0o755)
    monkeypatch.setattr(doctor.shutil, "which", lambda _: str(program) if mpirun is not None else None)
    finding = mpi_finding()
    assert (finding.state, finding.essential) == (state, state == "missing")
    assert words in finding.found
    assert bool(finding.cure) == (state != "ok")


def test_here_everything_essential_works() -> None:
    findings = examine()
    assert not [finding for finding in findings if finding.essential and finding.state != "ok"]
    assert {"Python", "MPI", "cores", "memory", "PyTorch", "GPU", "windrow cluster"} <= {each.what for each in findings}


def test_lines_are_aligned_and_narrow() -> None:
    findings = [
        Finding(what="a", state="ok", found="1.0"),
        Finding(what="longer", state="missing", found="word " * 40, cure="cure " * 40),
    ]
    lines = describe_findings(findings).splitlines()
    assert lines[0] == "ok       a       1.0"
    assert lines[1].startswith("missing  longer  word word")
    assert all(line.startswith(" " * 17) for line in lines[2:])
    assert max(map(len, lines)) <= 100
