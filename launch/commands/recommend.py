"""``windrow recommend``: the best items for users, with the two-tower model of a run.

Rank all items for users, exactly, and write one Parquet file: user, items (best first) and their scores. Items that the
log knows the user to have taken are left out. Start as many processes as you like.
"""

import argparse
from pathlib import Path
from typing import Any

from windrow.comm.connect import ending_all_ranks
from windrow.comm.errors import DataError, RecipeError
from windrow.comm.launcher import launched_rank
from windrow.launch.commands.arguments import add_overrides, add_run
from windrow.training.run_folder import open_run_folder

__all__ = ["add_arguments", "run"]

EXAMPLES = """\
examples:
  mpirun -n 2 windrow recommend runs/gowalla-1 --k 50
  mpirun -n 2 windrow recommend runs/gowalla-1 --users today.parquet --out items.parquet
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its arguments."""
    add_run(parser)
    parser.add_argument("--k", type=int, default=20, help="items for each user, 20 by default")
    parser.add_argument(
        "--users", type=Path, metavar="FILE", help="Parquet or CSV file with the log's column of users; all by default"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="file to write: recommendations.parquet in the run folder by default"
    )
    add_overrides(parser, example="evaluation.batch_size=8192")


def run(arguments: argparse.Namespace) -> int:
    """Do it. Collective: every process that the launcher started calls it, with the same arguments."""
    with ending_all_ranks():
        folder = open_run_folder(arguments.run_folder)
        from windrow.launch.log_prediction import recommend
        from windrow.launch.recipe import load_any_recipe
        from windrow.launch.recommendation_recipe import RecommendationRecipe

        recipe = load_any_recipe(folder.recipe_file, arguments.overrides)
        if not isinstance(recipe, RecommendationRecipe):
            raise RecipeError(f"{folder.path} is the run of a graph: see windrow predict")
        users = None if arguments.users is None else _users(arguments.users, recipe.interactions.user_column)
    out = arguments.out or folder.path / "recommendations.parquet"
    result = recommend(recipe, folder, out=out, k=arguments.k, users=users, checkpoint=arguments.checkpoint)
    if launched_rank() == 0:
        print(f"{result.out}: {arguments.k} items for each of {result.rows} users, after epoch {result.epoch}")
    return 0


def _users(path: Path, column: str) -> Any:
    """[n] int64 numbers of users."""
    from pyarrow import ArrowException, csv, parquet

    try:
        rows = parquet.read_table(path) if path.suffix in (".parquet", ".pq") else csv.read_csv(path)
        return rows[column].cast("int64").to_numpy()
    except (OSError, ArrowException, KeyError) as error:
        raise DataError(f"--users {path}: expected a column {column!r} of user numbers: {error}") from error
