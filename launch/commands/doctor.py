"""``windrow doctor``: what works on this machine."""

import argparse

from windrow.launch.commands.arguments import Commands, refuse_several_processes, subcommand

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  windrow doctor
  windrow doctor > doctor.txt

ok: it works; warning: it works, but not well; missing: it does not work. What would cure it stands below.
Exit status: 1 where training cannot work, else 0.
"""


def add_parser(commands: Commands) -> None:
    """Declare the subcommand."""
    subcommand(
        commands,
        "doctor",
        run,
        help="say what works on this machine, and what would cure what does not",
        description="Look at Python, PyTorch, MPI and its launcher (two ranks are started), cores, memory, GPUs, the "
        "place of compiled kernels, optional libraries and emulated hosts. Takes some seconds; start it without "
        "mpirun.",
        epilog=EXAMPLES,
    )


def run(_: argparse.Namespace) -> int:
    """Do it."""
    refuse_several_processes("windrow doctor")
    from windrow.launch.doctor import CHECKS, examine

    text, works = examine(CHECKS)
    print(text)
    return int(not works)
