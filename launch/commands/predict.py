"""``windrow predict``: predict vertices of a graph or samples of a log with the model of a run.

Predict with the model of a run and write one Parquet file. On a graph: a row for each vertex in your order. Columns:
vertex, and its id where your files have names; prediction (class) and its probability, or for a binary task the
probability of class 1, or for a multi-label task the probabilities of all classes. Start one process for each part of
the store, as for windrow train. On a log: a row for each sample of the test split, or of files that came after
training, in their order. Columns: row, and for each label its probability or value.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from windrow.comm.connect import ending_all_ranks
from windrow.comm.errors import RecipeError
from windrow.comm.launcher import launched_rank
from windrow.launch.commands.arguments import add_log, add_overrides, add_run, recipe_to_compute
from windrow.training.run_folder import open_run_folder

if TYPE_CHECKING:
    from windrow.launch.prediction import PredictionResult
    from windrow.launch.recommendation_recipe import RecommendationRecipe
    from windrow.training.run_folder import RunFolder

__all__ = ["add_arguments", "run", "summary_lines"]

EXAMPLES = """\
examples:
  mpirun -n 2 windrow predict runs/tolokers-1
  mpirun -n 2 windrow predict runs/tolokers-1 --split test --out test.parquet
  mpirun -n 2 windrow predict runs/tolokers-1 --method sampled --fanouts 20,20
  mpirun -n 4 windrow predict runs/tolokers-1 --set store=$PWD/stores/tolokers-4
  mpirun -n 2 windrow predict runs/open_bandit-1 --log today.csv --out scores.parquet
  mpirun -n 2 windrow predict runs/tolokers-1 --graph newer.npz --out newer.parquet
  mpirun -n 2 windrow predict runs/tolokers-1 --hidden
"""

SPLITS = ("train", "validation", "test")


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
        default="exact",
        help="exact: all neighbours, layer by layer (the default); sampled: minibatches, as in training",
    )
    parser.add_argument(
        "--fanouts",
        type=_fanouts,
        default=(),
        metavar="N,N,...",
        help="neighbours per hop for --method sampled, from the vertex outwards, -1 for all; by default those of the "
        "recipe's evaluation, or of its training",
    )
    parser.add_argument(
        "--split",
        action="append",
        choices=("all", *SPLITS),
        default=None,
        dest="splits",
        help="predict these vertices only; may be repeated; all by default. Of a log: these samples, test by default",
    )
    add_log(
        parser, text="predict the samples of these files instead, of the run's own log format; labels may be absent"
    )
    parser.add_argument(
        "--graph",
        type=Path,
        metavar="FILE",
        help="predict the vertices of another graph, with the same features: its file, read as the recipe says, by "
        "every process; for a large one partition it, and give --store",
    )
    parser.add_argument("--store", type=Path, metavar="FOLDER", help="the same: its store")
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
        from windrow.launch.prediction import PredictionOptions, predict
        from windrow.launch.recipe import Recipe

        recipe = recipe_to_compute(folder.recipe_file, arguments.overrides)
        splits = tuple(dict.fromkeys(arguments.splits or ()))
        if not isinstance(recipe, Recipe):
            return _predict_log(arguments, recipe, folder, splits)
        if arguments.files:
            raise RecipeError(f"{folder.path} is the run of a graph: --log is for models of clicks")
        options = PredictionOptions(
            out=arguments.out or (folder.hidden_file if arguments.hidden else folder.predictions_file),
            checkpoint=arguments.checkpoint,
            method=arguments.method,
            fanouts=arguments.fanouts,
            splits=() if "all" in splits else splits,
            graph=arguments.graph,
            store=arguments.store,
            hidden=arguments.hidden,
        )
    result = predict(recipe, folder, options)
    if launched_rank() == 0:
        print("\n".join(summary_lines(result)), flush=True)
    return 0


def _predict_log(
    arguments: argparse.Namespace, recipe: "RecommendationRecipe", folder: "RunFolder", splits: tuple[str, ...]
) -> int:
    from windrow.launch.log_prediction import predict_log
    from windrow.training.terminal import byte_size

    if len(splits) > 1 or "all" in splits or (splits and arguments.files):
        raise RecipeError("samples of one --split are predicted, or those of --log: give one of both")
    if arguments.method != "exact" or arguments.fanouts or arguments.graph or arguments.store or arguments.hidden:
        raise RecipeError("--method, --fanouts, --graph, --store and --hidden are for graphs: leave them out")
    result = predict_log(
        recipe,
        folder,
        out=arguments.out or folder.predictions_file,
        checkpoint=arguments.checkpoint,
        split=splits[0] if splits else "test",
        files=arguments.files,
    )
    if launched_rank() == 0:
        size = byte_size(result.out.stat().st_size)
        print(f"predicted {result.num_samples} samples after epoch {result.epoch}\n{result.out}: {size}", flush=True)
    return 0


def summary_lines(result: "PredictionResult") -> list[str]:
    """What is said at the end."""
    from windrow.training.terminal import byte_size, count, duration

    rate = count(result.num_vertices / max(result.inference_seconds, 1e-9))
    inference, writing = duration(result.inference_seconds), duration(result.writing_seconds)
    lines = [
        f"predicted {result.num_vertices} vertices after epoch {result.epoch}",
        f"inference took {inference} ({rate} vertices per second), writing {writing}",
    ]
    figures = [f"{split} {result.metric} {value:.4f}" for split, value in result.figures.items()]
    if figures:
        lines.append(", ".join(figures))
    return [*lines, f"{result.out}: {byte_size(result.out.stat().st_size)}"]


def _fanouts(text: str) -> tuple[int, ...]:
    """Turn "20,20,20" into numbers; argparse makes an error of a ValueError."""
    fanouts = tuple(int(part) for part in text.split(","))
    if any(fanout < 1 and fanout != -1 for fanout in fanouts):
        raise argparse.ArgumentTypeError(f"{text!r}: each must be at least 1, or -1 for all neighbours")
    return fanouts
