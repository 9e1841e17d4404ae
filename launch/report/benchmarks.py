"""Results of benchmarks: aims, ratios with their intervals, byte matrices, metrics.

Ratios are drawn as dots, their intervals as whiskers.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from windrow.comm.errors import StoreError
from windrow.launch.benchmark_result import BenchmarkResult, Comparison, read_result
from windrow.launch.benchmark_result import Table as ResultTable
from windrow.launch.report.panel import MUTED, Panel, Section, Table, chart, plain, shortened
from windrow.launch.report.ranks import heat_map

__all__ = ["benchmark_sections", "read_results"]

MET, MISSED = "met", "missed"


def read_results(paths: Sequence[Path]) -> list[BenchmarkResult]:
    """Read results of benchmarks: files, and folders of which all ``*.json`` files are taken.

    Raises:
        StoreError: a path is not there, a folder holds no result, or a file is not a result.
    """
    files: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            found = sorted(path.glob("*.json"))
            if not found:
                raise StoreError(f"{path} holds no result (*.json): run a benchmark with --save, or make bench")
            files |= dict.fromkeys(found)
        else:
            files[path] = None
    return [read_result(file) for file in files]


def benchmark_sections(results: Sequence[BenchmarkResult]) -> list[Section]:
    """All that each benchmark found; results of the same one, of two commits say, are numbered."""
    found: list[Section] = []
    files = [result.file_name for result in results]
    for place, result in enumerate(results):
        number = files[: place + 1].count(result.file_name) if files.count(result.file_name) > 1 else 0
        found.append(_section(result, number))
    return found


def _section(result: BenchmarkResult, number: int) -> Section:
    form = ", short form" if result.form == "short" else ""
    again = f" ({number})" if number else ""
    figures = [(name, f"{value:,.6g}") for name, value in result.figures.items()]
    panels = [_aims_panel(result)] if result.aims else []
    panels.append(Panel(title="Metrics", table=Table(header=("metric", "value"), rows=figures)))
    panels += [Panel(title=title, table=_table(table)) for title, table in result.tables.items()]
    if any(len(comparison.variants) > 1 for comparison in result.comparisons.values()):
        panels.append(_ratios_panel(result))
    panels += [
        Panel(
            title=title,
            description=f"Heat map: {title}, in {matrix.unit}.",
            views={"all": heat_map(matrix.values, unit=matrix.unit)},
            note=f"Rows send, columns receive; {matrix.unit}.",
        )
        for title, matrix in result.matrices.items()
        if matrix.values and matrix.values[0]
    ]
    versions = ", ".join(f"{name} {version}" for name, version in result.packages.items())
    return Section(
        name=f"benchmark-{result.benchmark}-{result.form}{f'-{number}' if number else ''}".lower().replace("_", "-"),
        title=f"Benchmark: {result.benchmark}{form}{again}",
        lead=f"{result.date}, on {result.hardware}; commit {result.commit}; {versions}. Started by: {result.command}",
        panels=panels,
        packed=True,
    )


def _ratios_panel(result: BenchmarkResult) -> Panel:
    return Panel(
        title="Ratios to the baseline",
        description=f"Dots and whiskers: how many times as fast as its baseline each variant of {result.benchmark} is, "
        "with 95 % intervals.",
        views={"ratios": _ratio_view(result.comparisons)},
        note="Right of the line is faster than the baseline. Whiskers: 95 % bootstrap interval of the median over "
        "interleaved rounds.",
    )


def _aims_panel(result: BenchmarkResult) -> Panel:
    rows = [(aim.text, MET if aim.met else MISSED) for aim in result.aims.values()]
    missed = frozenset((row, 1) for row, (_, state) in enumerate(rows) if state == MISSED)
    reached = sum(state == MET for _, state in rows)
    return Panel(
        title="Aims",
        table=Table(header=("aim", "reached"), rows=rows, marked=missed),
        note=f"{reached} of {len(rows)} met.",
    )


def _table(table: ResultTable) -> Table:
    rows = [
        [f"{cell:.5g}" if isinstance(cell, float) else f"{cell:,}" if type(cell) is int else str(cell) for cell in row]
        for row in table.rows
    ]
    return Table(header=table.columns, rows=rows)


ROW_PIXELS, FRAME_PIXELS = 46, 70
LABEL_SHIFT_PIXELS = 17
MOST_LETTERS = 40


def _ratio_view(comparisons: Mapping[str, Comparison]) -> Any:
    """One row per variant, in groups by setting; labels stand above the dots, so that narrow windows suffice."""
    labels: list[str] = []
    rows: list[dict[str, object]] = []
    for setting, comparison in comparisons.items():
        others = [name for name in comparison.variants if name != comparison.baseline]
        if others:
            labels.append(f"<b>{_short(setting)}</b>, against {_short(comparison.baseline)}")
        for name in others:
            ratio = comparison.ratio(name)
            rows.append(
                {
                    "x": ratio.median,
                    "above": ratio.high - ratio.median,
                    "below": ratio.median - ratio.low,
                    "y": len(labels),
                    "told": f"<b>{plain(name)}</b><br>{plain(setting)}<br>{ratio} times as fast as "
                    f"{plain(comparison.baseline)}<br>"
                    f"median {comparison.variants[name].median_s:.4g} s per {plain(comparison.per)}",
                }
            )
            labels.append(f"{_short(name)}: {ratio}")
    figure = chart(
        "scatter",
        rows,
        x="ratio to the baseline (log scale)",
        y="",
        hover="%{customdata[0]}",
        error_x="above",
        error_x_minus="below",
        log_x=True,
        layout={"height": FRAME_PIXELS + ROW_PIXELS * len(labels)},
    )
    figure.update_traces(marker_size=10, error_x={"thickness": 2, "width": 5})
    figure.update_yaxes(range=[len(labels) - 0.5, -0.8], showticklabels=False, showgrid=False)
    figure.add_vline(1, line={"color": MUTED, "width": 1.5, "dash": "dot"})
    for place, text in enumerate(labels):
        figure.add_annotation(
            xref="paper",
            x=0,
            y=place,
            yshift=LABEL_SHIFT_PIXELS,
            xanchor="left",
            text=text,
            showarrow=False,
            bgcolor="var(--surface)",
            align="left",
        )
    return figure


def _short(name: str) -> str:
    return plain(shortened(name, MOST_LETTERS))
