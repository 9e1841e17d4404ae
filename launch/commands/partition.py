"""``windrow partition``: split a graph and write a partition store.

Read a graph, split it into one part for each rank, put the vertices first that minibatches of its rank will need most
(of the recipe's sampler.fanouts and training.batch_size, or of their defaults), and write a partition store. A graph
that is too large for one process is split by several, started by mpirun: by streaming (--method fennel), from an edge
list that they read in shares, vertices of a part in the user's order.
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from windrow.comm.connect import connect, ending_all_ranks
from windrow.comm.errors import RecipeError
from windrow.comm.launcher import launched_size
from windrow.launch.commands.arguments import LONG_DEADLINE_S, add_overrides
from windrow.launch.recipe_file import read_recipe
from windrow.launch.settings import parse_settings, with_overrides

if TYPE_CHECKING:
    from windrow.gnn.partitioning import PartitionJob

__all__ = ["add_arguments", "run"]

EXAMPLES = """\
examples:
  windrow partition examples/tolokers.toml
  windrow partition examples/tolokers.toml --parts 4 --out stores/tolokers-4
  windrow partition --graph edges.csv --parts 8 --out stores/mine --method fennel
  windrow partition examples/tolokers.toml --set partition.order=original
  mpirun -n 4 windrow partition --graph edges.csv --parts 8 --out stores/mine --method fennel
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its arguments."""
    parser.add_argument(
        "recipe", type=Path, nargs="?", metavar="RECIPE", help="recipe (*.toml) that names graph and store"
    )
    parser.add_argument("--graph", type=Path, metavar="PATH", help="graph to split, instead of a recipe; needs --out")
    parser.add_argument("--out", type=Path, metavar="STORE", help="folder to write, instead of the recipe's store")
    parser.add_argument("--parts", type=int, metavar="K", help="number of parts: one for each rank that will train")
    parser.add_argument("--method", metavar="NAME", help="metis, fennel or random")
    parser.add_argument("--seed", type=int, metavar="N", help="of everything random in the partitioner")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing store")
    add_overrides(parser, example="graph.split=3")


def run(arguments: argparse.Namespace) -> int:
    """Do it. Collective: every process that the launcher started calls it, with the same arguments."""
    if launched_size() == 1:
        job = _job(arguments)
        from windrow.gnn.partitioning import partition_to_store
        from windrow.training.terminal import make_progress

        with make_progress(rank=0) as progress:
            partition_to_store(job, overwrite=arguments.overwrite, progress=progress)
        return 0
    with ending_all_ranks():
        job = _job(arguments)
        from windrow.gnn.distributed_partitioning import check_job_on_ranks, partition_to_store_on_ranks
        from windrow.training.terminal import make_progress

        check_job_on_ranks(job, overwrite=arguments.overwrite)
    # Nothing that is freed comes again in the same size, and arrays that grow in place need mappings of their own.
    with connect(deadline_s=LONG_DEADLINE_S, keep_memory=False) as world, make_progress(rank=world.rank) as progress:
        partition_to_store_on_ranks(job, world, overwrite=arguments.overwrite, progress=progress)
    return 0


def _job(arguments: argparse.Namespace) -> "PartitionJob":
    if (arguments.recipe is None) == (arguments.graph is None):
        raise RecipeError("name the graph to split: either a recipe, or --graph PATH with --out STORE")
    overrides = _overrides(arguments)
    if arguments.recipe is not None:
        read_recipe(arguments.recipe, overrides, kind="graph")
    elif arguments.out is None:
        raise RecipeError("--graph needs --out STORE, the folder to write")
    from windrow.gnn.partitioning import PartitionJob
    from windrow.launch.recipe import load_recipe

    if arguments.recipe is not None:
        return load_recipe(arguments.recipe, overrides)
    values = with_overrides({"graph": {"path": str(arguments.graph.absolute())}}, overrides)
    return parse_settings(PartitionJob, values, source="the command line", base=Path.cwd())


def _overrides(arguments: argparse.Namespace) -> list[str]:
    """The options of the command line as ``--set`` texts, which win over ``--set`` itself; JSON quotes as TOML does."""
    given = {
        "store": None if arguments.out is None else json.dumps(str(arguments.out), ensure_ascii=False),
        "partition.num_parts": arguments.parts,
        "partition.method": None if arguments.method is None else json.dumps(arguments.method, ensure_ascii=False),
        "partition.seed": arguments.seed,
    }
    return [*arguments.overrides, *(f"{name}={value}" for name, value in given.items() if value is not None)]
