"""What several commands ask in the same way."""

import argparse
import re

from windrow.comm.errors import RecipeError
from windrow.comm.launcher import launched_size

__all__ = ["add_overrides", "byte_count", "refuse_several_processes"]

BYTE_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
"""Binary units, as results show them."""


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


def byte_count(text: str) -> int:
    """Bytes of an argument such as ``2GiB``, for the ``type`` of an option.

    Args:
        text: a number, with a fraction or not, and one of the units KiB, MiB, GiB and TiB or none.

    Raises:
        argparse.ArgumentTypeError: it is something else.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]iB)?", text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a number of bytes, such as 2GiB or 512MiB (KiB, MiB, GiB, TiB)"
        )
    return int(float(found[1]) * BYTE_UNITS[found[2] or ""])


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
