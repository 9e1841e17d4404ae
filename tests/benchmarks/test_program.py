"""benchmarks.harness.program: a whole small benchmark, from its options to its last line."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from benchmarks.harness.program import Program, hardware_line
from benchmarks.harness.result import read_result
from windrow.training.environment import hardware

SCRIPT = '''
"""A small benchmark."""
import argparse
import os
import pathlib
import time

import torch

from windrow.comm.connect import connect
from windrow.comm.errors import DataError
from benchmarks.harness.compare import compare
from benchmarks.harness.program import MissingDataError, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table
from benchmarks.harness.result import comparison_from_json, comparison_to_json


def add_options(parser):
    parser.add_argument("--number", type=int, default=3)


def work(task):
    if "pid" in task:
        pathlib.Path(task["pid"]).write_text(str(os.getpid()))
        time.sleep(600)
    if "stops" in task:
        stopped = pathlib.Path(task["stops"])
        if not stopped.exists():
            stopped.touch()
            raise DataError("stopped")
    if "thread" in task:
        return os.environ["OMP_NUM_THREADS"]
    with connect("mpi", deadline_s=60) as world:
        variants = {"barrier": lambda: world.barrier(stage="x"), "nothing": lambda: None}
        return comparison_to_json(compare(variants, baseline="barrier", repeats=2, world=world))


def measure(program):
    if program.options.number < 0:
        raise DataError("the number is negative: take another")
    if program.options.number == 0:
        raise MissingDataError("there is no number")
    if program.options.number == 99:
        program.in_process({"pid": str(program.script.with_name("pid"))}, threads=1)
    if program.options.number == 97:
        tasks = [{"pid": str(program.script.with_name("pid"))}, {"stops": str(program.script.with_name("stopped"))}]
        program.in_processes(tasks, threads=1)
    # Some runs do without ranks, whose start takes seconds.
    compared = {"2 ranks": comparison_from_json(program.on_ranks(2, {}))} if program.options.number == 5 else {}
    threads = program.in_process({"thread": True}, threads=3)
    if program.options.number == 98:
        program.in_process({"stops": str(program.script.with_name("stopped")), "thread": True}, threads=3)
    figures = {"number_count": program.options.number, "threads_count": int(threads)}
    aims = {"large": Aim("number >= 4", program.options.number >= 4)}
    rows = [{"short": program.short, "part": part} for part in program.chosen(["many", "few"], short=1)]
    return Findings(
        figures=figures, aims=aims, comparisons=compared, tables={"form": Table.from_rows(rows)}
    )


if __name__ == "__main__":
    parts = ["many", "few"]
    run_benchmark(__file__, __doc__, measure, work=work, ranks=True, parts=parts, add_options=add_options)
'''


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "benchmarks" / "small.py"
    path.parent.mkdir()
    path.write_text(SCRIPT.lstrip())
    return path


def run(script: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-P", str(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


def test_a_run_prints_tables_keeps_its_result_and_ends_with_json(script: Path) -> None:
    done = run(script, "--short", "--number", "5", "--only", "few")
    assert done.returncode == 0, done.stderr
    result = read_result(script.parent / "results" / "small-few-short.json")
    assert done.stdout.splitlines()[-1] == result.closing_line()
    assert "\n2 ranks (seconds per run)\nvariant" in done.stdout
    assert re.search(r"\nform\nshort +part *\n.*\n.*few *\n", done.stdout)
    assert "small: 2 rank(s): {}\n" in done.stderr
    assert (result.benchmark, result.part, result.form, result.commit) == ("small", "few", "short", "unknown")
    assert result.command == "python benchmarks/small.py --short --number 5 --only few"
    assert result.figures == {"number_count": 5.0, "threads_count": 3.0}
    assert result.met
    assert len(result.comparisons["2 ranks"].variants["nothing"].seconds) == 2
    assert {"python", "torch"} <= set(result.packages)


def test_missed_aims_are_no_failure_and_save_names_the_file(script: Path, tmp_path: Path) -> None:
    saved = tmp_path / "elsewhere" / "x.json"
    done = run(script, "--save", str(saved))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["met"] is False
    assert read_result(saved).form == "full"
    assert not (script.parent / "results").exists()


def test_a_run_that_was_stopped_goes_on(script: Path, tmp_path: Path) -> None:
    saved = tmp_path / "x.json"
    arguments = ("--number", "98", "--save", str(saved), "--resume")
    stopped = run(script, *arguments)
    assert stopped.returncode == 2, stopped.stderr
    assert not saved.exists()
    done = run(script, *arguments)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"small: taken from .*/0\.json\n", done.stderr)) == 1
    assert "1.json" not in done.stderr
    # A path of one machine, and how it came about, are no part of what was measured.
    assert read_result(saved).command == "python benchmarks/small.py --number 98 --save x.json"
    (kept,) = re.findall(r"taken from (.*)/0\.json", done.stderr)
    assert not Path(kept).exists()


def test_errors_of_use_are_one_line_and_status_2_and_without_its_data_a_benchmark_is_skipped(script: Path) -> None:
    done = run(script, "--number=-1")
    assert (done.returncode, done.stderr) == (2, "small.py: error: the number is negative: take another\n")
    done = run(script, "--number=0")
    assert (done.returncode, done.stdout) == (0, "small.py: skipped: there is no number\n")
    assert not list(script.parent.rglob("*.json"))


def test_a_result_that_cannot_be_kept_is_refused_before_anything_is_measured(script: Path, tmp_path: Path) -> None:
    done = run(script, "--save", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "it is a folder. Name another place with --save" in done.stderr


def test_a_benchmark_that_is_told_to_end_takes_its_workers_along(script: Path) -> None:
    pid = script.with_name("pid")
    job = subprocess.Popen([sys.executable, "-P", str(script), "--number", "99"])
    started = time.monotonic()
    while not (pid.exists() and pid.read_text()) and time.monotonic() - started < 120:
        time.sleep(0.05)
    job.terminate()
    assert job.wait(60) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: one worker at a time")
def test_a_worker_that_fails_ends_those_beside_it(script: Path) -> None:
    done = run(script, "--number", "97")
    assert done.returncode == 2
    assert "stopped" in done.stderr


def test_help_names_the_options_but_not_those_of_workers(script: Path) -> None:
    said = run(script, "--help").stdout
    assert "A small benchmark." in said
    for option in ("--short", "--only", "--save", "--hostfile", "--number"):
        assert option in said
    assert "--task" not in said
    assert "--output" not in said


def program(**options: object) -> Program:
    return Program(script=Path("/somewhere/benchmarks/x.py"), options=Namespace(**options))


def test_place_of_the_result() -> None:
    assert program(short=True, save=None).result_path == Path("/somewhere/benchmarks/results/x-short.json")
    assert program(short=False, save=None).result_path == Path("/somewhere/benchmarks/results/x.json")
    assert program(short=False, save=Path("y.json")).result_path == Path("y.json")


def test_a_real_cluster_is_not_emulated() -> None:
    with pytest.raises(ValueError, match="--hostfile names a real one"):
        program(short=True, hostfile=Path("hosts")).on_ranks(2, {}, rate="1gbit")


def test_hardware_line_has_no_host_name() -> None:
    line = hardware_line()
    assert "cores of" in line
    assert "GiB" in line
    host = str(hardware()["host"])
    assert len(host) < 4 or host not in line


def test_gpus_are_counted_per_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "H200")
    assert hardware_line().endswith("2 x H200")
