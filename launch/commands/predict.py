"""``windrow predict``: predict vertices of a graph or samples of a log with the model of a run.

Predict with the model of a run and write one Parquet file. On a graph: a row for each vertex in your order. Columns:
vertex, and its id where your files have names; prediction (class) and its probability, or for a binary task the
probability of class 1, or for a multi-label task the probabilities of all classes. Start one process for each part of
the store, as for windrow train. On a log: a row for each sample of the test split, or of files that came after
training, in their order. Columns: row, and for each label its probability or value.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windrow.comm.connect import ending_all_ranks
from windrow.comm.errors import RecipeError
from windrow.comm.launcher import launched_rank
from windrow.launch.commands.arguments import add_log, add_overrides, add_run
from windrow.launch.recipe_file import read_recipe
from windrow.training.run_folder import RunFolder, open_run_folder

if TYPE_CHECKING:
    from windrow.launch.prediction import Prediction

__all__ = ["add_arguments", "run", "summary_lines"]

EXAMPLES = """\
examples:
  mpirun -n 2 windrow predict runs/tolokers-1
  mpirun -n 2 windrow predict runs/tolokers-1 --split test --out test.parquet
  mpirun -n 2 windrow predict runs/tolokers-1 --fanouts 20,20
  mpirun -n 4 windrow predict runs/tolokers-1 --set store=$PWD/stores/tolokers-4
  mpirun -n 2 windrow predict runs/open_bandit-1 --log today.csv --out scores.parquet
  mpirun -n 2 windrow predict runs/tolokers-1 --graph newer.npz --out newer.parquet
  mpirun -n 2 windrow predict runs/tolokers-1 --hidden
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its arguments."""
    add_run(parser)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="file to write, or to replace: predictions.parquet in the run folder by default",
    )
    parser.add_argument(
        "--method",
        choices=("exact", "sampled"),
        help="exact: all neighbours, layer by layer; sampled: minibatches, as in training; by default that of the "
        "recipe's evaluation",
    )
    parser.add_argument(
        "--fanouts",
        metavar="N,N,...",
        help="neighbours per hop of sampled predictions, from the vertex outwards, -1 for all; by default those of the "
        "recipe's evaluation, or of its training",
    )
    parser.add_argument(
        "--split",
        action="append",
        choices=("all", "train", "validation", "test"),
        default=None,
        dest="splits",
        help="predict these vertices only; may be repeated; all by default. Of a log: these samples, test by default",
    )
    add_log(
        parser, text="predict the samples of these files instead, of the run's own log format; labels may be absent"
    )
    other = parser.add_mutually_exclusive_group()
    other.add_argument(
        "--graph",
        type=Path,
        metavar="FILE",
        help="predict the vertices of another graph, with the same features: its file, read as the recipe says, by "
        "every process; for a large one partition it, and give --store",
    )
    other.add_argument("--store", type=Path, metavar="FOLDER", help="the same: its store")
    parser.add_argument(
        "--hidden",
        action="store_true",
        help="write the last hidden vector of every vertex instead, as a NumPy array, row v for vertex v: hidden.npy "
        "in the run folder by default; [tables.pretrained] of a recommendation recipe reads it",
    )
    add_overrides(parser, example="evaluation.batch_size=8192")


def run(arguments: argparse.Namespace) -> int:
    """Do it. Collective: every process that the launcher started calls it, with the same arguments."""
    with ending_all_ranks():
        folder = open_run_folder(arguments.run_folder)
        splits = tuple(dict.fromkeys(arguments.splits or ()))
        is_graph = "graph" in read_recipe(folder.recipe_file, arguments.overrides)
        _check(arguments, folder, splits, is_graph=is_graph)
        from windrow.launch import log_prediction, prediction
        from windrow.launch.recipe import Recipe, load_any_recipe

        recipe = load_any_recipe(folder.recipe_file, [*arguments.overrides, *_evaluation(arguments)])
        out = arguments.out or (folder.hidden_file if arguments.hidden else folder.predictions_file)
    if isinstance(recipe, Recipe):
        result = prediction.predict(
            recipe,
            folder,
            out=out,
            checkpoint=arguments.checkpoint,
            splits=() if "all" in splits else splits,
            graph=arguments.graph,
            store=arguments.store,
            hidden=arguments.hidden,
        )
    else:
        result = log_prediction.predict_log(
            recipe,
            folder,
            out=out,
            checkpoint=arguments.checkpoint,
            split=splits[0] if splits else "test",
            files=arguments.files,
        )
    if launched_rank() == 0:
        print("\n".join(summary_lines(result, "vertices" if is_graph else "samples")), flush=True)
    return 0


def _evaluation(arguments: argparse.Namespace) -> list[str]:
    """``--method`` and ``--fanouts`` as ``--set`` texts; of a graph's recipe alone."""
    method, fanouts = arguments.method, arguments.fanouts
    if method is None:
        method = "sampled" if fanouts is not None else "exact" if arguments.hidden else None
    return [
        *([] if method is None else [f"evaluation.method={method}"]),
        *([] if fanouts is None else [f"evaluation.fanouts=[{fanouts}]"]),
    ]


def _check(arguments: argparse.Namespace, folder: RunFolder, splits: Sequence[str], *, is_graph: bool) -> None:
    """Refuse options of the other kind of run, and those that contradict each other: RecipeError."""
    if not is_graph:
        if len(splits) > 1 or "all" in splits or (splits and arguments.files):
            raise RecipeError("samples of one --split are predicted, or those of --log: give one of both")
        if any((arguments.method, arguments.fanouts, arguments.graph, arguments.store, arguments.hidden)):
            raise RecipeError("--method, --fanouts, --graph, --store and --hidden are for graphs: leave them out")
        return
    if arguments.files:
        raise RecipeError(f"{folder.path} is the run of a graph: --log is for models of clicks")
    if arguments.fanouts is not None and arguments.method == "exact":
        raise RecipeError(
            f"--fanouts {arguments.fanouts} with --method exact, which takes all neighbours: leave out one of them"
        )
    if arguments.hidden and (splits or arguments.method == "sampled" or arguments.fanouts is not None):
        raise RecipeError(
            "--hidden writes the vectors of all vertices, from all neighbours: leave out --split, --method, --fanouts"
        )
    if arguments.hidden and arguments.out is not None and arguments.out.suffix != ".npy":
        raise RecipeError(f"--out {arguments.out}: hidden vectors are written as a NumPy array; name a .npy file")


def summary_lines(result: "Prediction", what: str) -> list[str]:
    """What is said at the end of predictions for vertices or samples."""
    from windrow.training.terminal import byte_size

    lines = [f"predicted {result.rows} {what} after epoch {result.epoch}"]
    if result.figures:
        lines.append(", ".join(f"{split} {result.metric} {value:.4f}" for split, value in result.figures.items()))
    return [*lines, f"{result.out}: {byte_size(result.out.stat().st_size)}"]
