"""``windrow report``: show runs and benchmark results on one HTML page.

Write one HTML page about runs: curves, seconds per stage, time in communication, bytes between ranks, rows found at
home, memory, placement, settings; and about results of benchmarks. A run that still goes on is shown as far as it has
come. One process does this: start it without mpirun.
"""

import argparse
from pathlib import Path

from windrow.comm.errors import RecipeError, StoreError
from windrow.launch.commands.arguments import refuse_several_processes, writing
from windrow.training.run_folder import open_run_folder

__all__ = ["add_arguments", "run"]

EXAMPLES = """\
examples:
  windrow report runs/tolokers-1
  windrow report runs/tolokers-1 runs/tolokers-2 --out compared.html
  windrow report runs/open_bandit-1 --benchmarks benchmarks/results
  windrow report --benchmarks benchmarks/results/exchange.json benchmarks/results/reader.json

The page needs no network and no other file: mail it, or open it in any browser. Several runs share the charts of
curves and stand side by side in the others, with a table of the settings in which they differ. docs/report.md says
what each chart shows.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its arguments."""
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN", help="folder of a run; any number of them")
    parser.add_argument(
        "--benchmarks",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE_OR_FOLDER",
        help="results of benchmarks (*.json), or folders of them",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="page to write, or to replace; report.html by default",
    )


def run(arguments: argparse.Namespace) -> int:
    """Do it."""
    refuse_several_processes("windrow report")
    if not arguments.runs and not arguments.benchmarks:
        raise RecipeError("windrow report: nothing to show: name folders of runs, or files after --benchmarks")
    if arguments.out.is_dir():
        raise StoreError(f"--out {arguments.out} is a folder: name a file in it")
    for folder in arguments.runs:
        open_run_folder(folder)
    from windrow.launch.report.benchmarks import read_results
    from windrow.launch.report.page import build_page
    from windrow.launch.report.read_run import read_runs
    from windrow.partition.atomic_writes import write_atomically
    from windrow.training.terminal import byte_size

    runs = read_runs(arguments.runs)
    results = read_results(arguments.benchmarks)
    page = build_page(runs, results)
    with writing(arguments.out, "--out"):
        write_atomically(arguments.out, page.encode())
    counts = {"run": len(runs), "benchmark result": len(results)}
    shown = [f"{number} {what}{'s' * (number > 1)}" for what, number in counts.items() if number]
    print(f"{arguments.out}: {', '.join(shown)}, {byte_size(arguments.out.stat().st_size)}")
    return 0
