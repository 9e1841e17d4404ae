"""The page of all results, for people who read the repository: written by a program, never by hand.

python -m benchmarks.harness.markdown [FOLDER]
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.result import BenchmarkResult, read_result
from windrow.comm.errors import DataError, WindrowError
from windrow.partition.atomic_writes import write_atomically

__all__ = ["PAGE", "main", "read_results", "results_page"]

PAGE = "README.md"
"""Name of the page in a folder of results: what code hosts show below the list of files."""

FOLDER = Path("benchmarks") / "results"

INTRODUCTION = """\
# Results of the benchmarks

Written by `make bench` and `make bench-full` from the files beside this page, which hold every sample; the short form
of a benchmark has its own file. What the figures mean is in [docs/benchmarks.md](../../docs/benchmarks.md).
"""

COMMIT_DIGITS = 10
"""Of a commit's hash: enough to find it in any repository of this size."""


def read_results(folder: Path) -> list[BenchmarkResult]:
    """Read all results of a folder.

    Args:
        folder: that holds one ``.json`` file for each result.

    Returns:
        By name of their files.

    Raises:
        DataError: there is no such folder.
        StoreError: a file is damaged, or named after another benchmark.
    """
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}: run a benchmark, or name the folder that its result is in")
    results = []
    for path in sorted(folder.glob("*.json")):
        result = read_result(path)
        if path.name != result.file_name:
            raise DataError(f"{path} holds the result {result.file_name}: give it that name, or remove it")
        results.append(result)
    return results


def results_page(results: Sequence[BenchmarkResult]) -> str:
    """The page as Markdown: one table of all, then aims, figures, comparisons and tables of each, in this order."""
    overview = _table(
        ("benchmark", "aims met", "figures", "date", "commit", "hardware"),
        [
            (
                f"[{result.title}](#{_anchor(result)})",
                f"{sum(aim.met for aim in result.aims.values())} of {len(result.aims)}"
                if result.aims
                else "none stated",
                f"[{len(result.figures)}]({result.file_name})",
                result.date[:10],
                _short_commit(result.commit),
                result.hardware,
            )
            for result in results
        ],
    )
    return "\n".join([INTRODUCTION, overview, *map(_section, results)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page of a folder of results; exit status 2 where a result cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.harness.markdown", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER, help=f"default: {FOLDER}")
    folder: Path = parser.parse_args(arguments).folder
    try:
        page = results_page(read_results(folder))
    except WindrowError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    write_atomically(folder / PAGE, page.encode())
    print(folder / PAGE)
    return 0


def _section(result: BenchmarkResult) -> str:
    parts = [f"## {result.title}", f"`{result.command}`"]
    parts.append("\n".join(f"- {'met' if aim.met else '**missed**'}: {aim.text}" for aim in result.aims.values()))
    parts.append(_table(("figure", "value"), [(key, f"{value:.6g}") for key, value in result.figures.items()]))
    for setting, comparison in result.comparisons.items():
        parts += [f"{setting}, seconds per {comparison.per}:", _rows(comparison.rows())]
    for title, table in result.tables.items():
        parts += [f"{title}:", _rows(table.to_rows())]
    for title, matrix in result.matrices.items():
        numbers = [{"from": place} | dict(enumerate(row)) for place, row in enumerate(matrix.values)]
        parts += [f"{title}, {matrix.unit} (from rank, to rank):", _rows(numbers)]
    return "\n" + "\n\n".join(part for part in parts if part) + "\n"


def _rows(rows: Sequence[Mapping[Any, object]]) -> str:
    return _table([str(name) for name in rows[0]], [[_number(value) for value in row.values()] for row in rows])


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(word.replace("|", "\\|") for word in line) + " |" for line in lines) + "\n"


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _anchor(result: BenchmarkResult) -> str:
    """The link that code hosts make of a heading: lower case, blanks to hyphens, no brackets."""
    return result.title.lower().replace(" ", "-").replace("(", "").replace(")", "")


def _short_commit(commit: str) -> str:
    digest, *rest = commit.split("-")
    return "-".join([digest[:COMMIT_DIGITS], *rest])


if __name__ == "__main__":
    sys.exit(main())
