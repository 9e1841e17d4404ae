"""Start the processes that are measured, and see what is left of them.

They are ranks of an MPI job, or one process of its own. Which processes a job has started is read from /proc (Linux
only).
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from windrow.comm.errors import DeadlineError, PeerFailedError, RecipeError

__all__ = [
    "DEFAULT_DEADLINE_S",
    "emulated_cluster",
    "family",
    "is_alive",
    "mpirun",
    "run_command",
    "run_worker",
    "worker_command",
]

DEFAULT_DEADLINE_S = 1200.0
"""Seconds after which workers that have not ended hang."""

PATIENCE_S = 20.0
"""Seconds that a job has to clean up after it is asked to end: an emulated cluster takes its network down."""

MPIRUN_CURE = "pip install mpich, or load your cluster's MPI"


def mpirun(size: int, *, hostfile: Path | None = None) -> list[str]:
    """The words that start a command on some ranks, as MPICH and Open MPI both take them.

    Args:
        size: number of ranks.
        hostfile: names of the machines to start them on, one a line; None: this machine.

    Raises:
        RecipeError: there is no mpirun, or no such file.
    """
    program = shutil.which("mpirun")
    if program is None:
        raise RecipeError(f"mpirun is not on the PATH: {MPIRUN_CURE}")
    if hostfile is None:
        return [program, "-n", str(size)]
    if not hostfile.is_file():
        raise RecipeError(f"there is no host file {hostfile}: write the name of one machine on each line")
    return [program, "-hostfile", str(hostfile), "-n", str(size)]


def emulated_cluster(hosts: int, rate: str) -> list[str]:
    """The words that run a command inside an emulated cluster (`benchmarks.emulated_cluster`)."""
    start = [sys.executable, "-P", "-m", "benchmarks.emulated_cluster"]
    return [*start, "--hosts", str(hosts), "--rate", rate, "--"]


def worker_command(script: Path, task: Mapping[str, Any], output: Path) -> list[str]:
    """The words that run a benchmark's script as a worker, which writes what it found to `output`."""
    return [sys.executable, "-P", str(script), "--task", json.dumps(task), "--output", str(output)]


def run_worker(
    script: Path,
    task: Mapping[str, Any],
    *,
    launcher: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    deadline_s: float = DEFAULT_DEADLINE_S,
) -> Any:
    """Run a benchmark's script as a worker and fetch what it found.

    Args:
        script: the benchmark's file.
        task: what the worker is to do; anything that JSON can hold.
        launcher: the words before it, from `mpirun` or `emulated_cluster`; none: one process.
        environment: variables that are set besides those of this process.
        folder: where the workers leave what they found, seen by all machines; None: this machine's temporary folder.
        deadline_s: seconds that the workers may take.

    Returns:
        What the worker returned, after a round trip through JSON.

    Raises:
        DeadlineError: the workers took longer; they have been ended.
        PeerFailedError: a worker failed; what it printed says why.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix="benchmark-") as temporary:
        output = Path(temporary) / "found.json"
        command = [*launcher, *worker_command(script, task, output)]
        run_command(command, environment=environment, deadline_s=deadline_s)
        if not output.is_file():
            raise PeerFailedError(
                f"the workers ended without a result in {output.parent}: machines of a host file must all see the "
                "folder that the benchmark is started in"
            )
        return json.loads(output.read_text("utf-8"))


def run_command(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    deadline_s: float = DEFAULT_DEADLINE_S,
    quiet: bool = False,
) -> None:
    """Run a command to its end, its standard output thrown away if quiet. Whatever happens here, it is ended.

    Raises:
        DeadlineError: it took longer; it has been ended.
        PeerFailedError: it ended with another status than 0.
    """
    output = subprocess.DEVNULL if quiet else None
    job = subprocess.Popen(command, env=os.environ | (environment or {}), stdout=output)
    try:
        status = job.wait(deadline_s)
    except subprocess.TimeoutExpired as error:
        raise DeadlineError(
            f"not at its end within {deadline_s:g} s, so it was stopped: {' '.join(command)}"
        ) from error
    finally:
        if job.poll() is None:
            job.terminate()
            try:
                job.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                job.kill()
                job.wait()
    if status != 0:
        raise PeerFailedError(f"ended with status {status}, see what it printed: {' '.join(command)}")


ZOMBIE = "Z"
"""State of a process that has ended and whose parent has not asked for its status yet."""


def family(process: int) -> set[int]:
    """Numbers of the living processes that descend from one, that one among them; empty where it is not alive."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            parent = _living_parent(int(entry.name))
            if parent is not None:
                parents[int(entry.name)] = parent
    found = {process} & parents.keys()
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def is_alive(process: int) -> bool:
    """Whether the process with this number is there and not a zombie."""
    return _living_parent(process) is not None


def _living_parent(process: int) -> int | None:
    """Number of the parent of a process that is alive; None for one that is not."""
    try:
        # The name of the program, in brackets, may hold anything.
        state, parent = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return None if state == ZOMBIE else int(parent)
