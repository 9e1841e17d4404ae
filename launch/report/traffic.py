"""Bytes from rank to rank as a heat map, of all stages or of one."""

import statistics
from collections.abc import Sequence
from typing import Any

from windrow.launch.formatting import byte_size
from windrow.launch.report.figure import MUTED, axis, byte_unit, exact_bytes, layout, plain, run_title
from windrow.launch.report.panel import Panel, Section, View
from windrow.launch.report.rank_epochs import mean_traffic, traffic_stages
from windrow.launch.report.read_run import ReportedRun

__all__ = ["heat_map", "traffic_section"]

MOST_CELLS_WITH_TEXT = 64
"""More cells are too small for their numbers, which the pointer still shows."""
MOST_CELLS_WITH_EXACT_NUMBERS = 64 * 64
"""More exact numbers would make the page tens of megabytes: beyond, four digits are shown."""
MOST_CELLS_WITH_GAPS = 32 * 32
"""More are so small that gaps between them would make all of them look pale, as if little were sent."""
GAP_PIXELS = 2
CELL_PIXELS = 46
LEAST_HEIGHT, MOST_HEIGHT = 340, 620


def traffic_section(runs: Sequence[ReportedRun]) -> Section:
    """One panel per run.

    Args:
        runs: at least one.
    """
    return Section(
        name="traffic",
        title="Bytes between ranks",
        lead="What each rank (row) sent to each other rank (column) in training steps, per epoch on average over all "
        "epochs (ranks.jsonl). Choose a stage to see it alone.",
        panels=[_panel(run, run_title(run.name, len(runs))) for run in runs],
    )


def heat_map(values: Sequence[Sequence[float]], *, unit: str = "bytes", label: str = "all") -> View:
    """A matrix from sender to receiver.

    Args:
        values: [from, to].
        unit: of the values; bytes are scaled to a readable unit.
        label: the view's.
    """
    largest = max((value for row in values for value in row), default=0.0)
    divisor, shown_unit = byte_unit(largest) if unit == "bytes" else (1.0, unit)
    senders = [str(rank) for rank in range(len(values))]
    receivers = [str(rank) for rank in range(len(values[0]))] if values else []
    cells = len(senders) * len(receivers)
    gap = GAP_PIXELS if cells <= MOST_CELLS_WITH_GAPS else 0
    exact = exact_bytes if unit == "bytes" else lambda value: f"{value:,.6g} {plain(unit)}"
    trace: dict[str, Any] = {
        "type": "heatmap",
        "x": receivers,
        "y": senders,
        "z": [[value / divisor for value in row] for row in values],
        "zmin": 0,
        "zmax": largest / divisor or 1,
        "customdata": [[exact(value) for value in row] for row in values],
        "hovertemplate": "from %{y} to %{x}: %{customdata}<extra></extra>",
        "colorscale": [[0, "var(--heat-low)"], [0.5, "var(--heat-middle)"], [1, "var(--heat-high)"]],
        "colorbar": {
            "title": {"text": plain(shown_unit), "side": "right"},
            "outlinewidth": 0,
            "thickness": 12,
            "tickfont": {"color": MUTED},
        },
        "xgap": gap,
        "ygap": gap,
    }
    if cells > MOST_CELLS_WITH_EXACT_NUMBERS:
        del trace["customdata"]
        trace["hovertemplate"] = f"from %{{y}} to %{{x}}: %{{z:.4~g}} {plain(shown_unit)}<extra></extra>"
    if cells <= MOST_CELLS_WITH_TEXT:
        short = byte_size if unit == "bytes" else lambda value: f"{value:.3g}"
        trace |= {"text": [[short(value) for value in row] for row in values], "texttemplate": "%{text}"}
    return View(
        label=label,
        data=[trace],
        layout=layout(
            x=axis("to rank", type="category", showgrid=False),
            y=axis("from rank", type="category", showgrid=False, autorange="reversed"),
            height=min(MOST_HEIGHT, max(LEAST_HEIGHT, 110 + CELL_PIXELS * len(senders))),
        ),
    )


def _panel(run: ReportedRun, title: str) -> Panel:
    if not run.rank_epochs:
        return Panel(
            title=title,
            missing="Not recorded: this run has no ranks.jsonl, which older versions did not write. metrics.jsonl has "
            f"the sum alone: {byte_size(_mean_fetched(run))} fetched per epoch.",
        )
    stages = traffic_stages(run.rank_epochs)
    if not stages:
        reason = "one rank trained alone" if run.num_ranks == 1 else "all that was needed was at home"
        return Panel(title=title, missing=f"No bytes went from rank to rank: {reason}.")
    views = [heat_map(mean_traffic(run.rank_epochs, stages), label="all stages")]
    views += [heat_map(mean_traffic(run.rank_epochs, [stage]), label=stage) for stage in stages]
    everything = sum(map(sum, mean_traffic(run.rank_epochs, stages)))
    size = run.num_ranks
    reduced = statistics.fmean(
        rank.bytes_reduced for ranks in run.rank_epochs.values() if len(ranks) == size for rank in ranks
    )
    return Panel(
        title=title,
        description=f"Heat map of the bytes that each of {size} ranks of {run.name} sends to each other one.",
        views=views,
        note=f"{byte_size(everything)} per epoch in all. Besides, each rank puts {byte_size(reduced)} of gradients per "
        "epoch into sums over all ranks; the way they take is the communication library's, so they are not in the map.",
    )


def _mean_fetched(run: ReportedRun) -> float:
    return statistics.fmean(record.bytes_fetched for record in run.records)
