"""``windrow cluster``: run a command on emulated hosts with links of a given rate.

Run a command on emulated hosts: what it starts through mpirun is spread over them, and talks TCP over links that have
the rates given. Before each use a ping-pong over the links proves that; what it found is printed in one line.

Hosts are network namespaces of this machine with a switch between them. They share its processors, memory and files;
the links add no latency. When the command ends, or windrow cluster is ended in any way, nothing is left of them.

Needs Linux, iproute2, MPICH's mpirun, and root or the right to make user namespaces.
"""

import argparse

from windrow.comm.errors import ClusterError

__all__ = ["add_arguments", "run"]

EXAMPLES = """\
examples:
  windrow cluster --hosts 4 --rate 1gbit -- mpirun -n 4 windrow train examples/tolokers.toml
  windrow cluster --hosts 2 --rate 10gbit,100mbit -- mpirun -n 2 python script.py
  windrow cluster --hosts 4 --rate unlimited -- bash
  sudo env PATH="$PATH" windrow cluster --hosts 4 --rate 1gbit -- mpirun -n 8 windrow train examples/tolokers.toml

rates: a number with its unit (100mbit, 1gbit, 2.5gbit, 10gbit) or unlimited; one for all hosts, or one for each.
More ranks than hosts are dealt out in turn. Exit status: that of the command; 2 where there is no cluster to run it on.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its arguments."""
    parser.usage = "windrow cluster [-h] --hosts N --rate RATE[,RATE...] -- COMMAND [ARGUMENT ...]"
    parser.add_argument("--hosts", type=int, required=True, metavar="N", help="number of hosts, 2 or more")
    parser.add_argument(
        "--rate", required=True, metavar="RATE[,RATE...]", help="of each host's link, in each direction"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="what to run, after --")


def run(arguments: argparse.Namespace) -> int:
    """Do it."""
    from windrow.launch.cluster.network import make_options
    from windrow.launch.cluster.run import run_in_cluster

    options = make_options(arguments.hosts, arguments.rate)
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise ClusterError("no command to run: give it after --, as in windrow cluster ... -- mpirun -n 4 ...")
    return run_in_cluster(options, command)
