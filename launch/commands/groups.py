"""``windrow groups``: propose groups of features whose repeated values are held once.

Look at whole sessions of a prepared log, and say of every feature how often its value stays the same from one sample of
a session to the next, and what is left of a batch when repeated values are held once; then propose groups of features
that change together, for the recipe's section [deduplication]. Needs a log with sessions (log.session). Nothing is
trained; one process does this: start it without mpirun.
"""

import argparse
from pathlib import Path

from windrow.launch.commands.arguments import add_recipe, check_writable, load_log_recipe, write_json

__all__ = ["add_arguments", "run"]

EXAMPLES = """\
examples:
  windrow groups examples/parquet_log.toml
  windrow groups examples/parquet_log.toml --ranks 4 --rows 1000000
  windrow groups examples/parquet_log.toml --set training.batch_size=8192 --json groups.json

docs/deduplication.md says what the columns are, and by which formulas features are joined.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its arguments."""
    add_recipe(parser, "whose log was prepared", example="training.batch_size=8192")
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="how many ranks will share a batch (1)")
    parser.add_argument("--rows", type=int, metavar="N", help="about the most samples to look at (262144)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write groups and figures (*.json)")


def run(arguments: argparse.Namespace) -> int:
    """Do it."""
    check_writable(arguments.json, "--json")
    recipe = load_log_recipe(arguments)
    from windrow.recsys.explain_deduplication import describe_groups
    from windrow.recsys.log_survey import groups_for, open_and_survey

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
