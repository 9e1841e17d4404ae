"""The ``windrow`` command."""

import argparse
import difflib
import gc
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Never

from windrow.comm.errors import RecipeError, WindrowError, from_here
from windrow.comm.launcher import launched_rank, launched_size

__all__ = ["COMMANDS", "build_parser", "main"]

DESCRIPTION = "Distributed training of graph neural networks and recommendation models, launched by mpirun."
EXAMPLES = """\
examples:
  windrow init log clicks.parquet
  windrow partition examples/tolokers.toml --parts 2
  mpirun -n 2 windrow train examples/tolokers.toml
  mpirun -n 2 windrow predict runs/tolokers-1
  windrow prepare examples/open_bandit.toml
  windrow report runs/tolokers-1
  windrow doctor
  windrow train --help
"""
COMMANDS = (
    *("init", "partition", "cluster-log", "prepare", "generate-log", "groups", "plan", "pretrain-cost", "explain"),
    *(
        "train",
        "profile",
        "sweep",
        "predict",
        "recommend",
        "evaluate",
        "export",
        "network",
        "report",
        "doctor",
        "completion",
    ),
)
"""In the order in which the help shows them; each is a module of `windrow.launch.commands`."""

COLLECTIVE = ("train", "profile", "sweep", "predict", "recommend", "evaluate", "network", "partition", "prepare")
"""Those that ranks do together; the others are the work of one process."""

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
    """The parser of the command line; each subcommand sets ``run`` to the function that does it.

    What is said of a subcommand is the docstring of its module: its first line in the list of commands, the rest in its
    own help, with its ``EXAMPLES``.
    """
    as_it_stands = argparse.RawDescriptionHelpFormatter
    parser = RankAwareParser(prog="windrow", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=as_it_stands)
    parser.add_argument("--version", action="version", version=f"windrow {version('windrow')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = import_module(f"windrow.launch.commands.{name.replace('-', '_')}")
        summary, _, description = (module.__doc__ or "").partition(": ")[2].partition(".\n\n")
        inner = commands.add_parser(
            name, help=summary, description=description, epilog=module.EXAMPLES, formatter_class=as_it_stands
        )
        inner.set_defaults(run=module.run, name=name)
        module.add_arguments(inner)
    return parser


def _refuse_unknown_command(name: str) -> None:
    if name not in COMMANDS and not name.startswith("-"):
        nearest = difflib.get_close_matches(name, COMMANDS, n=1)
        meant = f"Did you mean {nearest[0]!r}? " if nearest else ""
        raise RecipeError(f"no command {name!r}. {meant}Commands: {', '.join(COMMANDS)}")


def _refuse_several_processes(arguments: argparse.Namespace) -> None:
    is_alone = arguments.name not in COLLECTIVE or getattr(arguments, "describe", None) is not None
    if is_alone and launched_size() > 1:
        raise RecipeError(
            f"windrow {arguments.name} is the work of one process, but the launcher started {launched_size()}: run it "
            "without mpirun"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: the arguments; those of the process by default.

    Returns:
        Exit status: 0, or 2 after an error that the user can cure, which rank 0 prints in one line.
    """
    # By default Python looks through all objects whenever there are a quarter more: a quarter of the time in which
    # PyTorch, FBGEMM and torchrec are imported, whose objects all stay. Young objects are collected as often as before.
    gc.set_threshold(*gc.get_threshold()[:2], 1000)
    argv = sys.argv[1:] if argv is None else argv
    try:
        if argv:
            _refuse_unknown_command(argv[0])
        arguments = build_parser().parse_args(argv)
        _refuse_several_processes(arguments)
        status: int = arguments.run(arguments)
    except WindrowError as error:
        if launched_rank() == 0:
            print(f"windrow: error: {from_here(str(error))}", file=sys.stderr)
        return WRONG_USE
    except KeyboardInterrupt:
        return INTERRUPTED
    return status
