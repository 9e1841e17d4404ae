"""``windrow train``: train a model on a partitioned graph or a prepared log.

Train as a recipe says: a graph neural network where it has a section [graph], a recommendation model where it has
[log]. Start one process for each rank with mpirun, srun or torchrun (for a graph as many as its store has parts);
without a launcher it trains on one rank.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from windrow.comm.connect import ending_all_ranks
from windrow.comm.errors import RecipeError
from windrow.comm.launcher import launched_rank
from windrow.launch.commands.arguments import add_overrides
from windrow.launch.recipe_file import read_recipe
from windrow.training.run_folder import open_run_folder

if TYPE_CHECKING:
    from windrow.training.journal import TrainingResult

__all__ = ["add_arguments", "run", "summary_lines"]

EXAMPLES = """\
examples:
  mpirun -n 2 windrow train examples/tolokers.toml
  mpirun -n 2 windrow train examples/tolokers.toml --set training.epochs=5 --set sampler.fanouts=[10,10]
  mpirun -n 2 windrow train examples/open_bandit.toml --set tables.dim=16
  mpirun -n 2 windrow train --resume runs/tolokers-1
  mpirun -n 2 windrow train examples/tolokers.toml --run-folder runs/mine --resume auto
  mpirun -n 2 windrow train examples/tolokers.toml --trace
"""

SAID = {
    "test auc": "",
    "test normalised entropy": " (1.0: no better than the base rate of the test samples)",
    "test calibration": " (clicks predicted for each click)",
    "test ndcg@20": "",
}
"""Figures beside the metric that are said at the end, with what to hold them against."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its arguments."""
    parser.add_argument(
        "recipe",
        type=Path,
        nargs="?",
        metavar="RECIPE",
        help="recipe (*.toml); with --resume, the run's own where none is given",
    )
    parser.add_argument(
        "--resume",
        metavar="RUN_FOLDER",
        help="go on with a run from its latest intact checkpoint; auto: with that of --run-folder where it has one, "
        "else begin: for a job that may be started again",
    )
    parser.add_argument(
        "--run-folder", type=Path, metavar="DIR", help="folder for the new run, or with --resume auto that may be there"
    )
    parser.add_argument(
        "--trace",
        action="store_true",
        help="record what every rank does when, in the first two epochs that this start trains, and write it to "
        "trace.json in the run folder: a timeline to be opened at https://ui.perfetto.dev",
    )
    add_overrides(parser, example="training.epochs=5")


def run(arguments: argparse.Namespace) -> int:
    """Do it. Collective: every process that the launcher started calls it, with the same arguments."""
    with ending_all_ranks():
        resume = arguments.resume if arguments.resume in (None, "auto") else Path(arguments.resume)
        going_on = resume if isinstance(resume, Path) else arguments.run_folder if resume == "auto" else None
        path = _recipe_path(arguments.recipe, going_on)
        read_recipe(path, arguments.overrides)
        from windrow.launch.recipe import load_any_recipe
        from windrow.launch.training import train

        recipe = load_any_recipe(path, arguments.overrides)
    result = train(recipe, resume=resume, run_folder=arguments.run_folder, trace=arguments.trace)
    if launched_rank() == 0:
        print("\n".join(summary_lines(result)), flush=True)
    return 0


def _recipe_path(recipe: Path | None, run_folder: Path | None) -> Path:
    if recipe is not None:
        return recipe
    if run_folder is not None:
        return open_run_folder(run_folder).recipe_file
    raise RecipeError("name a recipe, for example examples/tolokers.toml, or a run to go on with by --resume")


def summary_lines(result: "TrainingResult") -> list[str]:
    """What is said at the end of a run."""
    from windrow.training.terminal import duration

    lines = [f"finished {result.epochs} epochs in {duration(result.seconds)}"]
    figures = [
        f"{split} {result.metric} {value:.4f}"
        for split, value in (("valid", result.validation), ("test", result.test))
        if value is not None
    ]
    if figures:
        which = "last epoch" if result.best_epoch is None else f"best epoch {result.best_epoch}"
        lines.append(f"{which}: {', '.join(figures)}")
    lines += [f"{name} {result.figures[name]:.4f}{note}" for name, note in SAID.items() if name in result.figures]
    return [*lines, f"everything about the run is in {result.run_folder}"]
