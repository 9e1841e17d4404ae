"""``windrow plan``: show and write where embedding tables live.

Place the embedding tables of a prepared log on ranks, as the recipe's section [plan] says, and print what each rank
holds. The file that --out writes can be changed by hand and named as plan.file. One process does this: start it without
mpirun.
"""

import argparse
from pathlib import Path

from windrow.comm.errors import RecipeError
from windrow.launch.commands.arguments import add_overrides, writing
from windrow.launch.recipe_file import read_recipe

__all__ = ["add_arguments", "run"]

EXAMPLES = """\
examples:
  windrow plan examples/open_bandit.toml --ranks 2
  windrow plan examples/open_bandit.toml --ranks 4 --out plan.toml --set plan.planner=row_wise
  mpirun -n 4 windrow train examples/open_bandit.toml --set plan.file=plan.toml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its arguments."""
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="recipe (*.toml) whose log was prepared")
    parser.add_argument("--ranks", type=int, required=True, metavar="N", help="how many ranks will train")
    parser.add_argument("--out", type=Path, metavar="FILE", help="plan to write (*.toml)")
    add_overrides(parser, example="plan.planner=greedy_dim")


def run(arguments: argparse.Namespace) -> int:
    """Do it."""
    if arguments.ranks < 1:
        raise RecipeError(f"--ranks {arguments.ranks}: expected at least 1")
    read_recipe(arguments.recipe, arguments.overrides, kind="log")
    from windrow.launch.recommendation_recipe import load_recommendation_recipe
    from windrow.partition.tables.plan_file import describe_plan, write_plan
    from windrow.recsys.log.store import LogStore
    from windrow.recsys.log_tables import check_store, log_table_specs, plan_tables

    recipe = load_recommendation_recipe(arguments.recipe, arguments.overrides)
    if recipe.log.format == "interactions":
        raise RecipeError(
            f'{arguments.recipe} is of format = "interactions", whose tables are known when training reads the file: '
            "plans of prepared logs alone are shown"
        )
    store = LogStore.open(recipe.store)
    check_store(recipe, store)
    specs = log_table_specs(recipe, store)
    plan = plan_tables(recipe, store, arguments.ranks)
    print(describe_plan(plan, specs, arguments.ranks))
    if arguments.out is not None:
        with writing(arguments.out, "--out"):
            write_plan(arguments.out, plan, specs)
        print(f"\nwrote {arguments.out}")
    return 0
