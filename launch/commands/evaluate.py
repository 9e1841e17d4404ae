"""``windrow evaluate``: measure the model of a run.

Measure the model of a run on the splits that training measures, or a model of clicks on labelled samples that came
later. Start as many processes as you like for a log, and one for each part of a graph.
"""

import argparse
from pathlib import Path

from windrow.comm.connect import ending_all_ranks
from windrow.comm.launcher import launched_rank
from windrow.launch.commands.arguments import add_log, add_overrides, add_run, check_writable, write_json
from windrow.training.run_folder import open_run_folder

__all__ = ["add_arguments", "run"]

EXAMPLES = """\
examples:
  mpirun -n 2 windrow evaluate runs/tolokers-1
  mpirun -n 2 windrow evaluate runs/open_bandit-1 --log today.csv --json figures.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its arguments."""
    add_run(parser)
    add_log(parser, text="samples in the log's format")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures as JSON")
    add_overrides(parser, example="evaluation.batch_size=8192")


def run(arguments: argparse.Namespace) -> int:
    """Do it. Collective: every process that the launcher started calls it, with the same arguments."""
    with ending_all_ranks():
        folder = open_run_folder(arguments.run_folder)
        check_writable(arguments.json, "--json")
        from windrow.launch.log_prediction import evaluate
        from windrow.launch.recipe import load_any_recipe
        from windrow.training.terminal import table

        recipe = load_any_recipe(folder.recipe_file, arguments.overrides)
    figures = evaluate(recipe, folder, checkpoint=arguments.checkpoint, files=arguments.files)
    if launched_rank() == 0:
        measured = [
            {"split": split, "metric": name, "value": value}
            for split, found in figures.items()
            for name, value in found.items()
        ]
        print(table(measured), flush=True)
        write_json(arguments.json, figures)
    return 0
