"""What communication costs on a slow network before anything is done about it: four hosts with links of 1 Gbit/s.

Trains the README's two jobs, GraphSAGE on tolokers and a DLRM on Open Bandit, and where its data is at hand GraphSAGE
on Coauthor Physics, whose rows are 34 KB each, by ``windrow train`` on four emulated hosts: with links of 1 Gbit/s
and, as the floor, with links that nothing slows down. There is no cache, no pipeline and no quantisation: these are
the figures that they must beat. Communication is the time that a rank spends waiting inside collectives, for the
network or for other ranks (with links that nothing slows down it is mostly the latter, since four ranks share this
machine's cores); the share is that time of all ranks over the time of all, evaluation left out. With a host file,
four ranks are dealt out to its machines, which all see this checkout and the folder that the benchmark is started in.

    python benchmarks/baseline.py [--short] [--data FOLDER] [--hostfile FILE]
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.data_sets import data_option
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Comparison, Findings, Matrix, Measurement, Table
from benchmarks.harness.workers import run_command
from windrow.training.epoch_cost import communication_share
from windrow.training.journal import RankRecord, read_rank_records
from windrow.training.run_folder import RunFolder

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
HOSTS = 4
RATES = ("1gbit", "unlimited")
REAL = "real network"
"""Instead of the rates, on the machines of a host file."""


COLUMNS = ("job", "links", "epoch, s", "in communication", "exchanged bytes", "reduced bytes", "local rows")
"""Of the table; those after the first two are the figures of `cost_of_an_epoch`."""


@dataclass(frozen=True)
class Job:
    """A recipe, how its store is made, and epochs enough to measure."""

    name: str
    command: str
    epochs: int
    epochs_short: int
    settings: tuple[str, ...] = ()
    data: str | None = None
    """File of the data sets beside the project that it needs; None: ships with the project."""

    @property
    def recipe(self) -> str:
        """Path of the file."""
        return str(EXAMPLES / f"{self.name}.toml")


JOBS = (
    Job("tolokers", "partition", 12, 5),
    Job("open_bandit", "prepare", 12, 5),
    Job("coauthor_physics", "partition", 6, 3, data="graphs/coauthor_physics.npz"),
)


def work(task: Mapping[str, Any]) -> object:
    """Be one rank of a job, as ``windrow train`` is."""
    from windrow.launch.recipe import load_any_recipe
    from windrow.launch.training import train

    recipe = load_any_recipe(Path(task["recipe"]), task["settings"])
    return str(train(recipe, run_folder=Path(task["folder"])).run_folder)


def settings_of(job: Job, program: Program, store: Path) -> list[str]:
    """What the recipe is changed by."""
    settings = [f"store={store}", "run.tensorboard=false", "run.threads=1", *job.settings]
    if job.command == "partition":
        # What is kept of other hosts, and what travels ahead of time, is measured against this.
        settings += ["cache.alpha=0.0", "pipeline.depth=0"]
    if job.data is not None:
        settings.append(f"graph.path={program.options.data / job.data}")
    return settings


def make_store(job: Job, settings: Sequence[str]) -> None:
    """Partition the graph into as many parts as there are hosts, or prepare the log."""
    changes = [word for setting in settings for word in ("--set", setting)]
    parts = ["--parts", str(HOSTS)] if job.command == "partition" else []
    command = [sys.executable, "-P", "-m", "windrow.launch", job.command, job.recipe, *parts, *changes]
    run_command(command, quiet=True)


def train_job(
    job: Job, program: Program, folder: Path, rates: tuple[str, ...], rounds: int
) -> dict[str, list[RankRecord]]:
    """Train at each rate in turn, several times; the first epoch of each, which compiles, is left out."""
    settings = settings_of(job, program, folder / f"{job.name}-store")
    make_store(job, settings)
    epochs = job.epochs_short if program.short else job.epochs
    settings += [f"training.epochs={epochs}", f"evaluation.every_epochs={epochs}"]
    records: dict[str, list[RankRecord]] = {rate: [] for rate in rates}
    for turn in range(rounds):
        for rate in rates[turn % len(rates) :] + rates[: turn % len(rates)]:
            run = folder / f"{job.name}-{rate.replace(' ', '-')}-{turn}"
            task = {"recipe": job.recipe, "settings": settings, "folder": str(run)}
            program.on_ranks(HOSTS, task, rate=None if rate == REAL else rate)
            records[rate] += read_rank_records(RunFolder(run).ranks_file)[1:]
    return records


def training_seconds(record: RankRecord) -> float:
    """Seconds of an epoch on its slowest rank, without evaluation."""
    return max(rank.training_seconds for rank in record.ranks)


def bytes_between_ranks(record: RankRecord) -> NDArray[np.float64]:
    """[from, to] bytes of one epoch, all stages; reductions, which are the library's affair, are not in it."""
    nothing = [0] * len(record.ranks)
    return np.array([np.sum([*rank.bytes_sent.values(), nothing], axis=0) for rank in record.ranks], dtype=np.float64)


def home_share(epochs: Sequence[RankRecord]) -> float:
    """Share of the rows that ranks needed which they had themselves, copies of other ranks' rows included."""
    local = sum(rank.rows_local + rank.rows_cached for epoch in epochs for rank in epoch.ranks)
    remote = sum(rank.rows_remote for epoch in epochs for rank in epoch.ranks)
    return local / max(1, local + remote)


def mean_matrix(epochs: Sequence[RankRecord]) -> NDArray[np.float64]:
    """[from, to] bytes of a mean epoch."""
    matrix: NDArray[np.float64] = np.mean([bytes_between_ranks(epoch) for epoch in epochs], axis=0)
    return matrix


def cost_of_an_epoch(epochs: Sequence[RankRecord]) -> dict[str, float]:
    """Figures of a job at one rate, by name."""
    return {
        "epoch_seconds": float(np.median([training_seconds(epoch) for epoch in epochs])),
        "communication_share": float(np.median([communication_share(epoch.ranks) or 0.0 for epoch in epochs])),
        "exchanged_bytes_per_epoch": float(mean_matrix(epochs).sum()),
        "reduced_bytes_per_epoch": float(np.mean([epoch.ranks[0].bytes_reduced for epoch in epochs])),
        "rows_found_at_home_share": home_share(epochs),
    }


def times(records: Mapping[str, Sequence[RankRecord]]) -> Comparison:
    """Seconds of all epochs; the last rate, or the only network, is the baseline."""
    variants = {
        rate: Measurement(seconds=tuple(training_seconds(epoch) for epoch in epochs))
        for rate, epochs in records.items()
    }
    return Comparison(baseline=list(records)[-1], variants=variants, per="epoch")


def jobs_with_data(program: Program) -> list[Job]:
    """The jobs that can be measured; says which cannot."""
    there = []
    for job in JOBS:
        if job.data is None or (program.options.data / job.data).is_file():
            there.append(job)
        else:
            print(f"{job.name}: not measured, there is no {job.data} in {program.options.data} (see --data)")
    return there


def measure(program: Program) -> Findings:
    """Train every job whose data is there, and put what the ranks wrote down together."""
    rates = RATES if program.hostfile is None else (REAL,)
    place = f"on {HOSTS} {'hosts' if program.hostfile is None else 'ranks'}"
    figures: dict[str, float] = {}
    comparisons: dict[str, Comparison] = {}
    matrices: dict[str, Matrix] = {}
    rows: list[tuple[str | int | float | bool, ...]] = []
    shared_folder = None if program.hostfile is None else Path.cwd()
    with tempfile.TemporaryDirectory(prefix="baseline-", dir=shared_folder) as folder:
        for job in jobs_with_data(program):
            records = train_job(job, program, Path(folder), rates, rounds=1 if program.short else 3)
            comparisons[f"{job.name} {place}"] = times(records)
            matrix = mean_matrix(records[rates[0]]).tolist()
            matrices[f"{job.name}: bytes of an epoch from rank to rank"] = Matrix(
                unit="bytes", values=tuple(tuple(row) for row in matrix)
            )
            for rate, epochs in records.items():
                cost = cost_of_an_epoch(epochs)
                key = f"{job.name}_{rate.replace(' ', '_')}"
                figures |= {f"{key}_{name}": value for name, value in cost.items()}
                rows.append((job.name, rate, *cost.values()))
    table = Table(columns=COLUMNS, rows=tuple(rows))
    return Findings(
        figures=figures, aims={}, comparisons=comparisons, tables={"Cost of an epoch": table}, matrices=matrices
    )


if __name__ == "__main__":
    run_benchmark(
        __file__, __doc__, measure, work=work, ranks=True, add_options=data_option("graphs/coauthor_physics.npz")
    )
