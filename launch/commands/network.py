"""``windrow network``: measure links between ranks, and predict collectives.

Show latency and bandwidth of every ordered pair of ranks, and how long all-to-all and all-reduce should take with them.
Links are measured once for a set of hosts (about two seconds for each pair, on machines that do nothing else) and kept
in ~/.cache/windrow/links. With --describe: of a network that is not there, without mpirun.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from windrow.comm.connect import ending_all_ranks
from windrow.comm.errors import RecipeError
from windrow.comm.launcher import launched_size
from windrow.launch.commands.arguments import check_writable, writing

if TYPE_CHECKING:
    from windrow.comm.links import Links

__all__ = ["add_arguments", "run"]

EXAMPLES = """\
examples:
  mpirun -n 4 windrow network
  mpirun -n 4 windrow network --measure --out links.json
  windrow network --describe examples/network.toml

docs/network.md says what the tables mean, and examples/network.toml what a description can hold.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its arguments."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--measure", action="store_true", help="measure anew, though links of these hosts are known")
    source.add_argument(
        "--describe", type=Path, metavar="FILE", help="description of a network (*.toml) instead of this one"
    )
    parser.add_argument(
        "--backend",
        choices=("auto", "mpi", "gloo", "nccl"),
        default="auto",
        help="what ranks communicate through, as run.backend of the recipe that is to know these links (default: auto)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the links (*.json)")


def run(arguments: argparse.Namespace) -> int:
    """Do it. Collective, unless a network is described: every process that the launcher started calls it."""
    with ending_all_ranks():
        check_writable(arguments.out)
    from windrow.launch.known_links import cache_folder, known_links, read_network

    if arguments.describe is not None:
        _show(read_network(arguments.describe), f"described in {arguments.describe}", arguments.out)
        return 0
    if launched_size() == 1:
        raise RecipeError(
            "one rank has no links: start several, as in mpirun -n 4 windrow network, or describe a network by "
            "--describe FILE"
        )
    from windrow.comm.hosts import gather_hosts
    from windrow.launch.rank_process import RunOptions, joined_job

    options = RunOptions(backend=arguments.backend, device="cuda" if arguments.backend == "nccl" else "cpu")
    with joined_job(options) as (world, _):
        links, source = known_links(world, hosts=gather_hosts(world), folder=cache_folder(), measure=arguments.measure)
        if world.rank == 0:
            _show(links, source, arguments.out)
    return 0


def _show(links: "Links", source: str, out: Path | None) -> None:
    from windrow.comm.links import links_to_json
    from windrow.launch.known_links import link_rows, prediction_rows
    from windrow.training.terminal import table

    hosts = len(set(links.hosts))
    print(f"{links.size} ranks on {hosts} {'host' if hosts == 1 else 'hosts'}; links {source}\n")
    print(table(link_rows(links)))
    print(f"\n{table(prediction_rows(links))}", flush=True)
    if out is not None:
        with writing(out, "--out"):
            out.write_text(links_to_json(links), encoding="utf-8")
