"""The share of rows that were found at home, among a rank's own or in its cache."""

from collections.abc import Sequence

from windrow.launch.rank_cost import RankCost
from windrow.launch.report.figure import axis, layout, line_mode, run_title, series_colour, whole_ticks
from windrow.launch.report.panel import Panel, Section, View
from windrow.launch.report.rank_epochs import cache_hit_rate, home_share
from windrow.launch.report.read_run import ReportedRun

__all__ = ["locality_section"]


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
        panels=[_panel(run, run_title(run.name, len(runs))) for run in runs],
    )


def _panel(run: ReportedRun, title: str) -> Panel:
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
        views=[_by_rank(list(run.rank_epochs.values())), _by_epoch(run)],
        note=note,
    )


def _by_rank(epochs: Sequence[Sequence[RankCost]]) -> View:
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


def _by_epoch(run: ReportedRun) -> View:
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
