"""A rank is killed at a random moment: is everything gone soon, and does the resumed run end bit for bit the same?

Trains GraphSAGE on tolokers and a DLRM on Open Bandit (tables on both ranks, checkpoints also inside epochs) with 2 MPI
ranks, once without interruption; then, several times, kills one rank with SIGKILL at a random moment, waits until no
process of the job is left, resumes, and compares the final checkpoints: weights, tables, optimiser states.

    python benchmarks/kill_resume.py [--short] [--recipe tolokers|open_bandit] [--seed SEED]
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from windrow.launch.benchmark.program import Program, run_benchmark
from windrow.launch.benchmark.result import Aim, Findings, Table
from windrow.launch.benchmark.workers import mpirun
from windrow.launch.checkpoint import Checkpoint, load_latest

EXAMPLES = Path(__file__).parent.parent / "examples"
RANKS = 2
KILLS = 5
KILLS_SHORT = 3
DEADLINE_S = 10.0
WINDROW = [sys.executable, "-P", "-m", "windrow.launch"]


@dataclass(frozen=True)
class Job:
    """A recipe, and how its store is made."""

    name: str
    epochs: int
    prepare: tuple[str, ...]
    settings: tuple[str, ...] = ()

    @property
    def recipe(self) -> str:
        """Path of the file."""
        return str(EXAMPLES / f"{self.name}.toml")


JOBS = (
    Job("tolokers", 12, ("partition", "--set", f"partition.num_parts={RANKS}")),
    Job(
        "open_bandit",
        20,
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


def start_job(*arguments: str) -> subprocess.Popen[bytes]:
    """Start ``mpirun -n 2 windrow train ...`` without waiting for it."""
    command = [*mpirun(RANKS), *WINDROW, "train", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def new_run(job: Job, store: Path, folder: Path) -> list[str]:
    """Arguments of a run that is not resumed."""
    settings = [
        f"store={store}",
        f"training.epochs={job.epochs}",
        "run.tensorboard=false",
        "run.threads=1",
        *job.settings,
    ]
    return [
        job.recipe,
        "--run-folder",
        str(folder),
        *(word for text in settings for word in ("--set", text)),
    ]


def descendants(process: int) -> dict[int, int | None]:
    """Living processes that descend from one, with the MPI rank of those that have one."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and is_alive(int(entry.name)):
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    family = {process}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return {member: rank_of(member) for member in family}


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


def is_alive(process: int) -> bool:
    """Whether a process is there and not a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def finished_epochs(folder: Path) -> int:
    """Lines of the run's record."""
    record = folder / "metrics.jsonl"
    return record.read_text().count("\n") if record.exists() else 0


def wait_for_moment(job: subprocess.Popen[bytes], folder: Path, epoch: int, delay_s: float) -> None:
    """Wait until an epoch is in the record, and then a little longer."""
    while finished_epochs(folder) < epoch:
        if job.poll() is not None:
            raise RuntimeError(f"the run in {folder} ended by itself, with status {job.returncode}")
        time.sleep(0.005)
    time.sleep(delay_s)


def kill_and_resume(
    job: Job, store: Path, folder: Path, expected: Checkpoint, chance: random.Random
) -> Outcome:
    """Kill a random rank at a random moment, resume, and compare with the run that was not interrupted."""
    rank, epoch = chance.randrange(RANKS), chance.randrange(1, job.epochs * 3 // 4)
    process = start_job(*new_run(job, store, folder))
    wait_for_moment(process, folder, epoch, chance.uniform(0, 0.5))
    family = descendants(process.pid)
    os.kill(next(member for member, its_rank in family.items() if its_rank == rank), signal.SIGKILL)
    killed = time.monotonic()
    while process.poll() is None or any(is_alive(member) for member in family):
        if time.monotonic() - killed > 3 * DEADLINE_S:
            break
        time.sleep(0.005)
    seconds = time.monotonic() - killed
    orphans = [member for member in family if is_alive(member)]
    for member in orphans:
        os.kill(member, signal.SIGKILL)
    if start_job("--resume", str(folder)).wait(timeout=600) != 0:
        raise RuntimeError(
            f"the run in {folder} could not be resumed: windrow train --resume {folder} says why"
        )
    end = load_latest(folder / "checkpoints")
    # The header has the checksums of tables and their optimiser states.
    equal = end.header == expected.header and bitwise_equal(end.state["trainer"], expected.state["trainer"])
    return Outcome(job.name, rank, epoch, seconds, len(orphans), equal)


def outcomes_of(job: Job, base: Path, kills: int, chance: random.Random) -> list[Outcome]:
    """Run a job without interruption, then with each kill."""
    store = base / "store"
    prepare = [*WINDROW, job.prepare[0], job.recipe, *job.prepare[1:], "--set", f"store={store}"]
    subprocess.run(prepare, check=True, stdout=subprocess.DEVNULL)
    if start_job(*new_run(job, store, base / "whole")).wait(timeout=600) != 0:
        raise RuntimeError(f"the uninterrupted run of {job.name} failed")
    expected = load_latest(base / "whole" / "checkpoints")
    return [kill_and_resume(job, store, base / f"killed-{n}", expected, chance) for n in range(kills)]


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
    parser.add_argument(
        "--seed", type=int, default=time.time_ns() % 2**31, help="of the moments; default: the clock"
    )
    parser.add_argument("--recipe", choices=[job.name for job in JOBS], help="this one only")


def measure(program: Program) -> Findings:
    """Kill, resume, compare."""
    arguments = program.options
    print(f"moments are drawn with --seed {arguments.seed}")
    chance = random.Random(arguments.seed)
    kills = KILLS_SHORT if program.short else KILLS
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as temporary:
        for job in JOBS:
            if arguments.recipe in (None, job.name):
                (Path(temporary) / job.name).mkdir()
                outcomes += outcomes_of(job, Path(temporary) / job.name, kills, chance)
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
