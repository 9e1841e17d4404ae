"""``windrow plan``: show and write where embedding tables live, or propose a recipe's settings.

Place the embedding tables of a prepared log on ranks, as the recipe's section [plan] says, and print what each rank
holds, and what a step is predicted to cost it. With --table-bytes, as if tables were compressed to fit: it prints the
sections of the recipe that make it so, by how often rows occur (windrow explain does the same alone). The file that
--out writes can be changed by hand and named as plan.file.

With --auto, of a graph or a log: propose the whole combination, as far as models predict it. Of a graph what each rank
keeps of others' rows, number formats on the wire and the pipeline; of a log which lists are held once, the planner of
its tables, and formats. --out writes the recipe with all of it then, and windrow sweep measures what is near it. One
process does this: start it without mpirun.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from windrow.comm.errors import RecipeError
from windrow.launch.commands.arguments import (
    add_network,
    add_ranks_per_machine,
    add_recipe,
    add_shortest,
    add_table_bytes,
    check_writable,
    fit_tables,
    load_log_recipe,
    network_of,
    refuse_form_alone,
    step_work,
    writing,
)
from windrow.launch.recipe_file import read_recipe

if TYPE_CHECKING:
    from windrow.launch.auto_plan import AutoPlan
    from windrow.launch.recipe import Recipe
    from windrow.launch.recommendation_recipe import RecommendationRecipe
    from windrow.recsys.log.store import LogStore

__all__ = ["add_arguments", "run"]

EXAMPLES = """\
examples:
  windrow plan examples/open_bandit.toml --ranks 2
  windrow plan examples/open_bandit.toml --ranks 4 --out plan.toml --set plan.planner=row_wise
  mpirun -n 4 windrow train examples/open_bandit.toml --set plan.file=plan.toml
  windrow plan examples/open_bandit.toml --ranks 32 --compare --network examples/network.toml
  windrow plan examples/open_bandit.toml --ranks 4 --set plan.planner=neuroshard --picture plan.png
  windrow plan examples/open_bandit.toml --ranks 4 --table-bytes 4000
  windrow plan examples/open_bandit.toml --ranks 32 --auto --network examples/network.toml --shortest bf16
  windrow plan examples/tolokers.toml --auto --network network.toml --out planned.toml
"""

NOT_AUTO = ("picture", "compare", "table_bytes")
ONLY_AUTO = {"shortest": "fp32", "ranks_per_machine": None}
"""Options that mean something without --auto, and with it, those with their defaults."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its arguments."""
    add_recipe(parser, "whose log was prepared, or whose graph was partitioned", example="plan.planner=greedy_dim")
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="how many ranks will train; of a graph as many as it has parts"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="plan, or with --auto recipe, to write (*.toml)")
    parser.add_argument("--auto", action="store_true", help="propose settings of the whole recipe")
    add_shortest(parser)
    add_ranks_per_machine(parser)
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="bars of each rank's time and memory to draw (*.png)"
    )
    parser.add_argument("--compare", action="store_true", help="what a step would cost under every other planner")
    add_table_bytes(parser)
    add_network(parser)


def run(arguments: argparse.Namespace) -> int:
    """Do it."""
    if arguments.ranks is not None and arguments.ranks < 1:
        raise RecipeError(f"--ranks {arguments.ranks}: expected at least 1")
    refuse_form_alone(arguments)
    check_writable(arguments.out)
    check_writable(arguments.picture, "--picture")
    if arguments.auto:
        return _propose(arguments)
    given = [name for name, default in ONLY_AUTO.items() if getattr(arguments, name) != default]
    if given:
        raise RecipeError(f"--{given[0].replace('_', '-')} goes with --auto: add it, or leave this out")
    recipe = load_log_recipe(arguments)
    from windrow.partition.tables.plan_file import write_plan
    from windrow.recsys.log_tables import costs_of_tables, plan_tables, surveyed_table_specs
    from windrow.recsys.plan_report import compare_planners, describe_costs, describe_plan, draw_plan

    store = _open_log(recipe, arguments)
    if arguments.table_bytes is not None:
        recipe, _ = fit_tables(recipe, store, arguments)
    links, where = network_of(arguments.network, arguments.ranks)
    specs = surveyed_table_specs(recipe, store, arguments.ranks)
    plan = plan_tables(recipe, store, arguments.ranks, links, surveyed=specs)
    costs = costs_of_tables(recipe, specs, arguments.ranks, links, replica_groups=plan.replica_groups)
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


def _open_log(recipe: "RecommendationRecipe", arguments: argparse.Namespace) -> "LogStore":
    """The prepared log of a recipe, for so many ranks as were named."""
    from windrow.recsys.log.store import LogStore
    from windrow.recsys.log_tables import check_store

    if recipe.log.format == "interactions":
        raise RecipeError(
            f'{arguments.recipe} is of format = "interactions", whose tables are known when training reads the file: '
            "plans of prepared logs alone are shown"
        )
    if arguments.ranks is None:
        raise RecipeError("say how many ranks will train, by --ranks")
    store = LogStore.open(recipe.store)
    check_store(recipe, store)
    return store


def _propose(arguments: argparse.Namespace) -> int:
    given = [name for name in NOT_AUTO if getattr(arguments, name)]
    if given:
        raise RecipeError(f"--{given[0].replace('_', '-')} does not go with --auto: ask for one of the two")
    read_recipe(arguments.recipe, arguments.overrides)
    from windrow.launch.auto_plan import describe_auto_plan
    from windrow.launch.recipe import Recipe, load_any_recipe
    from windrow.launch.settings import write_toml
    from windrow.launch.sweep import changed

    recipe = load_any_recipe(arguments.recipe, arguments.overrides)
    if isinstance(recipe, Recipe):
        found, about = _propose_graph(recipe, arguments)
    else:
        found, about = _propose_log(recipe, arguments)
    print(f"{recipe.name}: {about}\n\n{describe_auto_plan(found, recipe)}")
    if arguments.out is not None:
        with writing(arguments.out, "--out"):
            write_toml(arguments.out, changed(recipe, found.changes).settings())
        print(f"\nwrote {arguments.out}")
    return 0


def _propose_graph(recipe: "Recipe", arguments: argparse.Namespace) -> "tuple[AutoPlan, str]":
    from windrow.gnn.partitioned import PartitionedGraph
    from windrow.launch.auto_plan import plan_graph
    from windrow.partition.store import PartitionStore

    parts = PartitionStore.open(recipe.store, verify=False).manifest.num_parts
    if arguments.ranks not in (None, parts):
        raise RecipeError(
            f"--ranks {arguments.ranks}, but {recipe.store} has {parts} parts: partition the graph into as many"
        )
    if recipe.full_graph.enabled:
        raise RecipeError(
            'full-graph training chooses by itself: set full_graph.method = "auto" and full_graph.messages = "adaptive"'
        )
    links, network = network_of(arguments.network, parts)
    if links is None:
        raise RecipeError(
            "what pays depends on the network, which is not known: name one by --network FILE, or measure this "
            f"machine's by mpirun -n {parts} windrow network"
        )
    graph = PartitionedGraph.open(recipe.store, rank=0, size=parts, read_features=False)
    work, computed = step_work(graph, recipe, links, arguments.ranks_per_machine)
    found = plan_graph(recipe, graph, links, work, shortest=arguments.shortest)
    return found, f"{parts} ranks; network: {network}; the work of a step was {computed}"


def _propose_log(recipe: "RecommendationRecipe", arguments: argparse.Namespace) -> "tuple[AutoPlan, str]":
    from windrow.launch.auto_plan import plan_log

    if arguments.ranks_per_machine is not None:
        raise RecipeError("--ranks-per-machine says nothing about a log: set plan.ranks_per_core, or leave it out")
    store = _open_log(recipe, arguments)
    links, network = network_of(arguments.network, arguments.ranks)
    found = plan_log(recipe, store, arguments.ranks, links, shortest=arguments.shortest)
    where = network if links is not None else "not known: give --network, or measure it by windrow network"
    return found, f"{arguments.ranks} ranks; network: {where}"
