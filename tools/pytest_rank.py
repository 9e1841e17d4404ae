"""One rank of a pytest session under mpirun: ``mpirun -n 2 python tools/pytest_rank.py FOLDER PYTEST_ARGUMENTS``.

Rank 0 writes to the terminal. Every other rank writes to ``FOLDER/rank-<number>.txt``, from where
tools/run_tests.py shows it when the session fails.
"""

import os
import sys
from pathlib import Path

import pytest

from windrow.comm.launcher import launched_rank

__all__: list[str] = []


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
    return int(pytest.main(pytest_arguments))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
