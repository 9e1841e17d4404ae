"""``windrow plan``: show and write where embedding tables live.

Place the embedding tables of a prepared log on ranks, as the recipe's section [plan] says, and print what each rank
holds, and what a step is predicted to cost it. With --table-bytes, as if tables were compressed to fit: it prints the
sections of the recipe that make it so, by how often rows occur (windrow explain does the same alone). The file that
--out writes can be changed by hand and named as plan.file. One process does this: start it without mpirun.
"""

import argparse
from pathlib import Path

from windrow.comm.errors import RecipeError
from windrow.launch.commands.arguments import (
    add_network,
    add_recipe,
    add_table_bytes,
    fit_tables,
    load_log_recipe,
    network_of,
    refuse_form_alone,
    writing,
)

__all__ = ["add_arguments", "run"]

EXAMPLES = """\
examples:
  windrow plan examples/open_bandit.toml --ranks 2
  windrow plan examples/open_bandit.toml --ranks 4 --out plan.toml --set plan.planner=row_wise
  mpirun -n 4 windrow train examples/open_bandit.toml --set plan.file=plan.toml
  windrow plan examples/open_bandit.toml --ranks 32 --compare --network examples/network.toml
  windrow plan examples/open_bandit.toml --ranks 4 --set plan.planner=neuroshard --picture plan.png
  windrow plan examples/open_bandit.toml --ranks 4 --table-bytes 4000
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its arguments."""
    add_recipe(parser, "whose log was prepared", example="plan.planner=greedy_dim")
    parser.add_argument("--ranks", type=int, required=True, metavar="N", help="how many ranks will train")
    parser.add_argument("--out", type=Path, metavar="FILE", help="plan to write (*.toml)")
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="bars of each rank's time and memory to draw (*.png)"
    )
    parser.add_argument("--compare", action="store_true", help="what a step would cost under every other planner")
    add_table_bytes(parser)
    add_network(parser)


def run(arguments: argparse.Namespace) -> int:
    """Do it."""
    if arguments.ranks < 1:
        raise RecipeError(f"--ranks {arguments.ranks}: expected at least 1")
    refuse_form_alone(arguments)
    recipe = load_log_recipe(arguments)
    from windrow.partition.tables.cost_model import ComputeModel
    from windrow.partition.tables.costs import TableCosts
    from windrow.partition.tables.plan_file import write_plan
    from windrow.partition.tables.planners import SHIPPED_MODEL
    from windrow.recsys.log.store import LogStore
    from windrow.recsys.log_tables import check_store, plan_tables, plan_workload, surveyed_table_specs
    from windrow.recsys.plan_report import compare_planners, describe_costs, describe_plan, draw_plan

    if recipe.log.format == "interactions":
        raise RecipeError(
            f'{arguments.recipe} is of format = "interactions", whose tables are known when training reads the file: '
            "plans of prepared logs alone are shown"
        )
    store = LogStore.open(recipe.store)
    check_store(recipe, store)
    if arguments.table_bytes is not None:
        recipe, _ = fit_tables(recipe, store, arguments)
    links, where = network_of(arguments.network, arguments.ranks)
    specs = surveyed_table_specs(recipe, store, arguments.ranks)
    plan = plan_tables(recipe, store, arguments.ranks, links, surveyed=specs)
    model = ComputeModel.load(recipe.plan.cost_model or SHIPPED_MODEL)
    workload = plan_workload(recipe, arguments.ranks, links)
    costs = TableCosts(specs, arguments.ranks, workload, model, replica_groups=plan.replica_groups)
    memory = float(recipe.plan.rank_memory_bytes or "inf")
    print(describe_plan(plan, specs, arguments.ranks))
    network = where if links is not None else "on no network: give --network, or measure it by windrow network"
    print(f"\npredicted, {network}:\n\n{describe_costs(plan, costs, memory)}")
    if arguments.compare:
        print(f"\n{compare_planners(costs, recipe.plan)}")
    if arguments.picture is not None:
        with writing(arguments.picture, "--picture"):
            draw_plan(costs.of_plan(plan), arguments.picture, memory)
        print(f"\nwrote {arguments.picture}")
    if arguments.out is not None:
        with writing(arguments.out, "--out"):
            write_plan(arguments.out, plan, specs)
        print(f"\nwrote {arguments.out}")
    return 0
