"""``windrow groups``: propose groups of features whose repeated values are held once.

Look at whole sessions of a prepared log, and say of every feature how often its value stays the same from one sample of
a session to the next, and what is left of a batch when repeated values are held once; then propose groups of features
that change together, for the recipe's section [deduplication]. Needs a log with sessions (log.session). Nothing is
trained; one process does this: start it without mpirun.
"""

import argparse
from pathlib import Path

from windrow.launch.commands.arguments import add_overrides, write_json
from windrow.launch.recipe_file import read_recipe

__all__ = ["add_arguments", "run"]

EXAMPLES = """\
examples:
  windrow groups examples/parquet_log.toml
  windrow groups examples/parquet_log.toml --ranks 4 --rows 1000000
  windrow groups examples/parquet_log.toml --set training.batch_size=8192 --json groups.json

Features are joined in a group where that makes a batch cheaper: it saves 8 bytes of each sample, and costs what the
features hold, look up and send for the rows that only the other one tells apart. Features for which the formula gives
less than 1.5 are left out; one that has few values, such as a category, repeats in other samples all the same, as the
column "counted" shows, and may be added by hand. docs/deduplication.md has the formulas.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its arguments."""
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="recipe (*.toml) whose log was prepared")
    parser.add_argument(
        "--ranks",
        type=int,
        default=1,
        metavar="N",
        help="how many ranks will train, which share a batch between them (1)",
    )
    parser.add_argument(
        "--rows", type=int, metavar="N", help="about the most samples to look at (262144); more takes longer"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write groups and figures (*.json)")
    add_overrides(parser, example="training.batch_size=8192")


def run(arguments: argparse.Namespace) -> int:
    """Do it."""
    read_recipe(arguments.recipe, arguments.overrides, kind="log")
    from windrow.launch.recommendation_recipe import load_recommendation_recipe
    from windrow.recsys.explain_deduplication import describe_groups
    from windrow.recsys.log_survey import groups_for, open_and_survey

    recipe = load_recommendation_recipe(arguments.recipe, arguments.overrides)
    _, found = open_and_survey(recipe, ranks=arguments.ranks, max_rows=arguments.rows)
    groups = groups_for(recipe, found)
    print(f"{recipe.name}: {describe_groups(groups, found, recipe, ranks=arguments.ranks)}")
    figures = {
        ",".join(group): {
            "unchanged": found.unchanged(group),
            "predicted_factor": found.predicted_factor(group),
            "counted_factor": found.counted_factor(group),
        }
        for group in (*([name] for name in found.features), *groups)
    }
    document = {
        "samples_per_session": found.samples_per_session,
        "mean_lengths": {name: found.mean_length(name) for name in found.features},
        "groups": groups,
        "figures": figures,
    }
    write_json(arguments.json, document)
    return 0
