"""A checkpoint of 4 ranks under one plan is gone on from on 2 ranks under another: same tables, same training.

Trains a DLRM on Open Bandit with 4 MPI ranks, tables cut by rows. Its checkpoint after half of the epochs is read by 2
ranks whose plan cuts tables by columns, and written again: tables and optimiser states must be equal bit for bit. Then
2 ranks under that plan resume the run from there, and its losses are compared with those of the 4 ranks.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table
from benchmarks.harness.workers import mpirun, run_command
from windrow.comm.connect import connect
from windrow.launch.recommendation_recipe import load_recommendation_recipe
from windrow.recsys.recommendation import recommendation
from windrow.training.checkpoint import (
    Checkpoint,
    load_checkpoint,
    load_together,
    restore_tables,
    save_together,
    tables_folder,
)
from windrow.training.shard_files import ShardReader

RECIPE = Path(__file__).parent.parent / "examples" / "open_bandit.toml"
EPOCHS = 6
EPOCHS_SHORT = 4
BEFORE, AFTER = "plan.planner=row_wise", "plan.planner=column_wise"
RANKS_BEFORE, RANKS_AFTER = 4, 2
TOLERANCE = 1e-5


def windrow(*arguments: str) -> list[str]:
    """A command of windrow's."""
    return [sys.executable, "-P", "-m", "windrow.launch", *arguments]


def with_settings(*settings: str) -> list[str]:
    """Settings as the command line takes them."""
    return [word for setting in settings for word in ("--set", setting)]


def work(task: Mapping[str, Any]) -> None:
    """As one rank of the new plan: read a checkpoint and write it again."""
    settings = [task["store"], AFTER, "plan.replicate_below_bytes=0", "run.threads=1"]
    recipe = load_recommendation_recipe(RECIPE, settings)
    torch.set_num_threads(1)
    with connect("mpi", deadline_s=120) as world:
        recommender, _ = recommendation(world, recipe, torch.device("cpu"), seed=recipe.run.seed)
        checkpoint = load_together(world, Path(task["checkpoints"]), lambda _: None)
        tables = recommender.local_tables()
        restore_tables(checkpoint, tables)
        save_together(world, Path(task["into"]), checkpoint.header, checkpoint.state, tables, keep=1)


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
                mine, theirs = (reader.read(name, (0, rows), (0, columns), what) for reader in (before, after))
                compared += 1
                unequal += mine.numpy().tobytes() != theirs.numpy().tobytes()
        assert set(before.tables) == set(after.tables)
    return compared, unequal


def losses(run: Path) -> list[float]:
    """Mean training loss of each epoch."""
    return [float(json.loads(line)["loss"]) for line in (run / "metrics.jsonl").read_text().splitlines()]


def measure(program: Program) -> Findings:
    """Train, cut anew, go on, compare."""
    epochs = EPOCHS_SHORT if program.short else EPOCHS
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        store = f"store={base / 'store'}"
        run_command(windrow("prepare", str(RECIPE), *with_settings(store)), quiet=True)
        common = [store, "plan.replicate_below_bytes=0", f"training.epochs={epochs}", "run.tensorboard=false"]
        common += ["run.threads=1", "run.keep_checkpoints=99"]
        train = windrow("train", str(RECIPE), *with_settings(*common, BEFORE))
        run_command([*mpirun(RANKS_BEFORE), *train, "--run-folder", str(base / "whole")], quiet=True)
        shutil.copytree(base / "whole", base / "half")
        checkpoints = base / "half" / "checkpoints"
        for epoch in range(epochs // 2 + 1, epochs + 1):
            (checkpoints / f"epoch-{epoch:05}-step-000000.ckpt").unlink()

        anew = base / "anew"
        program.on_ranks(RANKS_AFTER, {"checkpoints": str(checkpoints), "store": store, "into": str(anew)})
        compared, unequal = unequal_tensors(load_checkpoint(checkpoints), load_checkpoint(anew))
        resume = windrow("train", "--resume", str(base / "half"), *with_settings(AFTER))
        run_command([*mpirun(RANKS_AFTER), *resume], quiet=True)
        before, after = losses(base / "whole"), losses(base / "half")
    rows = [
        {"epoch": epoch, "4 ranks, by rows": mine, "resumed on 2, by columns": theirs}
        for epoch, (mine, theirs) in enumerate(zip(before, after, strict=True), 1)
    ]
    difference = max(abs(mine - theirs) / mine for mine, theirs in zip(before, after, strict=True))
    return Findings(
        figures={
            "tensors_compared_count": compared,
            "tensors_unequal_count": unequal,
            "largest_relative_difference_of_loss_ratio": difference,
        },
        aims={
            "tables": Aim("tables and optimiser states bit-equal after cutting anew", unequal == 0),
            "training": Aim(
                f"losses after resuming those of the uninterrupted run: <= {TOLERANCE:g}", difference <= TOLERANCE
            ),
        },
        tables={"training loss": Table.from_rows(rows)},
    )


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work)
