"""One rank of a pytest session of tools/run_tests.py: ``python tools/pytest_rank.py FOLDER PYTEST_ARGUMENTS``.

The rank keeps ``FOLDER/rank-<number>.at``: its process, and the test that it is at. In ``FOLDER/rank-<number>`` is what
its tests write, since ranks that clean up one folder for all get in each other's way. On the signal SIGUSR1 it writes
where each of its threads is. Rank 0 writes to the terminal, every other rank to ``FOLDER/rank-<number>.txt``.
"""

import faulthandler
import os
import signal
import sys
from pathlib import Path

import pytest

from windrow.comm.launcher import launched_rank

__all__: list[str] = []


class Progress:
    """A pytest plugin: writes which test begins, and which has ended.

    Args:
        file: what it writes to; its time says when the rank last went on.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._write("the start of its session")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self._write(nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """A test has ended, with all that belongs to it."""
        self._write(f"what follows {nodeid}")

    def _write(self, place: str) -> None:
        self._file.write_text(f"{os.getpid()} {place}")


def main(folder: Path, pytest_arguments: list[str]) -> int:
    """Run pytest, its output where the rank's belongs."""
    rank = launched_rank()
    if rank > 0:
        # The file descriptors, so that what C libraries write goes there too.
        with (folder / f"rank-{rank}.txt").open("w") as file:
            os.dup2(file.fileno(), sys.stdout.fileno())
            os.dup2(file.fileno(), sys.stderr.fileno())
        # Not captured: a rank that is killed can no longer show what pytest has captured.
        pytest_arguments = ["--capture=no", *pytest_arguments]
    temporary = folder / f"rank-{rank}"
    temporary.mkdir()
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(temporary)
    # A copy of the file descriptor: pytest puts another file in its place while a test runs.
    faulthandler.register(signal.SIGUSR1, file=os.dup(sys.stderr.fileno()), all_threads=True)
    return int(pytest.main(pytest_arguments, plugins=[Progress(folder / f"rank-{rank}.at")]))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
