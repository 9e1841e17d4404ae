"""A rank is killed at a random moment: is everything gone soon, and does the resumed run end bit for bit the same?

Trains GraphSAGE on tolokers and a DLRM on Open Bandit (tables on both ranks, checkpoints also inside epochs) with 2 MPI
ranks, once without interruption; then, several times, kills one rank with SIGKILL at a random moment, waits until no
process of the job is left, resumes, and compares the final checkpoints: weights, tables, optimiser states.

    python benchmarks/kill_resume.py [--short] [--recipe tolokers|open_bandit] [--seed SEED]
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table
from benchmarks.harness.workers import family, is_alive, mpirun, run_command
from windrow.comm.errors import DeadlineError, PeerFailedError
from windrow.training.checkpoint import Checkpoint, load_checkpoint

EXAMPLES = Path(__file__).parent.parent / "examples"
RANKS = 2
KILLS = 5
KILLS_SHORT = 2
DEADLINE_S = 10.0
RUN_DEADLINE_S = 600.0
"""Seconds after which a run that has not ended hangs."""
WINDROW = [sys.executable, "-P", "-m", "windrow.launch"]


@dataclass(frozen=True)
class Job:
    """A recipe, and how its store is made."""

    name: str
    epochs: int
    epochs_short: int
    prepare: tuple[str, ...]
    settings: tuple[str, ...] = ()

    @property
    def recipe(self) -> str:
        """Path of the file."""
        return str(EXAMPLES / f"{self.name}.toml")


JOBS = (
    Job("tolokers", 12, 12, ("partition", "--set", f"partition.num_parts={RANKS}")),
    Job(
        "open_bandit",
        20,
        10,
        ("prepare",),
        ("run.checkpoint_every_steps=5", "plan.planner=row_wise", "plan.replicate_below_bytes=256"),
    ),
)
"""Epochs enough for a run to be under way whenever it is killed."""


@dataclass(frozen=True)
class Outcome:
    """What happened after one kill."""

    recipe: str
    rank: int
    epoch: int
    seconds_until_gone: float
    orphans: int
    weights_equal: bool


def train_command(*arguments: str) -> list[str]:
    """The words of ``mpirun -n 2 windrow train ...``."""
    return [*mpirun(RANKS), *WINDROW, "train", *arguments]


@contextlib.contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command without waiting for it. Whatever happens, it does not outlive the context."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        for member in family(process.pid) if process.poll() is None else ():
            end(member)
        process.wait()


def new_run(job: Job, store: Path, folder: Path, epochs: int) -> list[str]:
    """Arguments of a run that is not resumed."""
    settings = [f"store={store}", f"training.epochs={epochs}", "run.tensorboard=false", "run.threads=1", *job.settings]
    return [job.recipe, "--run-folder", str(folder), *(word for text in settings for word in ("--set", text))]


def rank_of(process: int) -> int | None:
    """The rank that MPICH's or Open MPI's launcher gave a process, by its environment."""
    try:
        environment = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    for line in environment:
        name, _, value = line.partition(b"=")
        if name in (b"PMI_RANK", b"OMPI_COMM_WORLD_RANK"):
            return int(value)
    return None


def end(process: int) -> None:
    """Kill a process, unless it has just ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def finished_epochs(folder: Path) -> int:
    """Lines of the run's record."""
    record = folder / "metrics.jsonl"
    return record.read_text().count("\n") if record.exists() else 0


def wait_for_moment(job: subprocess.Popen[bytes], folder: Path, epoch: int, delay_s: float) -> None:
    """Wait until an epoch is in the record, and then a little longer."""
    begun = time.monotonic()
    while finished_epochs(folder) < epoch:
        if job.poll() is not None:
            raise PeerFailedError(f"a run ended by itself before epoch {epoch}, with status {job.returncode}")
        if time.monotonic() - begun > RUN_DEADLINE_S:
            raise DeadlineError(f"a run has not reached epoch {epoch} within {RUN_DEADLINE_S:g} s")
        time.sleep(0.005)
    time.sleep(delay_s)
    if job.poll() is not None:
        raise PeerFailedError(f"a run ended {delay_s:.2f} s after epoch {epoch}, before it was killed")


def kill_and_resume(
    job: Job, run: list[str], folder: Path, epochs: int, expected: Checkpoint, chance: random.Random
) -> Outcome:
    """Kill a random rank at a random moment, resume, and compare with the run that was not interrupted."""
    rank, epoch = chance.randrange(RANKS), chance.randrange(1, epochs * 3 // 4)
    with started(train_command(*run)) as process:
        wait_for_moment(process, folder, epoch, chance.uniform(0, 0.5))
        members = family(process.pid)
        os.kill(next(member for member in members if rank_of(member) == rank), signal.SIGKILL)
        killed = time.monotonic()
        while process.poll() is None or any(is_alive(member) for member in members):
            if time.monotonic() - killed > 3 * DEADLINE_S:
                break
            time.sleep(0.005)
        seconds = time.monotonic() - killed
        orphans = [member for member in members if is_alive(member)]
        for member in orphans:
            end(member)
    run_command(train_command("--resume", str(folder)), deadline_s=RUN_DEADLINE_S, quiet=True)
    last = load_checkpoint(folder / "checkpoints")
    # The header has the checksums of tables and their optimiser states.
    equal = last.header == expected.header and bitwise_equal(last.state["trainer"], expected.state["trainer"])
    return Outcome(job.name, rank, epoch, seconds, len(orphans), equal)


def outcomes_of(job: Job, base: Path, *, short: bool, chance: random.Random) -> list[Outcome]:
    """Run a job without interruption, then with each kill."""
    store = base / "store"
    epochs, kills = (job.epochs_short, KILLS_SHORT) if short else (job.epochs, KILLS)
    prepare = [*WINDROW, job.prepare[0], job.recipe, *job.prepare[1:], "--set", f"store={store}"]
    run_command(prepare, quiet=True)
    whole = train_command(*new_run(job, store, base / "whole", epochs))
    run_command(whole, deadline_s=RUN_DEADLINE_S, quiet=True)
    expected = load_checkpoint(base / "whole" / "checkpoints")
    outcomes = []
    for number in range(kills):
        folder = base / f"killed-{number}"
        run = new_run(job, store, folder, epochs)
        outcomes.append(kill_and_resume(job, run, folder, epochs, expected, chance))
    return outcomes


def bitwise_equal(first: Any, second: Any) -> bool:
    """Whether two nested states hold the same tensors and values, bit for bit."""
    if isinstance(first, torch.Tensor):
        return bool(first.dtype == second.dtype and first.numpy().tobytes() == second.numpy().tobytes())
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(bitwise_equal(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(bitwise_equal, first, second))
    return bool(first == second)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark alone."""
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**31, help="of the moments; default: the clock")
    parser.add_argument("--recipe", choices=[job.name for job in JOBS], help="this one only")


def measure(program: Program) -> Findings:
    """Kill, resume, compare."""
    arguments = program.options
    print(f"moments are drawn with --seed {arguments.seed}")
    chance = random.Random(arguments.seed)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as temporary:
        for job in JOBS:
            if arguments.recipe in (None, job.name):
                base = Path(temporary) / job.name
                base.mkdir()
                outcomes += outcomes_of(job, base, short=program.short, chance=chance)
    slowest = max(one.seconds_until_gone for one in outcomes)
    orphans = sum(one.orphans for one in outcomes)
    equal = sum(one.weights_equal for one in outcomes)
    return Findings(
        figures={
            "kills_count": len(outcomes),
            "slowest_end_seconds": slowest,
            "orphans_count": orphans,
            "bit_identical_runs_count": equal,
        },
        aims={
            "gone": Aim(f"every rank gone within {DEADLINE_S:g} s", slowest <= DEADLINE_S),
            "orphans": Aim("no orphan", orphans == 0),
            "weights": Aim("resumed runs end with bit-identical weights and tables", equal == len(outcomes)),
        },
        tables={"kills": Table.from_rows([asdict(one) for one in outcomes])},
    )


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, add_options=add_options)
