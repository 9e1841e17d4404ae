"""Run a command on emulated hosts with links of a given rate.

What the command starts through mpirun is spread over the hosts, and talks TCP over links that have the rates given.
Before each use a ping-pong over the links proves that; what it found is printed in one line.

Hosts are network namespaces of this machine with a switch between them. They share its processors, memory and files;
the links add no latency. When the command ends, or this one is ended in any way, nothing is left of them.

Needs Linux, iproute2, MPICH's mpirun, and root or the right to make user namespaces.
"""

import argparse
import sys
from collections.abc import Sequence

from benchmarks.emulated_cluster.network import ClusterError, make_options
from benchmarks.emulated_cluster.run import run_in_cluster

__all__ = ["main"]

PROGRAM = "python -m benchmarks.emulated_cluster"

EXAMPLES = f"""\
examples:
  {PROGRAM} --hosts 4 --rate 1gbit -- mpirun -n 4 windrow train examples/tolokers.toml
  {PROGRAM} --hosts 2 --rate 10gbit,100mbit -- mpirun -n 2 python script.py
  {PROGRAM} --hosts 4 --rate unlimited -- bash
  sudo env PATH="$PATH" {PROGRAM} --hosts 4 --rate 1gbit -- mpirun -n 8 windrow train examples/tolokers.toml

rates: a number with its unit (100mbit, 1gbit, 2.5gbit, 10gbit) or unlimited; one for all hosts, or one for each.
More ranks than hosts are dealt out in turn. Exit status: that of the command; 2 where there is no cluster to run it on.
"""

FAILED = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command in a cluster; `argv` is by default what this process was started with. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [-h] --hosts N --rate RATE[,RATE...] -- COMMAND [ARGUMENT ...]",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--hosts", type=int, required=True, metavar="N", help="number of hosts, 2 or more")
    parser.add_argument(
        "--rate", required=True, metavar="RATE[,RATE...]", help="of each host's link, in each direction"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="what to run, after --")
    arguments = parser.parse_args(argv)
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        parser.error("no command to run: give it after --, as in ... -- mpirun -n 4 ...")
    try:
        options = make_options(arguments.hosts, arguments.rate)
        return run_in_cluster(options, command)
    except ClusterError as error:
        print(f"emulated_cluster: error: {error}", file=sys.stderr)
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
