"""Rows found at home, and bytes from rank to rank as a heat map.

At home are a rank's own rows and those in its cache; other rows travel. The heat map is of all stages or of one.
"""

import statistics
from collections.abc import Sequence
from typing import Any

from windrow.launch.epoch_cost import RankCost
from windrow.launch.report.panel import (
    MUTED,
    Panel,
    Section,
    View,
    axis,
    byte_unit,
    exact_bytes,
    layout,
    line_mode,
    plain,
    run_title,
    series_colour,
    whole_ticks,
)
from windrow.launch.report.read_run import (
    ReportedRun,
    cache_hit_rate,
    home_share,
    mean_traffic,
    traffic_stages,
)
from windrow.launch.terminal import byte_size

__all__ = ["heat_map", "locality_section", "traffic_section"]


def locality_section(runs: Sequence[ReportedRun]) -> Section:
    """One panel per run.

    Args:
        runs: at least one.
    """
    return Section(
        name="locality",
        title="Rows found at home",
        lead="Of the rows of features or embeddings that a rank needed, the share that it had itself: its own ones, "
        "and copies in its cache where it has one (ranks.jsonl). The rest travelled.",
        panels=[_locality_panel(run, run_title(run.name, len(runs))) for run in runs],
    )


def _locality_panel(run: ReportedRun, title: str) -> Panel:
    if not run.rank_epochs:
        return Panel(
            title=title,
            missing="Not recorded: this run has no ranks.jsonl, which older versions did not write.",
        )
    everyone = [rank for ranks in run.rank_epochs.values() for rank in ranks]
    share = home_share(everyone)
    if share is None:
        return Panel(title=title, missing="No rows were asked for.")
    hits = cache_hit_rate(everyone)
    note = f"{share:.2%} over all ranks and epochs."
    if hits is not None:
        note += f" Of the rows of other ranks, {hits:.2%} were in the cache."
    return Panel(
        title=title,
        description=f"Share of rows found at home in {run.name}: {share:.1%} over all ranks and epochs.",
        views=[_locality_by_rank(list(run.rank_epochs.values())), _locality_by_epoch(run)],
        note=note,
    )


def _locality_by_rank(epochs: Sequence[Sequence[RankCost]]) -> View:
    size = len(epochs[-1])
    columns = [[ranks[rank] for ranks in epochs if rank < len(ranks)] for rank in range(size)]
    kinds = [
        ("its own", [sum(cost.rows_local for cost in column) for column in columns], 2),
        ("in the cache", [sum(cost.rows_cached for cost in column) for column in columns], 0),
        ("from another rank", [sum(cost.rows_remote for cost in column) for column in columns], 5),
    ]
    totals = [sum(rows) for rows in zip(*(rows for _, rows, _ in kinds), strict=True)]
    names = [str(rank) for rank in range(size)]
    bars = [
        (name, [100 * each / max(total, 1) for each, total in zip(rows, totals, strict=True)], rows, colour)
        for name, rows, colour in kinds
        if any(rows) or name != "in the cache"
    ]
    data = [
        {
            "type": "bar",
            "name": name,
            "x": names,
            "y": percent,
            "customdata": [f"{rows:,} rows" for rows in counts],
            "hovertemplate": "rank %{x}, " + name + ": %{y:.2f} %, %{customdata}<extra></extra>",
            "marker": {"color": series_colour(colour)},
        }
        for name, percent, counts, colour in bars
    ]
    return View(
        label="by rank, all epochs",
        data=data,
        layout=layout(
            x=axis("rank", type="category", showgrid=False),
            y=axis("share of rows (%)", range=[0, 100]),
            barmode="stack",
            bargap=0.35,
        ),
    )


def _locality_by_epoch(run: ReportedRun) -> View:
    epochs: list[int] = []
    best, together, worst = [], [], []
    hit_epochs: list[int] = []
    hits = []
    for epoch, ranks in run.rank_epochs.items():
        share = home_share(ranks)
        if share is not None:
            each = [own for own in (home_share([rank]) for rank in ranks) if own is not None]
            epochs.append(epoch)
            best.append(100 * max(each))
            together.append(100 * share)
            worst.append(100 * min(each))
        rate = cache_hit_rate(ranks)
        if rate is not None:
            hit_epochs.append(epoch)
            hits.append(100 * rate)
    curves = [
        ("best rank", epochs, best, 4, "dot"),
        ("all ranks", epochs, together, 2, "solid"),
        ("worst rank", epochs, worst, 5, "dot"),
        ("hit rate of the cache", hit_epochs, hits, 0, "dash"),
    ]
    data = [
        {
            "type": "scatter",
            "mode": line_mode(len(places)),
            "name": name,
            "x": places,
            "y": percent,
            "line": {"color": series_colour(colour), "dash": dash},
            "hovertemplate": name + ", epoch %{x}: %{y:.2f} %<extra></extra>",
        }
        for name, places, percent, colour, dash in curves
        if places
    ]
    return View(
        label="by epoch",
        data=data,
        layout=layout(x=axis("epoch", **whole_ticks(epochs)), y=axis("share of rows (%)", range=[0, 100.5])),
    )


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
        panels=[_traffic_panel(run, run_title(run.name, len(runs))) for run in runs],
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


def _traffic_panel(run: ReportedRun, title: str) -> Panel:
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
