"""``windrow report``: show runs on one HTML page.

Write one HTML page about runs: curves, seconds per stage, time in communication, bytes between ranks, local rows,
memory, placement, settings. A run that still goes on is shown as far as it has come. One process does this: start it
without mpirun.
"""

import argparse
from pathlib import Path

from windrow.comm.errors import StoreError
from windrow.launch.commands.arguments import writing
from windrow.training.run_folder import open_run_folder

__all__ = ["add_arguments", "run"]

EXAMPLES = """\
examples:
  windrow report runs/tolokers-1
  windrow report runs/tolokers-1 runs/tolokers-2 --out compared.html

The page needs no network and no other file. docs/report.md says what each chart shows.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its arguments."""
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder of a run; any number of them")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="page to write, or to replace; report.html by default",
    )


def run(arguments: argparse.Namespace) -> int:
    """Do it."""
    if arguments.out.is_dir():
        raise StoreError(f"--out {arguments.out} is a folder: name a file in it")
    for folder in arguments.runs:
        open_run_folder(folder)
    from windrow.launch.report.page import build_page
    from windrow.launch.report.read_run import read_runs
    from windrow.partition.atomic_writes import write_atomically
    from windrow.training.terminal import byte_size

    runs = read_runs(arguments.runs)
    page = build_page(runs)
    with writing(arguments.out, "--out"):
        write_atomically(arguments.out, page.encode())
    print(f"{arguments.out}: {len(runs)} run{'s' * (len(runs) > 1)}, {byte_size(arguments.out.stat().st_size)}")
    return 0
