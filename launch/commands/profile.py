"""``windrow profile``: show what bounds a training step, and what would help.

Train a few steps, with the recipe's batch and with half of it, and print where their time goes, beside what this
machine needs at least: matrix products at the rate of one large product, bytes at the rate of a plain copy, traffic by
the links that windrow network measured. Nothing is kept. Start as many processes as for windrow train.
"""

import argparse
from pathlib import Path

from windrow.comm.connect import ending_all_ranks
from windrow.comm.errors import RecipeError
from windrow.comm.launcher import launched_rank
from windrow.launch.commands.arguments import add_recipe, check_writable, write_json
from windrow.launch.recipe_file import read_recipe

__all__ = ["add_arguments", "run"]

EXAMPLES = """\
examples:
  mpirun -n 2 windrow profile examples/tolokers.toml
  mpirun -n 2 windrow profile examples/tolokers.toml --set training.batch_size=4096
  mpirun -n 2 windrow profile examples/tolokers.toml --json runs/tolokers-1/profile.json

docs/howto.md says what the columns are.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its arguments."""
    add_recipe(parser, "whose graph was partitioned, or whose log was prepared", example="training.batch_size=4096")
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="steps that are measured (20)")
    named = "also write all numbers (*.json); windrow report shows those in profile.json of a run's folder"
    parser.add_argument("--json", type=Path, metavar="FILE", help=named)


def run(arguments: argparse.Namespace) -> int:
    """Do it. Collective: every process that the launcher started calls it, with the same arguments."""
    with ending_all_ranks():
        if arguments.steps < 1:
            raise RecipeError(f"--steps {arguments.steps}: expected at least 1")
        check_writable(arguments.json, "--json")
        read_recipe(arguments.recipe, arguments.overrides)
        from windrow.launch.profiling import profile
        from windrow.launch.recipe import load_any_recipe
        from windrow.training.terminal import table

        recipe = load_any_recipe(arguments.recipe, arguments.overrides)
    found = profile(recipe, steps=arguments.steps)
    if launched_rank() == 0:
        print(found["about"], table(found["stages"]), "\n".join(found["advice"]), sep="\n\n", flush=True)
        write_json(arguments.json, found)
    return 0
