"""Run all tests: those of one process, then those of 2 and of 4 MPI ranks, each in one pytest session per rank.

One session for each number of ranks pays for the imports once; plain ``pytest`` instead starts mpirun for every
single test of several ranks. Rank 0's output is shown as it comes, that of the other ranks only when their session
fails. A session that hangs is ended. The exit status is 0 only where every rank of every session passed.

Arguments go to every pytest session as they are, for example ``python tools/run_tests.py -x tests/comm``.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

__all__: list[str] = []

DEADLINES_S = {1: 900, 2: 600, 4: 900}
"""Number of ranks -> seconds after which its session counts as hung."""

GRACE_S = 10
"""Seconds that ranks have to end by themselves when they are told to."""

NOTHING_SELECTED = 5
"""pytest's exit status where no test fits the arguments."""

CLOSING_LINE = re.compile(r"=+ .*(passed|failed|error|skipped|deselected|no tests ran).* =+")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def main(pytest_arguments: Sequence[str]) -> int:
    """Run the three sessions, then repeat the line that each ended with."""
    closing_lines: list[str] = []
    failed: list[int] = []
    ran_any = False
    for ranks in DEADLINES_S:
        status, closing_line = run_session(ranks, pytest_arguments)
        ran_any = ran_any or status != NOTHING_SELECTED
        if status not in (0, NOTHING_SELECTED):
            failed.append(ranks)
        closing_lines.append(closing_line)
    for ranks in failed:
        print(f"The tests on {ranks} rank(s) FAILED; their report is above.")
    print("The closing lines on 1, 2 and 4 ranks:", *closing_lines, sep="\n", flush=True)
    return 1 if failed or not ran_any else 0


def run_session(ranks: int, pytest_arguments: Sequence[str]) -> tuple[int, str]:
    """Run the tests that want this number of ranks.

    Args:
        ranks: how many.
        pytest_arguments: besides the selection.

    Returns:
        The exit status, 0 only where all ranks passed, and pytest's closing line on rank 0.
    """
    colour = "yes" if sys.stdout.isatty() else "no"
    selection = ["-m", f"parallel[{ranks}]", f"--color={colour}", *pytest_arguments]
    # Several ranks share the cores, so each computes on one.
    environment = os.environ | {"OMP_NUM_THREADS": "1"} if ranks > 1 else dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        if ranks == 1:
            command = [sys.executable, "-P", "-m", "pytest", *selection]
        else:
            rank_script = str(Path(__file__).with_name("pytest_rank.py"))
            command = [_mpirun(), "-n", str(ranks), sys.executable, "-P", rank_script, folder, *selection]
        status, closing_line = _stream(command, environment, DEADLINES_S[ranks])
        if status not in (0, NOTHING_SELECTED):
            _show_other_ranks(Path(folder))
    return status, closing_line


def _mpirun() -> str:
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        sys.exit("mpirun is not on the PATH: install the extra windrow[mpich], or your system's MPI")
    return mpirun


def _stream(command: Sequence[str], environment: dict[str, str], deadline_s: float) -> tuple[int, str]:
    """Run a command, show its output as it comes, and remember the closing line of pytest in it."""
    closing_line = "(pytest did not get to its closing line)"
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    timer = threading.Timer(deadline_s, _end, [process, f"no end after {deadline_s} seconds"])
    timer.start()
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
        timer.cancel()


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
    for file in sorted(folder.iterdir()):
        output = file.read_text(errors="replace").rstrip()
        last_line = COLOUR.sub("", output).rpartition("\n")[2]
        passed = CLOSING_LINE.fullmatch(last_line) and "failed" not in last_line and "error" not in last_line
        if not passed:
            print(f"\n----- output of {file.stem} -----\n{output}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
