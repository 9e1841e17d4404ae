"""``windrow sweep``: train a few steps under recipes near this one, and say which is fastest.

By default the near ones differ in one setting that decides about speed: of a graph the size and the window of the
cache, and the pipeline; of a log the planner of its tables, minibatches in parts, deduplication. What is learnt stays
the same, but for --shortest, which also tries shorter number formats on the wire, down to that one. With --try only
what you name is tried. Each recipe trains as many samples in each round, and nothing is kept. Start as many processes
as for windrow train, on the machines that will train.
"""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from windrow.comm.connect import ending_all_ranks
from windrow.comm.errors import RecipeError
from windrow.comm.launcher import launched_rank
from windrow.launch.commands.arguments import add_recipe, add_shortest, check_writable, write_json, writing
from windrow.launch.recipe_file import read_recipe

if TYPE_CHECKING:
    from windrow.launch.recipe import AnyRecipe

__all__ = ["add_arguments", "run"]

EXAMPLES = """\
examples:
  mpirun -n 2 windrow sweep examples/tolokers.toml
  mpirun -n 2 windrow sweep examples/open_bandit.toml --shortest int8 --out fast.toml
  mpirun -n 2 windrow sweep examples/tolokers.toml --try pipeline.depth=8 --try "cache.alpha=0.5; cache.window=8"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its arguments."""
    add_recipe(parser, "whose graph was partitioned, or whose log was prepared", example="training.batch_size=4096")
    parser.add_argument(
        "--try",
        action="append",
        default=[],
        dest="tries",
        metavar="SECTION.KEY=VALUE",
        help="a change to try, or several that go together with ';' between them; may be repeated",
    )
    add_shortest(parser)
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="steps that are measured in a round (20)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often each recipe has its turn (3)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the fastest recipe (*.toml)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all numbers (*.json)")


def run(arguments: argparse.Namespace) -> int:
    """Do it. Collective: every process that the launcher started calls it, with the same arguments."""
    with ending_all_ranks():
        for name in ("steps", "rounds"):
            if getattr(arguments, name) < 1:
                raise RecipeError(f"--{name} {getattr(arguments, name)}: expected at least 1")
        check_writable(arguments.out)
        check_writable(arguments.json, "--json")
        read_recipe(arguments.recipe, arguments.overrides)
        from windrow.launch.settings import write_toml
        from windrow.launch.sweep import AS_IT_IS, sweep, sweep_rows
        from windrow.training.terminal import table

        recipes = _recipes(arguments)
    found = sweep(recipes, steps=arguments.steps, rounds=arguments.rounds)
    if launched_rank() == 0:
        rows = sweep_rows(found)
        print(f"\n{next(iter(recipes.values())).name}:\n\n{table(rows)}", flush=True)
        if arguments.out is not None:
            # Chance alone is not worth a change.
            best = next((str(row["change"]) for row in rows if row[""] == "faster"), AS_IT_IS)
            with writing(arguments.out, "--out"):
                write_toml(arguments.out, recipes[best].settings())
            print(f"\nwrote {arguments.out}: {best}")
        write_json(arguments.json, {name: one if isinstance(one, str) else asdict(one) for name, one in found.items()})
    return 0


def _recipes(arguments: argparse.Namespace) -> "dict[str, AnyRecipe]":
    """The recipe, and what is tried beside it."""
    from windrow.launch.recipe import load_any_recipe
    from windrow.launch.sweep import AS_IT_IS, near_recipes

    path, overrides = arguments.recipe, arguments.overrides
    if arguments.tries and arguments.shortest != "fp32":
        raise RecipeError("--shortest chooses what is tried, and --try names it: give one of the two")
    recipe = load_any_recipe(path, overrides)
    found = {AS_IT_IS: recipe}
    for text in arguments.tries:
        found[text] = load_any_recipe(path, [*overrides, *filter(None, map(str.strip, text.split(";")))])
        if found[text].run != recipe.run:
            raise RecipeError(f"--try {text!r}: all recipes train in one job, so that [run] is the same: use --set")
    if not arguments.tries:
        found |= near_recipes(recipe, shortest=arguments.shortest)
    if len(found) == 1:
        raise RecipeError(f"{path}: nothing near it is known to be faster: name what to try, by --try")
    return found
