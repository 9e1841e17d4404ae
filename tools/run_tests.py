"""Run all tests: those of one process, then those of 2 and of 4 MPI ranks, each in one pytest session per rank.

One session for each number of ranks pays for the imports once; plain ``pytest`` instead starts mpirun for every
single test of several ranks. Rank 0's output is shown as it comes, that of the other ranks only when their session
fails. Tests of one process are shared among a process a core, at most four (pytest-xdist).

A session may take as long as its tests take; it is ended where one rank stays `LIMIT_S` at one place, and then says at
which test, and where in it every thread of every rank was. The exit status is 0 only where every rank of every session
passed.

Arguments go to every pytest session as they are, for example ``python tools/run_tests.py -x tests/comm``, which runs
one process.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

__all__: list[str] = []

RANKS = (1, 2, 4)

LIMIT_S = float(os.environ.get("WINDROW_TEST_LIMIT_S", "300"))
"""Seconds that a rank may be at one test: many times what the slowest takes where one core runs four ranks."""

POLL_S = 0.5

GRACE_S = 3
"""Seconds that ranks have to say where they are, or to end, when they are told to."""

NOTHING_SELECTED = 5
"""pytest's exit status where no test fits the arguments."""

CLOSING_LINE = re.compile(r"=+ .*(passed|failed|error|skipped|deselected|no tests ran).* =+")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def main(pytest_arguments: Sequence[str]) -> int:
    """Run the three sessions, then repeat the line that each ended with."""
    closing_lines: list[str] = []
    failed: list[int] = []
    ran_any = False
    for ranks in RANKS:
        status, closing_line = run_session(ranks, pytest_arguments)
        ran_any = ran_any or status != NOTHING_SELECTED
        if status not in (0, NOTHING_SELECTED):
            failed.append(ranks)
        closing_lines.append(closing_line)
    for ranks in failed:
        print(f"The tests on {ranks} rank(s) FAILED; their report is above.")
    print("The closing lines on 1, 2 and 4 ranks:", *closing_lines, sep="\n", flush=True)
    return 1 if failed or not ran_any else 0


def run_session(ranks: int, pytest_arguments: Sequence[str], *, limit_s: float = LIMIT_S) -> tuple[int, str]:
    """Run the tests that want this number of ranks.

    Args:
        ranks: how many.
        pytest_arguments: besides the selection.
        limit_s: seconds that a rank may be at one test, before its first and after its last.

    Returns:
        The exit status, 0 only where all ranks passed, and pytest's closing line on rank 0.
    """
    colour = "yes" if sys.stdout.isatty() else "no"
    options = ["-m", f"parallel[{ranks}]", f"--color={colour}", "--durations=15"]
    if ranks > 1:
        # A rank that ends itself would take the others along before they say where they are.
        options += ["-o", "faulthandler_timeout=0"]
    else:
        options += ["-o", f"faulthandler_timeout={limit_s}"]
        limit_s *= 2  # so pytest is first where a test hangs
    if ranks == 1 and not pytest_arguments:
        options += [
            f"--numprocesses={min(4, len(os.sched_getaffinity(0)))}",
            "--dist=loadfile",
            "--max-worker-restart=0",
        ]
    # Processes share the cores, so each computes on one.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    launcher = [_mpirun(), "-n", str(ranks)] if ranks > 1 else []
    rank_script = str(Path(__file__).with_name("pytest_rank.py"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for rank in range(ranks):
            (folder / f"rank-{rank}.at").write_text("- the start of Python")
        command = [*launcher, sys.executable, "-P", rank_script, name, *options, *pytest_arguments]
        status, closing_line = _stream(command, environment, folder, limit_s)
        if status not in (0, NOTHING_SELECTED):
            _show_other_ranks(folder)
    return status, closing_line


def _mpirun() -> str:
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        sys.exit("mpirun is not on the PATH: install the extra windrow[mpich], or your system's MPI")
    return mpirun


def _stream(command: Sequence[str], environment: dict[str, str], folder: Path, limit_s: float) -> tuple[int, str]:
    """Run a command, show its output as it comes, and remember the closing line of pytest in it."""
    closing_line = "(pytest did not get to its closing line)"
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        over = threading.Event()
        watch = threading.Thread(target=_watch, args=(process, folder, limit_s, over))
        watch.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                if CLOSING_LINE.fullmatch(COLOUR.sub("", line.strip())):
                    closing_line = line.rstrip("\n")
            return process.wait(), closing_line
        except KeyboardInterrupt:
            _end(process, "interrupted")
            raise
        finally:
            over.set()
            watch.join()


def _watch(process: subprocess.Popen[str], folder: Path, limit_s: float, over: threading.Event) -> None:
    """End a session when a rank has not gone on for too long, after all its ranks have said where they are."""
    places: dict[Path, tuple[str, float]] = {}  # of each rank: process and place, and since when
    while not over.wait(POLL_S):
        now = time.monotonic()
        for file in sorted(folder.glob("*.at")):
            place = file.read_text()
            if place != places.get(file, ("", 0.0))[0]:
                places[file] = place, now
        if any(now - since > limit_s for _, since in places.values()):
            for file, (process_and_place, since) in places.items():
                number, _, place = process_and_place.partition(" ")
                print(f"\n{file.stem} has been at {place} for {now - since:.0f} seconds", end="", flush=True)
                with contextlib.suppress(ProcessLookupError, ValueError):
                    os.kill(int(number), signal.SIGUSR1)
            over.wait(GRACE_S)
            _end(process, "a rank hangs")
            return


def _end(process: subprocess.Popen[str], reason: str) -> None:
    """End a session and all processes that it started: by SIGTERM, on which mpirun ends its ranks, then by SIGKILL."""
    print(f"\nending the test session: {reason}", flush=True)
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(GRACE_S)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def _show_other_ranks(folder: Path) -> None:
    """Print what the ranks wrote that did not pass."""
    for file in sorted(folder.glob("*.txt")):
        output = file.read_text(errors="replace").rstrip()
        last_line = COLOUR.sub("", output).rpartition("\n")[2]
        passed = CLOSING_LINE.fullmatch(last_line) and "failed" not in last_line and "error" not in last_line
        if not passed:
            print(f"\n----- output of {file.stem} -----\n{output}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
