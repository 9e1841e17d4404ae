"""``windrow doctor``: say what works on this machine, and what would cure what does not.

Look at Python, PyTorch, MPI and its launcher (two ranks are started), cores, memory, GPUs, the place of compiled
kernels, optional libraries and emulated hosts. Takes some seconds; start it without mpirun.
"""

import argparse

from windrow.launch.commands.arguments import refuse_several_processes

__all__ = ["add_arguments", "run"]

EXAMPLES = """\
examples:
  windrow doctor
  windrow doctor > doctor.txt

ok: it works; warning: it works, but not well; missing: it does not work. What would cure it stands below.
Exit status: 1 where training cannot work, else 0.
"""


def add_arguments(_: argparse.ArgumentParser) -> None:
    """It has none."""


def run(_: argparse.Namespace) -> int:
    """Do it."""
    refuse_several_processes("windrow doctor")
    from windrow.launch.doctor import CHECKS, examine

    text, works = examine(CHECKS)
    print(text)
    return int(not works)
