"""``windrow plan``: show and write where embedding tables live.

Place the embedding tables of a prepared log on ranks, as the recipe's section [plan] says, and print what each rank
holds. The file that --out writes can be changed by hand and named as plan.file. One process does this: start it without
mpirun.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windrow.comm.errors import RecipeError
from windrow.launch.commands.arguments import add_recipe, load_log_recipe, writing
from windrow.training.terminal import table

if TYPE_CHECKING:
    from windrow.partition.tables.plan import Plan, TableSpec

__all__ = ["add_arguments", "run"]

EXAMPLES = """\
examples:
  windrow plan examples/open_bandit.toml --ranks 2
  windrow plan examples/open_bandit.toml --ranks 4 --out plan.toml --set plan.planner=row_wise
  mpirun -n 4 windrow train examples/open_bandit.toml --set plan.file=plan.toml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its arguments."""
    add_recipe(parser, "whose log was prepared", example="plan.planner=greedy_dim")
    parser.add_argument("--ranks", type=int, required=True, metavar="N", help="how many ranks will train")
    parser.add_argument("--out", type=Path, metavar="FILE", help="plan to write (*.toml)")


def run(arguments: argparse.Namespace) -> int:
    """Do it."""
    if arguments.ranks < 1:
        raise RecipeError(f"--ranks {arguments.ranks}: expected at least 1")
    recipe = load_log_recipe(arguments)
    from windrow.partition.tables.plan_file import write_plan
    from windrow.recsys.log.store import LogStore
    from windrow.recsys.log_tables import check_store, log_table_specs, plan_tables

    if recipe.log.format == "interactions":
        raise RecipeError(
            f'{arguments.recipe} is of format = "interactions", whose tables are known when training reads the file: '
            "plans of prepared logs alone are shown"
        )
    store = LogStore.open(recipe.store)
    check_store(recipe, store)
    specs = log_table_specs(recipe, store)
    plan = plan_tables(recipe, store, arguments.ranks)
    print(_described(plan, specs, arguments.ranks))
    if arguments.out is not None:
        with writing(arguments.out, "--out"):
            write_plan(arguments.out, plan, specs)
        print(f"\nwrote {arguments.out}")
    return 0


MOST_RANKS_SHOWN = 8


def _described(plan: "Plan", specs: Sequence["TableSpec"], world_size: int) -> str:
    """What is where, by table and by rank.

    By rank: pieces, also replicated ones, their bytes, and the lookups to expect per sample of the whole minibatch (of
    what is replicated: its share).
    """
    from windrow.partition.tables.plan import rank_bytes

    def lookups(name: str, num_rows: int) -> float:
        spec = next(spec for spec in specs if spec.name == name)
        return spec.lookups_per_sample * num_rows / spec.rows

    def ranks_of(name: str) -> str:
        ranks = sorted({shard.rank for shard in plan.shards_of(name)})
        shown = ", ".join(map(str, ranks[:MOST_RANKS_SHOWN]))
        if plan.replicas_of(name):
            return "all"
        return shown if len(ranks) <= MOST_RANKS_SHOWN else f"{shown}, ... ({len(ranks)})"

    by_table = [
        {"table": s.name, "rows": s.rows, "dim": s.dim, "bytes": s.num_bytes}
        | {"plan": plan.kind_of(s.name), "ranks": ranks_of(s.name)}
        for s in specs
    ]
    everywhere = sum(lookups(copy.table, copy.rows[1] - copy.rows[0]) for copy in plan.replicated) / world_size
    by_rank = [
        {"rank": rank, "pieces": len(plan.shards_on(rank)) + len(plan.replicated), "bytes": num_bytes}
        | {"lookups/sample": everywhere + sum(lookups(shard.table, shard.num_rows) for shard in plan.shards_on(rank))}
        for rank, num_bytes in enumerate(rank_bytes(plan, specs, world_size))
    ]
    return f"{table(by_table)}\n\n{table(by_rank)}"
