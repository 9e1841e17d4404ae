"""benchmarks.harness.workers: what workers return, how they fail, and that nothing is left of them."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.harness.workers import (
    emulated_cluster,
    family,
    is_alive,
    mpirun,
    run_command,
    run_worker,
    worker_command,
)
from windrow.comm.errors import DeadlineError, PeerFailedError, RecipeError

SCRIPT = """
import argparse, json, os
from pathlib import Path
from windrow.comm.launcher import launched_rank, launched_size
parser = argparse.ArgumentParser()
parser.add_argument("--task", type=json.loads)
parser.add_argument("--output", type=Path)
options = parser.parse_args()
if "status" in options.task:
    raise SystemExit(options.task["status"])
found = {"task": options.task, "size": launched_size(), "variable": os.environ.get("SOME_VARIABLE")}
if launched_rank() == 0 and not options.task.get("silent"):
    options.output.write_text(json.dumps(found))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "worker.py"
    path.write_text(SCRIPT)
    return path


def test_task_and_environment_reach_a_process_and_its_answer_comes_back(script: Path) -> None:
    task = {"numbers": [1, 2.5], "text": "with blanks and 'quotes'", "path": None}
    found = run_worker(script, task, environment={"SOME_VARIABLE": "7"})
    assert found == {"task": task, "size": 1, "variable": "7"}


def test_the_answer_of_rank_0_comes_back(script: Path) -> None:
    assert run_worker(script, {}, launcher=mpirun(2))["size"] == 2


def test_a_failed_worker_and_a_silent_one_are_named(script: Path) -> None:
    with pytest.raises(PeerFailedError, match="status 3"):
        run_worker(script, {"status": 3})
    with pytest.raises(PeerFailedError, match="without a result"):
        run_worker(script, {"silent": True})


def test_a_late_command_is_ended(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    code = f"import os, pathlib, time; pathlib.Path({str(file)!r}).write_text(str(os.getpid())); time.sleep(600)"
    started = time.monotonic()
    with pytest.raises(DeadlineError, match="within 2 s"):
        run_command([sys.executable, "-c", code], deadline_s=2)
    assert time.monotonic() - started < 60
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)


def test_quiet_commands_print_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    program = [sys.executable, "-c", "print('hello')"]
    run_command(program, quiet=True)
    assert capfd.readouterr().out == ""
    run_command(program)
    assert capfd.readouterr().out == "hello\n"


def test_words_of_the_commands(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    with pytest.raises(RecipeError, match="no host file"):
        mpirun(2, hostfile=hosts)
    hosts.write_text("localhost\n")
    program, *words = mpirun(2, hostfile=hosts)
    assert Path(program).name == "mpirun"
    assert words == ["-hostfile", str(hosts), "-n", "2"]
    assert mpirun(3)[1:] == ["-n", "3"]
    assert emulated_cluster(4, "1gbit")[2:] == [
        "-m", "benchmarks.emulated_cluster", "--hosts", "4", "--rate", "1gbit", "--",
    ]  # fmt: skip
    command = worker_command(Path("x.py"), {"a": 1}, Path("out"))
    assert command[1:] == ["-P", "x.py", "--task", json.dumps({"a": 1}), "--output", "out"]


def test_a_host_file_starts_ranks_too(script: Path, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost\n")
    launcher = mpirun(2, hostfile=tmp_path / "hosts")
    assert run_worker(script, {}, launcher=launcher, folder=tmp_path)["size"] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hosts", "worker.py"]


def test_no_mpirun_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RecipeError, match="mpirun is not on the PATH"):
        mpirun(2)


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")

GRANDCHILD = "sleep 60 & echo $!; wait"


def test_children_and_grandchildren_until_they_end():
    with subprocess.Popen(["sh", "-c", GRANDCHILD], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        assert family(child.pid) == {child.pid, grandchild}
        assert family(child.pid) < family(os.getpid())
        assert is_alive(child.pid)
        assert is_alive(grandchild)
        os.kill(grandchild, 9)
        child.kill()
    assert family(child.pid) == set()
    assert not is_alive(child.pid)


def test_a_zombie_is_not_alive():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert not is_alive(child)
    assert family(child) == set()
    os.waitpid(child, 0)
