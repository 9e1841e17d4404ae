"""What several commands ask in the same way."""

import argparse

from windrow.comm.errors import RecipeError
from windrow.comm.launcher import launched_size

__all__ = ["add_overrides", "refuse_several_processes"]


def add_overrides(parser: argparse.ArgumentParser, *, example: str) -> None:
    """Declare ``--set``, which fills ``overrides`` with a list of texts.

    Args:
        parser: of the command.
        example: a setting that fits the command, for the help.
    """
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        dest="overrides",
        help=f"change a setting of the recipe, for example {example}; may be repeated",
    )


def refuse_several_processes(command: str) -> None:
    """Refuse to run under a launcher.

    Args:
        command: what one process does, for example "windrow plan".

    Raises:
        RecipeError: a launcher started several processes.
    """
    if launched_size() > 1:
        raise RecipeError(
            f"{command} is the work of one process, but the launcher started {launched_size()}: run it without mpirun"
        )
