"""The share of rows that were found at home: the hit rate."""

from collections.abc import Sequence

from windrow.launch.rank_cost import RankCost
from windrow.launch.report.figure import axis, layout, line_mode, run_title, series_colour, whole_ticks
from windrow.launch.report.panel import Panel, Section, View
from windrow.launch.report.rank_epochs import home_share
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
        lead="The hit rate: of the rows of features or embeddings that a rank needed, the share that it had itself "
        "(ranks.jsonl). The rest travelled.",
        panels=[_panel(run, run_title(run.name, len(runs))) for run in runs],
    )


def _panel(run: ReportedRun, title: str) -> Panel:
    if not run.rank_epochs:
        return Panel(
            title=title,
            missing="Not recorded: this run has no ranks.jsonl, which older versions did not write.",
        )
    share = home_share(rank for ranks in run.rank_epochs.values() for rank in ranks)
    if share is None:
        return Panel(title=title, missing="No rows were asked for.")
    return Panel(
        title=title,
        description=f"Share of rows found at home in {run.name}: {share:.1%} over all ranks and epochs.",
        views=[_by_rank(list(run.rank_epochs.values())), _by_epoch(run)],
        note=f"{share:.2%} over all ranks and epochs.",
    )


def _by_rank(epochs: Sequence[Sequence[RankCost]]) -> View:
    size = len(epochs[-1])
    columns = [[ranks[rank] for ranks in epochs if rank < len(ranks)] for rank in range(size)]
    shares = [home_share(column) or 0.0 for column in columns]
    local = [sum(cost.rows_local for cost in column) for column in columns]
    remote = [sum(cost.rows_remote for cost in column) for column in columns]
    names = [str(rank) for rank in range(size)]
    bars = [
        ("at home", [100 * share for share in shares], local, series_colour(2)),
        ("from another rank", [100 * (1 - share) for share in shares], remote, series_colour(5)),
    ]
    data = [
        {
            "type": "bar",
            "name": name,
            "x": names,
            "y": percent,
            "customdata": [f"{rows:,} rows" for rows in counts],
            "hovertemplate": "rank %{x}, " + name + ": %{y:.2f} %, %{customdata}<extra></extra>",
            "marker": {"color": colour},
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
    for epoch, ranks in run.rank_epochs.items():
        share = home_share(ranks)
        if share is not None:
            each = [own for own in (home_share([rank]) for rank in ranks) if own is not None]
            epochs.append(epoch)
            best.append(100 * max(each))
            together.append(100 * share)
            worst.append(100 * min(each))
    curves = [
        ("best rank", best, 4, "dot"),
        ("all ranks", together, 2, "solid"),
        ("worst rank", worst, 5, "dot"),
    ]
    data = [
        {
            "type": "scatter",
            "mode": line_mode(len(epochs)),
            "name": name,
            "x": epochs,
            "y": percent,
            "line": {"color": series_colour(colour), "dash": dash},
            "hovertemplate": name + ", epoch %{x}: %{y:.2f} %<extra></extra>",
        }
        for name, percent, colour, dash in curves
    ]
    return View(
        label="by epoch",
        data=data,
        layout=layout(x=axis("epoch", **whole_ticks(epochs)), y=axis("share of rows (%)", range=[0, 100.5])),
    )
