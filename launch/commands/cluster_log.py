"""``windrow cluster-log``: write a log anew with the rows of a session together, in order of time.

Read a log in Parquet, of any size and with any columns, and write it as Parquet files in which all rows of a session
are in one file, next to one another, in order of time. It takes less room so, and training can compute what a session
repeats once (RecD). One process does this: start it without mpirun.
"""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from windrow.comm.launcher import launched_rank
from windrow.launch.commands.arguments import byte_count

if TYPE_CHECKING:
    from windrow.recsys.log.clustering.cluster_log import ClusterSummary

__all__ = ["add_arguments", "run"]

EXAMPLES = """\
examples:
  windrow cluster-log clicks.parquet --output clustered --by session --time shown_at
  windrow cluster-log logs/2024-05 --output clustered/2024-05 --by session --time shown_at --memory 8GiB --files 64
  windrow cluster-log "logs/*.parquet" --output sharded --by session --no-sort
"""
DEFAULT_MEMORY_BYTES = 2 << 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its arguments."""
    parser.add_argument(
        "inputs",
        nargs="+",
        type=Path,
        metavar="INPUT",
        help='Parquet file, pattern such as "logs/*.parquet", or folder of *.parquet',
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="folder to write; appears whole or not at all"
    )
    parser.add_argument(
        "--by", required=True, metavar="COLUMN", help="column of sessions: whole numbers, text or bytes"
    )
    order = parser.add_mutually_exclusive_group(required=True)
    order.add_argument(
        "--time", default="", metavar="COLUMN", help="column of times, which order the rows of a session"
    )
    order.add_argument(
        "--no-sort",
        action="store_true",
        help="deal sessions to files, but leave the rows of a file in the order of the log",
    )
    parser.add_argument(
        "--memory",
        type=byte_count,
        default=DEFAULT_MEMORY_BYTES,
        metavar="BYTES",
        help="what may be held in memory beside the program itself, at least 256MiB; 2GiB by default",
    )
    parser.add_argument(
        "--files", type=int, metavar="N", help="files to write; one to each 256 MiB of the log by default"
    )
    parser.add_argument(
        "--row-group-rows",
        type=int,
        metavar="N",
        help="the most rows of a row group; as many as take 32 MiB in memory by default, up to 65536",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a clustered log that is there")


def run(arguments: argparse.Namespace) -> int:
    """Do it."""
    from windrow.recsys.log.clustering.cluster_log import ClusterOptions, cluster_log
    from windrow.training.terminal import duration, make_progress

    options = ClusterOptions(
        inputs=tuple(arguments.inputs),
        output=arguments.output,
        by=arguments.by,
        time=arguments.time,
        files=arguments.files,
        row_group_rows=arguments.row_group_rows,
        memory_bytes=arguments.memory,
        overwrite=arguments.overwrite,
    )
    started = time.perf_counter()
    with make_progress(rank=launched_rank()) as progress:
        summary = cluster_log(options, progress=progress.report)
        progress.finish()
        for line in _lines(arguments.output, summary):
            progress.write(line)
        progress.write(f"clustered in {duration(time.perf_counter() - started)}")
    return 0


def _lines(output: Path, summary: "ClusterSummary") -> list[str]:
    from windrow.training.terminal import byte_size

    sizes = f"{byte_size(summary.bytes_before)} before, {byte_size(summary.bytes_after)} after"
    ratio = summary.bytes_before / summary.bytes_after
    change = f"{ratio:.2f} times smaller" if ratio >= 1 else f"{1 / ratio:.2f} times larger"
    return [
        f"{output}: {summary.files} files, {summary.row_groups} row groups",
        f"{summary.rows} rows of {summary.sessions} sessions, {summary.rows / summary.sessions:.2f} rows to a session",
        f"{sizes}: {change}",
    ]
