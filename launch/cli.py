"""The ``windrow`` command."""

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Never

from windrow.comm.errors import WindrowError
from windrow.comm.launcher import launched_rank
from windrow.launch.commands import (
    cluster,
    cluster_log,
    evaluate,
    explain,
    export,
    generate_log,
    groups,
    init,
    network,
    partition,
    plan,
    predict,
    prepare,
    report,
    train,
)

__all__ = ["build_parser", "main"]

DESCRIPTION = "Distributed training of graph neural networks and recommendation models, launched by mpirun."
EXAMPLES = """\
examples:
  windrow init log clicks.parquet
  windrow partition examples/tolokers.toml --parts 2
  windrow explain examples/tolokers.toml
  mpirun -n 2 windrow train examples/tolokers.toml
  mpirun -n 2 windrow predict runs/tolokers-1
  windrow generate-log stores/log.parquet --recipe stores/generated.toml
  windrow cluster-log clicks.parquet --output clustered --by session --time shown_at
  windrow prepare examples/open_bandit.toml
  mpirun -n 2 windrow train examples/open_bandit.toml
  windrow cluster --hosts 4 --rate 1gbit -- mpirun -n 4 windrow train examples/tolokers.toml
  mpirun -n 4 windrow network
  windrow report runs/tolokers-1
  windrow train --help
"""
WRONG_USE = 2
INTERRUPTED = 130


class RankAwareParser(argparse.ArgumentParser):
    """Prints what is wrong with the command line once, not once per rank."""

    def error(self, message: str) -> Never:
        """Print usage and message on rank 0; exit with status 2 on every rank."""
        if launched_rank() == 0:
            super().error(message)
        sys.exit(WRONG_USE)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command line; each subcommand sets ``run`` to the function that does it."""
    parser = RankAwareParser(
        prog="windrow", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"windrow {version('windrow')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (
        init,
        partition,
        cluster_log,
        prepare,
        generate_log,
        groups,
        plan,
        explain,
        train,
        predict,
        evaluate,
        export,
        cluster,
        network,
        report,
    ):
        command.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: the arguments; those of the process by default.

    Returns:
        Exit status: 0, or 2 after an error that the user can cure, which rank 0 prints in one line.
    """
    arguments = build_parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
    except WindrowError as error:
        if launched_rank() == 0:
            print(f"windrow: error: {error}", file=sys.stderr)
        return WRONG_USE
    except KeyboardInterrupt:
        return INTERRUPTED
    return status
