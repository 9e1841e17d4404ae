"""``windrow explain``: predict what caches or messages would save of a graph recipe, or deduplication of a log's.

Of a graph recipe: predict, from the structure of the partitioned graph alone, how many rows of features ranks will ask
each other for in an epoch, and how much of that goes away when each rank also keeps the remote rows that its
minibatches are most likely to need (alpha * N / ranks of them). With a network, also how long an epoch takes. Where
the recipe trains on the whole graph: how many bytes travel before each layer, by the format of messages. Of the recipe
of a prepared log with sessions: predict, from the log and the plan of its tables, what each step of deduplication (O3
to O7, section [deduplication]) would save. With a network, also what shorter number formats on the wire (section
[wire]) would save a step of either, less what rounding takes. With --table-bytes, which form each table of a log should
be stored in to fit. With --scale, how training on a graph would go on other numbers of ranks: the graph is cut into as
many parts, rows are counted, a step's work is measured here, and the network is that of --network with as many machines
as it takes; each rank has as many seeds in a step as the recipe's. One process does this: start it without mpirun.
"""

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from windrow.comm.errors import RecipeError
from windrow.launch.commands.arguments import (
    add_network,
    add_ranks_per_machine,
    add_recipe,
    add_table_bytes,
    check_writable,
    fit_tables,
    network_of,
    refuse_form_alone,
    step_work,
    write_json,
    writing,
)
from windrow.launch.recipe_file import read_recipe

if TYPE_CHECKING:
    from windrow.comm.links import Links
    from windrow.gnn.cache_choice import Sampling
    from windrow.gnn.epoch_estimate import StepWork
    from windrow.gnn.partitioned import PartitionedGraph
    from windrow.launch.recipe import Recipe
    from windrow.launch.recommendation_recipe import RecommendationRecipe

__all__ = ["add_arguments", "run"]

EXAMPLES = """\
examples:
  windrow explain examples/tolokers.toml
  windrow explain examples/tolokers.toml --network network.toml --plot explain.png
  windrow explain examples/tolokers.toml --set cache.memory_gib=0.0001 --alphas 0,0.1,0.5
  mpirun -n 2 windrow network --out links.json
  windrow explain examples/tolokers.toml --network links.json --ranks-per-machine 2
  windrow explain examples/coauthor_physics.toml --network examples/network.toml --scale 4,16,64
  windrow explain examples/parquet_log.toml --ranks 4
  windrow explain examples/parquet_log.toml --table-bytes 20000

docs/caching.md, docs/deduplication.md and docs/compression.md say how it is worked out, and what the columns are.
"""

Number = TypeVar("Number", int, float)

OF_CACHES = ("ranks_per_machine", "alphas", "plot", "scale")
OF_LOGS = ("ranks", "rows", "table_bytes", "table_form")
"""Options of one kind of recipe."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its arguments."""
    add_recipe(parser, "whose graph was partitioned, or whose log was prepared", example="cache.policy=degree")
    add_network(parser)
    add_ranks_per_machine(parser)
    parser.add_argument(
        "--alphas", type=_alphas, metavar="A,B,...", help="replication factors to show, for example 0,0.1,0.5"
    )
    parser.add_argument(
        "--scale", type=_ranks, metavar="N,N,...", help="of a graph: how training would go on so many ranks"
    )
    parser.add_argument("--ranks", type=int, metavar="N", help="of a log: how many ranks will train (1)")
    parser.add_argument("--rows", type=int, metavar="N", help="of a log: about the most samples to look at (262144)")
    add_table_bytes(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw the curves (*.png)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all numbers (*.json)")


def run(arguments: argparse.Namespace) -> int:
    """Do it."""
    check_writable(arguments.json, "--json")
    check_writable(arguments.plot, "--plot")
    read_recipe(arguments.recipe, arguments.overrides)
    from windrow.launch.recipe import Recipe, load_any_recipe

    recipe = load_any_recipe(arguments.recipe, arguments.overrides)
    if isinstance(recipe, Recipe):
        _refuse_options(arguments, OF_LOGS, "the recipe of a graph")
        return _explain_caches(recipe, arguments) if arguments.scale is None else _explain_scale(recipe, arguments)
    _refuse_options(arguments, OF_CACHES, "the recipe of a log")
    if arguments.table_bytes is not None:
        return _explain_forms(recipe, arguments)
    refuse_form_alone(arguments)
    return _explain_deduplication(recipe, arguments)


def _explain_forms(recipe: "RecommendationRecipe", arguments: argparse.Namespace) -> int:
    from windrow.recsys.log.store import LogStore
    from windrow.recsys.log_tables import check_store

    store = LogStore.open(recipe.store)
    check_store(recipe, store)
    _, chosen = fit_tables(recipe, store, arguments)
    write_json(arguments.json, [asdict(one) for one in chosen])
    return 0


def _explain_deduplication(recipe: "RecommendationRecipe", arguments: argparse.Namespace) -> int:
    from windrow.comm.wire_savings import saving_rows
    from windrow.recsys.explain_deduplication import describe_deduplication, explain_deduplication, explain_formats
    from windrow.recsys.log_survey import open_and_survey
    from windrow.training.terminal import table

    ranks = 1 if arguments.ranks is None else arguments.ranks
    store, found = open_and_survey(recipe, ranks=ranks, max_rows=arguments.rows)
    explained = explain_deduplication(recipe, store, found, ranks=ranks)
    print(f"{recipe.name}: {describe_deduplication(explained, found, recipe)}")
    links, network = network_of(arguments.network, ranks) if ranks > 1 else (None, "")
    formats = [] if links is None else explain_formats(recipe, store, explained, links)
    if formats:
        rows = saving_rows(formats, recipe.wire)
        print(f"\nshorter formats on the wire, in a step; network: {network}\n\n{table(rows)}")
    write_json(arguments.json, asdict(explained) | {"formats": [asdict(one) for one in formats]})
    return 0


def _explain_caches(recipe: "Recipe", arguments: argparse.Namespace) -> int:
    from windrow.gnn.explain_caches import USUAL_ALPHAS, describe_explanation, explain, write_explanation_plot
    from windrow.gnn.partitioned import PartitionedGraph
    from windrow.partition.store import PartitionStore
    from windrow.training.terminal import byte_size

    parts = PartitionStore.open(recipe.store, verify=False).manifest.num_parts
    if parts == 1:
        raise RecipeError(
            f"{recipe.store} has one part, so that no row is remote: partition the graph into as many parts as there "
            "will be ranks, as in windrow partition RECIPE --parts 4"
        )
    graph = PartitionedGraph.open(recipe.store, rank=0, size=parts, read_features=False)
    links, network = network_of(arguments.network, parts)
    if recipe.full_graph.enabled:
        return _explain_full_graph(recipe, arguments, graph, links, network)
    work, computed = None, ""
    if links is not None:
        work, computed = step_work(graph, recipe, links, arguments.ranks_per_machine)
    found = explain(
        graph,
        recipe.sampling,
        pipelined=recipe.pipeline.depth > 0,
        alphas=arguments.alphas or USUAL_ALPHAS,
        links=links,
        work=work,
    )
    print(f"{recipe.name}: {describe_explanation(found, recipe.sampling, network=network, computed=computed)}")
    if recipe.model.embedding:
        rows = max(one.remote_rows for one in found.curve)
        size = byte_size(2 * 4 * rows * recipe.vertex_table.dim)
        print(
            f"\nrows that are learnt (model.embedding) come on top, whatever the cache, and these times do not count "
            f"them: {rows:,.0f} an epoch and as many gradients, {size} in float32"
        )
    if arguments.plot is not None:
        with writing(arguments.plot, "--plot"):
            write_explanation_plot(found, arguments.plot, title=recipe.name)
        print(f"\nwrote {arguments.plot}")
    write_json(arguments.json, asdict(found))
    return 0


def _explain_scale(recipe: "Recipe", arguments: argparse.Namespace) -> int:
    from windrow.comm.links import described_links
    from windrow.gnn.partitioned import PartitionedGraph
    from windrow.gnn.readers import read_graph
    from windrow.gnn.simulation import describe_scales, simulate
    from windrow.launch.known_links import read_description

    _refuse_options(arguments, ("alphas", "plot"), "other numbers of ranks (--scale)")
    if recipe.full_graph.enabled:
        raise RecipeError("--scale is for minibatches: windrow explain without it says what full-graph training sends")
    if arguments.network is None:
        raise RecipeError("--scale wants a description of the network, --network FILE (*.toml): of one of its machines")
    network, graph = read_description(arguments.network), read_graph(recipe.graph)
    per_rank, found = max(1, recipe.training.batch_size // recipe.partition.num_parts), []
    for ranks in arguments.scale:
        nodes = -(-ranks // network.ranks_per_node)
        described = replace(network, nodes=nodes, ranks_per_node=-(-ranks // nodes), node_rates={})
        links = described_links(described).of_first(ranks)
        sampling = replace(recipe.sampling, batch_size=per_rank * ranks)

        def measure(view: PartitionedGraph, links: "Links" = links, sampling: "Sampling" = sampling) -> "StepWork":
            return step_work(view, recipe, links, arguments.ranks_per_machine, sampling=sampling)[0]

        pipelined = recipe.pipeline.depth > 0
        found.append(simulate(graph, sampling, ranks, links, measure, pipelined=pipelined, partition=recipe.partition))
    about = f"{graph.num_vertices:,} vertices; {per_rank:,} seeds of each rank in a step; network: {arguments.network}"
    print(f"{recipe.name}: {about}\n\n{describe_scales(found)}")
    if recipe.model.embedding:
        print("\nrows that are learnt (model.embedding) and their gradients are not counted: they come on top")
    write_json(arguments.json, [asdict(one) for one in found])
    return 0


def _explain_full_graph(
    recipe: "Recipe", arguments: argparse.Namespace, graph: "PartitionedGraph", links: "Links | None", network: str
) -> int:
    from windrow.gnn.explain_full_graph import describe_full_graph, explain_full_graph

    _refuse_options(arguments, OF_CACHES, "full-graph training")
    columns, numbers = recipe.vertex_table.dim * recipe.model.embedding, 0
    if columns:
        from windrow.launch.recipe import VERTEX_TABLE
        from windrow.recsys.tables.compressed import make_forms
        from windrow.recsys.tables.options import EmbeddingConfig

        forms = make_forms([EmbeddingConfig(graph.num_vertices, columns, VERTEX_TABLE)], recipe.tables)
        numbers = sum(stored.num_cells for form in forms for stored in form.stored)
    found = explain_full_graph(
        graph, recipe.model, recipe.full_graph, links=links, learnt_columns=columns, summed_numbers=numbers
    )
    print(f"{recipe.name}: {describe_full_graph(found, recipe.full_graph, recipe.wire, network=network)}")
    write_json(arguments.json, asdict(found))
    return 0


def _refuse_options(arguments: argparse.Namespace, names: tuple[str, ...], recipe: str) -> None:
    for name in names:
        if getattr(arguments, name) is not None:
            raise RecipeError(
                f"--{name.replace('_', '-')} says nothing about {recipe}, {arguments.recipe}: leave it out"
            )


def _alphas(text: str) -> list[float]:
    """Of the command line."""
    return _numbers(text, float, 0, "numbers, as in 0,0.1,0.5")


def _ranks(text: str) -> list[int]:
    """Of the command line."""
    return _numbers(text, int, 1, "whole numbers, as in 8,64,512")


def _numbers(text: str, kind: type[Number], least: int, wanted: str) -> list[Number]:
    try:
        values = [kind(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give {wanted}") from None
    if not all(least <= value < float("inf") for value in values):
        raise argparse.ArgumentTypeError(f"{text!r}: numbers from {least}")
    return values
