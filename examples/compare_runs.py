"""Put finished runs into one table, with what others report for the same task, and onto one report page.

    python -P examples/compare_runs.py runs/tolokers-1 runs/clicks-1 --out runs/demo.html

Everything comes from the files of the runs, but for the references below.
"""

import argparse
from pathlib import Path

from windrow.launch.cli import main as windrow
from windrow.launch.report.read_run import ReportedRun, read_runs
from windrow.training.epoch_cost import home_share
from windrow.training.terminal import byte_size

REFERENCES = {
    "tolokers": "0.824: GraphSAGE, mean of ten splits (Platonov et al., ICLR 2023)",
    "clicks": "0.82: the best possible, by the probabilities that clicks were drawn with (docs/session-logs.md)",
    "frappe": "0.967: FM, 0.984: DCN-v2, both on 3.5 times the samples (BARS, openbenchmark.github.io)",
}
"""Recipe -> test metric to compare with, and whose it is."""

HEADER = ("run", "metric", "test", "seconds", "local rows", "rows and ids sent", "gradients summed", "reference")


def row(run: ReportedRun) -> tuple[str, ...]:
    """What the table says of a run."""
    told = run.best or run.records[-1]
    local = home_share(run.costs)
    return (
        run.name,
        told.metric,
        "-" if told.test is None else f"{told.test:.3f}",
        f"{sum(record.seconds for record in run.records):.0f}",
        "-" if local is None else f"{local:.0%}",
        byte_size(sum(sum(to_ranks) for cost in run.costs for to_ranks in cost.bytes_sent.values())),
        byte_size(sum(cost.bytes_reduced for cost in run.costs)),
        REFERENCES.get(str(run.recipe.get("name")), "-"),
    )


def main(folders: list[Path], out: Path) -> int:
    """Write the page, then print the table."""
    status = windrow(["report", *map(str, folders), "--out", str(out)])
    if status == 0:
        rows = [HEADER, *map(row, read_runs(folders))]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for cells in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
    return status


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path("report.html"))
    options = parser.parse_args()
    raise SystemExit(main(options.runs, options.out))
