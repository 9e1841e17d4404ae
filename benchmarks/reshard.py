"""A checkpoint of 4 ranks under one plan is gone on from on 2 ranks under another: same tables, same training.

Trains a DLRM on Open Bandit with 4 MPI ranks, tables cut by rows. Its checkpoint after half of the epochs is read by 2
ranks whose plan cuts tables by columns, and written again: tables and optimiser states must be equal bit for bit. Then
2 ranks under that plan resume the run from there, and its losses are compared with those of the 4 ranks.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from windrow.comm.connect import connect
from windrow.launch.benchmark import Aim, conclude, short_flag, table
from windrow.launch.checkpoint import Checkpoint, load_latest, tables_folder
from windrow.launch.recommendation_job import RecommendationJob
from windrow.launch.recommendation_recipe import load_recommendation_recipe
from windrow.launch.shared_checkpoint import load_together, restore_tables, save_together
from windrow.recsys.tables.shard_reader import ShardReader

RECIPE = Path(__file__).parent.parent / "examples" / "open_bandit.toml"
EPOCHS = 6
EPOCHS_SHORT = 4
BEFORE, AFTER = "plan.planner=row_wise", "plan.planner=column_wise"
RANKS_BEFORE, RANKS_AFTER = 4, 2
TOLERANCE = 1e-5


def mpirun(size: int, *command: str) -> None:
    """Run a command on some ranks, quietly."""
    program = shutil.which("mpirun")
    assert program is not None, "mpirun is not on the PATH: pip install mpich, or load your cluster's MPI"
    subprocess.run([program, "-n", str(size), *command], check=True, timeout=600, stdout=subprocess.DEVNULL)


def windrow(*arguments: str) -> list[str]:
    """A command of windrow's."""
    return [sys.executable, "-P", "-m", "windrow.launch", *arguments]


def with_settings(*settings: str) -> list[str]:
    """Settings as the command line takes them."""
    return [word for setting in settings for word in ("--set", setting)]


def rewrite(checkpoints: Path, store: str, into: Path) -> None:
    """As one rank of the new plan: read a checkpoint and write it again."""
    recipe = load_recommendation_recipe(
        RECIPE, [store, AFTER, "plan.replicate_below_bytes=0", "run.threads=1"]
    )
    torch.set_num_threads(1)
    with connect("mpi", deadline_s=120) as world:
        job = RecommendationJob(world, recipe, torch.device("cpu"))
        checkpoint = load_together(world, checkpoints, lambda _: None)
        tables = job.local_tables()
        restore_tables(checkpoint, tables)
        save_together(world, into, checkpoint.header, checkpoint.state, tables, keep=1)


def unequal_tensors(first: Checkpoint, second: Checkpoint) -> tuple[int, int]:
    """How many of the tables' tensors there are, and how many differ in any bit."""
    with (
        ShardReader(tables_folder(first.path), first.header.table_files) as before,
        ShardReader(tables_folder(second.path), second.header.table_files) as after,
    ):
        compared = unequal = 0
        for name in before.tables:
            rows, columns = before.shape(name)
            for what in before.contents(name):
                mine, theirs = (
                    reader.read(name, (0, rows), (0, columns), what) for reader in (before, after)
                )
                compared += 1
                unequal += mine.numpy().tobytes() != theirs.numpy().tobytes()
        assert set(before.tables) == set(after.tables)
    return compared, unequal


def losses(run: Path) -> list[float]:
    """Mean training loss of each epoch."""
    return [float(json.loads(line)["loss"]) for line in (run / "metrics.jsonl").read_text().splitlines()]


def main() -> None:
    """Train, cut anew, go on, compare; or be one rank that cuts anew."""
    parser = short_flag("Resume on other ranks under another plan.")
    parser.add_argument("--worker", nargs=3, metavar=("CHECKPOINTS", "STORE", "INTO"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        checkpoints, store, into = arguments.worker
        rewrite(Path(checkpoints), store, Path(into))
        return
    epochs = EPOCHS_SHORT if arguments.short else EPOCHS
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        store = f"store={base / 'store'}"
        subprocess.run(
            windrow("prepare", str(RECIPE), *with_settings(store)), check=True, stdout=subprocess.DEVNULL
        )
        common = [store, "plan.replicate_below_bytes=0", f"training.epochs={epochs}", "run.tensorboard=false"]
        common += ["run.threads=1", "run.keep_checkpoints=99"]
        train = windrow("train", str(RECIPE), *with_settings(*common, BEFORE))
        mpirun(RANKS_BEFORE, *train, "--run-folder", str(base / "whole"))
        shutil.copytree(base / "whole", base / "half")
        for epoch in range(epochs // 2 + 1, epochs + 1):
            (base / "half" / "checkpoints" / f"epoch-{epoch:05}-step-000000.ckpt").unlink()

        worker = [str(base / "half" / "checkpoints"), store, str(base / "anew")]
        mpirun(RANKS_AFTER, sys.executable, "-P", __file__, "--worker", *worker)
        compared, unequal = unequal_tensors(
            load_latest(base / "half" / "checkpoints"), load_latest(base / "anew")
        )
        resume = windrow("train", "--resume", str(base / "half"), *with_settings(AFTER))
        mpirun(RANKS_AFTER, *resume)
        before, after = losses(base / "whole"), losses(base / "half")
    rows = [
        {"epoch": epoch, "4 ranks, by rows": mine, "resumed on 2, by columns": theirs}
        for epoch, (mine, theirs) in enumerate(zip(before, after, strict=True), 1)
    ]
    print(table(rows))
    difference = max(abs(mine - theirs) / mine for mine, theirs in zip(before, after, strict=True))
    conclude(
        "reshard",
        {
            "tensors_compared_count": compared,
            "tensors_unequal_count": unequal,
            "largest_relative_difference_of_loss_ratio": difference,
        },
        {
            "tables": Aim("tables and optimiser states bit-equal after cutting anew", unequal == 0),
            "training": Aim(
                f"losses after resuming those of the uninterrupted run: <= {TOLERANCE:g}",
                difference <= TOLERANCE,
            ),
        },
        save_to=arguments.save,
    )


if __name__ == "__main__":
    main()
