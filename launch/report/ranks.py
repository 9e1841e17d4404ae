"""What ranks did, from ranks.jsonl: seconds per stage, waiting, bytes between ranks, local rows, memory.

Each is a section of the page with a panel per run.
"""

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from windrow.launch.report.panel import (
    INK,
    MUTED,
    Panel,
    byte_unit,
    chart,
    exact_bytes,
    per_run,
    plain,
    series_colour,
    series_rows,
)
from windrow.launch.report.read_run import ReportedRun, mean_traffic, traffic_stages, waiting_share
from windrow.training.epoch_cost import RankCost, cache_hit_rate, home_share
from windrow.training.journal import EpochRecord, first_epoch_dwarfs_others
from windrow.training.terminal import byte_size

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "communication_section",
    "heat_map",
    "locality_section",
    "memory_section",
    "stages_section",
    "traffic_section",
]

NO_RANKS = "this run has no ranks.jsonl, which older versions did not write"
NOT_RECORDED = f"Not recorded: {NO_RANKS}."

MOST_RANKS_TO_CHOOSE = 64
"""Of more ranks each one's bars would make the page too large."""


def _stages_panel(run: ReportedRun, title: str) -> Panel:
    slowest = {record.epoch: record for record in run.records}
    stages = list(dict.fromkeys(stage for record in run.records for stage in record.stage_seconds))
    if not stages:
        return Panel(title=title, missing="metrics.jsonl has no seconds of stages.")
    apart = run.records[0] if first_epoch_dwarfs_others(run.records) else None
    shown = {epoch: record for epoch, record in slowest.items() if record is not apart}
    views = {"slowest rank of each stage": _stages_view(shown, stages)}
    if apart is not None:
        views["slowest rank, with the first epoch"] = _stages_view(slowest, stages)
    ranks = run.num_ranks or 0
    for rank in range(min(ranks, MOST_RANKS_TO_CHOOSE)):
        own = {epoch: costs[rank] for epoch, costs in run.rank_epochs.items() if rank < len(costs) and epoch in shown}
        if own:
            host = list(own.values())[-1].host
            views[f"rank {rank} ({host})" if host else f"rank {rank}"] = _stages_view(own, stages)
    note = ""
    if not run.rank_epochs:
        note = f"Ranks cannot be chosen: {NO_RANKS}."
    elif ranks > MOST_RANKS_TO_CHOOSE:
        note = f"Of {ranks} ranks the first {MOST_RANKS_TO_CHOOSE} can be chosen; ranks.jsonl has them all."
    if apart is not None:
        note = (
            f"Epoch {apart.epoch}, which compiles, took {apart.seconds:.3g} s and has a view of its own. {note}".strip()
        )
    return Panel(
        title=title,
        description=f"Stacked bars of the seconds that each epoch of {run.name} spent in {', '.join(stages)}.",
        views=views,
        note=note,
    )


stages_section = partial(
    per_run,
    panel=_stages_panel,
    name="stages",
    title="Seconds per stage",
    lead="How long an epoch spent in each stage. Stages that overlap add up to more than the epoch, whose own "
    "duration is the line. Of each stage the slowest rank is shown until you choose a rank.",
)
"""Seconds of each stage by epoch, of the slowest rank or of one."""


def _stages_view(epochs: Mapping[int, EpochRecord | RankCost], stages: Sequence[str]) -> Any:
    import pandas as pd

    seconds = pd.DataFrame({epoch: measured.stage_seconds for epoch, measured in epochs.items()}).T
    rows = series_rows(seconds.reindex(columns=stages).fillna(0))
    hover = "%{fullData.name}: %{y:.4~g} s<br>epoch %{x}"
    layout = {"bargap": 0.15, "showlegend": True}
    return chart("bar", rows, x="epoch", y="seconds", hover=hover, layout=layout).add_scatter(
        x=list(epochs),
        y=[measured.seconds for measured in epochs.values()],
        name="whole epoch",
        mode="lines+markers",
        line={"color": INK, "width": 1.5},
        marker={"size": 5},
        hovertemplate="whole epoch: %{y:.4~g} s<extra>epoch %{x}</extra>",
    )


def _waiting_panel(run: ReportedRun, title: str) -> Panel:
    share = waiting_share(run.costs)
    if share is None:
        file = "ranks.jsonl has no waiting times" if run.rank_epochs else "this run has no ranks.jsonl"
        return Panel(title=title, missing=f"Not recorded: {file}, which older versions did not write.")
    return Panel(
        title=title,
        description=f"Bars of the share of training that each rank of {run.name} waited in communication; {share:.1%} "
        "on average.",
        views={"by rank, all epochs": _waiting_view(run, "rank"), "by epoch, all ranks": _waiting_view(run, "epoch")},
        note=f"{share:.1%} over all ranks and epochs.",
    )


communication_section = partial(
    per_run,
    panel=_waiting_panel,
    name="communication",
    title="Time in communication",
    lead="The share of its time in training, evaluation left out, that each rank spent waiting inside exchanges "
    "and sums (ranks.jsonl): for the network, or for a rank that came later. What travels while a rank computes "
    "costs it nothing, and is not in it.",
)
"""The share of training that ranks wait in communication, by rank and by epoch."""


def _waiting_view(run: ReportedRun, by: Literal["rank", "epoch"]) -> Any:
    """The stages' shares of the training time, those with the most seconds first."""
    waiting = run.frame(lambda cost: cost.waiting_seconds)
    waiting = waiting[waiting.sum().sort_values(ascending=False, kind="stable").index]
    training = _summed(run, run.frame(lambda cost: {"seconds": cost.training_seconds}), by)["seconds"]
    seconds = _summed(run, waiting, by)
    shares = 100 * seconds.div(training.where(training > 0), axis=0).fillna(0)
    hover = f"%{{fullData.name}}: %{{y:.2f}} %, %{{customdata[0]}}<br>{by} %{{x}}"
    rows = series_rows(shares, seconds.map("{:,.4g} s".format))
    return chart("bar", rows, x=by, y="share of training time (%)", hover=hover, layout={"showlegend": True})


def _summed(run: ReportedRun, frame: "pd.DataFrame", by: Literal["rank", "epoch"]) -> "pd.DataFrame":
    """Sums by epoch, or by rank of the last epoch."""
    sums = frame.groupby(level=by).sum()
    return sums.head(run.num_ranks) if by == "rank" else sums


def _locality_panel(run: ReportedRun, title: str) -> Panel:
    if not run.rank_epochs:
        return Panel(title=title, missing=NOT_RECORDED)
    share = home_share(run.costs)
    if share is None:
        return Panel(title=title, missing="No rows were requested.")
    hits = cache_hit_rate(run.costs)
    note = f"{share:.2%} over all ranks and epochs."
    if hits is not None:
        note += f" Of the rows of other ranks, {hits:.2%} were in the cache."
    return Panel(
        title=title,
        description=f"Share of local rows in {run.name}: {share:.1%} over all ranks and epochs.",
        views={"by rank, all epochs": _locality_by_rank(run), "by epoch": _locality_by_epoch(run)},
        note=note,
    )


locality_section = partial(
    per_run,
    panel=_locality_panel,
    name="locality",
    title="Local rows",
    lead="Of the rows of features or embeddings that a rank needed, the share that it had itself: its own ones, "
    "and copies in its cache where it has one (ranks.jsonl). The rest travelled.",
)
"""The share of local rows, by rank and by epoch."""


def _needed_rows(run: ReportedRun) -> "pd.DataFrame":
    return run.frame(
        lambda cost: {
            "its own": cost.rows_local,
            "in the cache": cost.rows_cached,
            "from another rank": cost.rows_remote,
        }
    )


def _locality_by_rank(run: ReportedRun) -> Any:
    numbers = _summed(run, _needed_rows(run), "rank")
    shares = 100 * numbers.div(numbers.sum(axis=1), axis=0).fillna(0)
    shown = numbers.columns[numbers.any() | (numbers.columns != "in the cache")]
    return chart(
        "bar",
        series_rows(shares[shown], numbers[shown].map("{:,} rows".format)),
        x="rank",
        y="share of rows (%)",
        hover="rank %{x}, %{fullData.name}: %{y:.2f} %, %{customdata[0]}",
        color_discrete_map=_LOCALITY_COLOURS,
        pattern_shape=None,
        range_y=[0, 100],
    )


_LOCALITY_COLOURS = {
    "its own": series_colour(2),
    "in the cache": series_colour(0),
    "from another rank": series_colour(5),
    "best rank": series_colour(4),
    "all ranks": series_colour(2),
    "worst rank": series_colour(5),
    "hit rate of the cache": series_colour(0),
}


def _locality_by_epoch(run: ReportedRun) -> Any:
    import pandas as pd

    rows = _needed_rows(run)
    together = _summed(run, rows, "epoch")
    each = (1 - rows["from another rank"] / rows.sum(axis=1)).groupby(level="epoch")
    hits = together["in the cache"] / (together["in the cache"] + together["from another rank"])
    shares = {
        "best rank": each.max(),
        "all ranks": 1 - together["from another rank"] / together.sum(axis=1),
        "worst rank": each.min(),
        "hit rate of the cache": hits[together["in the cache"] > 0],
    }
    return chart(
        "line",
        series_rows(100 * pd.DataFrame(shares)),
        x="epoch",
        y="share of rows (%)",
        hover="%{fullData.name}<br>epoch %{x}: %{y:.2f} %",
        color_discrete_map=_LOCALITY_COLOURS,
        line_dash="series",
        line_dash_map=dict(zip(shares, ("dot", "solid", "dot", "dash"), strict=True)),
        range_y=[0, 100.5],
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


def heat_map(matrix: Sequence[Sequence[float]]) -> Any:
    """A ``plotly.graph_objects.Figure`` of bytes [from, to], in a readable unit."""
    import plotly.express as px

    values = np.asarray(matrix, dtype=np.float64)
    divisor, unit = byte_unit(values.max())
    ranks = [str(rank) for rank in range(len(values))]
    figure = px.imshow(
        values / divisor,
        x=ranks,
        y=ranks,
        zmin=0,
        zmax=values.max() / divisor or 1,
        color_continuous_scale=["var(--heat-low)", "var(--heat-middle)", "var(--heat-high)"],
        labels={"x": "to rank", "y": "from rank", "color": unit},
        aspect="auto",
        template="none",
    )
    gap = GAP_PIXELS if values.size <= MOST_CELLS_WITH_GAPS else 0
    figure.update_traces(xgap=gap, ygap=gap, hovertemplate=f"from %{{y}} to %{{x}}: %{{z:.4~g}} {unit}<extra></extra>")
    if values.size <= MOST_CELLS_WITH_EXACT_NUMBERS:
        told = [[exact_bytes(value) for value in row] for row in values]
        figure.update_traces(customdata=told, hovertemplate="from %{y} to %{x}: %{customdata}<extra></extra>")
    if values.size <= MOST_CELLS_WITH_TEXT:
        figure.update_traces(text=[[byte_size(value) for value in row] for row in values], texttemplate="%{text}")
    colour_bar = {"outlinewidth": 0, "thickness": 12, "tickfont": {"color": MUTED}, "title_side": "right"}
    return (
        figure.update_xaxes(type="category", showgrid=False)
        .update_yaxes(type="category", showgrid=False)
        .update_layout(
            margin_t=12,
            height=min(MOST_HEIGHT, max(LEAST_HEIGHT, 110 + CELL_PIXELS * len(values))),
            coloraxis_colorbar=colour_bar,
        )
    )


def _traffic_panel(run: ReportedRun, title: str) -> Panel:
    if not run.rank_epochs:
        fetched = statistics.fmean(record.bytes_fetched for record in run.records)
        return Panel(
            title=title,
            missing=f"{NOT_RECORDED} metrics.jsonl has the sum alone: {byte_size(fetched)} fetched per epoch.",
        )
    stages = traffic_stages(run.rank_epochs)
    if not stages:
        reason = "one rank trained alone" if run.num_ranks == 1 else "all that was needed was local"
        return Panel(title=title, missing=f"No bytes went from rank to rank: {reason}.")
    everything = mean_traffic(run.rank_epochs, stages)
    size = run.num_ranks
    reduced = statistics.fmean(
        rank.bytes_reduced for ranks in run.rank_epochs.values() if len(ranks) == size for rank in ranks
    )
    return Panel(
        title=title,
        description=f"Heat map of the bytes that each of {size} ranks of {run.name} sends to each other one.",
        views={"all stages": heat_map(everything)}
        | {stage: heat_map(mean_traffic(run.rank_epochs, [stage])) for stage in stages},
        note=f"{byte_size(sum(map(sum, everything)))} per epoch in all. Besides, each rank puts {byte_size(reduced)} "
        "of gradients per epoch into sums over all ranks; the way they take is the communication library's, so they "
        "are not in the map.",
    )


traffic_section = partial(
    per_run,
    panel=_traffic_panel,
    name="traffic",
    title="Bytes between ranks",
    lead="What each rank (row) sent to each other rank (column) in training steps, per epoch on average over all "
    "epochs (ranks.jsonl). Choose a stage to see it alone.",
)
"""Bytes from rank to rank, of all stages and of each."""


def _memory_panel(run: ReportedRun, title: str) -> Panel:
    if not run.rank_epochs:
        return Panel(title=title, missing=NOT_RECORDED)
    peaks = run.frame(lambda cost: {"process": cost.peak_memory_bytes, "GPU": cost.peak_gpu_memory_bytes})
    peaks = peaks.groupby(level="rank").max().head(run.num_ranks)
    if not peaks["process"].any():
        return Panel(title=title, missing="Not recorded: this system does not tell a process's peak.")
    shown = peaks.loc[:, peaks.any()]
    divisor, unit = byte_unit(shown.max().max())
    hosts = [plain(run.host(rank)) for rank in shown.index]
    told = shown.apply(lambda peaks: [f"{host}: {exact_bytes(peak)}" for host, peak in zip(hosts, peaks, strict=True)])
    hover, grouped = "rank %{x} on %{customdata[0]}", {"barmode": "group"}
    rows = series_rows(shown / divisor, told)
    largest, everything = exact_bytes(peaks["process"].max()), exact_bytes(peaks["process"].sum())
    return Panel(
        title=title,
        description=f"Bars of the peak memory of each rank of {run.name}; the largest is {largest}.",
        views={"peak": chart("bar", rows, x="rank", y=f"peak memory ({unit})", hover=hover, layout=grouped)},
        note=f"{everything} over all ranks; pages that processes share count once for each.",
    )


memory_section = partial(
    per_run,
    panel=_memory_panel,
    name="memory",
    title="Memory per rank",
    lead="The most memory that each rank's process has had, code of libraries included (ranks.jsonl), and the most "
    "that tensors took on its GPU where it has one.",
)
"""Peak memory of each rank."""
