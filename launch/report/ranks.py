"""What ranks did, from ranks.jsonl: seconds per stage, waiting, bytes between ranks, local rows, memory."""

import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from windrow.launch.report.panel import INK, MUTED, Panel, chart, series_rows
from windrow.launch.report.read_run import ReportedRun
from windrow.training.epoch_cost import RankCost, cache_hit_rate, communication_share, home_share
from windrow.training.journal import EpochRecord, first_epoch_dwarfs_others
from windrow.training.terminal import byte_size

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["communication_panel", "heat_map", "locality_panel", "memory_panel", "stages_panel", "traffic_panel"]

NOT_RECORDED = Panel(missing="Not recorded: this run has no ranks.jsonl, which older versions did not write.")

MOST_RANKS_TO_CHOOSE = 64
"""Of more ranks each one's bars would make the page too large."""


def stages_panel(run: ReportedRun) -> Panel:
    """Seconds of each stage by epoch, of the slowest rank or of one."""
    slowest = {record.epoch: record for record in run.records}
    stages = list(dict.fromkeys(stage for record in run.records for stage in record.stage_seconds))
    if not stages:
        return Panel(missing="metrics.jsonl has no seconds of stages.")
    notes = []
    shown = slowest
    if first_epoch_dwarfs_others(run.records):
        first, *others = run.records
        shown = {record.epoch: record for record in others}
        notes.append(f"Epoch {first.epoch}, which compiles, took {first.seconds:.3g} s and has a view of its own.")
    measured: dict[str, Mapping[int, EpochRecord | RankCost]] = {"slowest rank of each stage": shown}
    if shown is not slowest:
        measured["slowest rank, with the first epoch"] = slowest
    for rank, cost in enumerate(run.last_ranks[:MOST_RANKS_TO_CHOOSE]):
        name = f"rank {rank} ({cost.host})" if cost.host else f"rank {rank}"
        measured[name] = {
            epoch: ranks[rank] for epoch, ranks in run.rank_epochs.items() if epoch in shown and rank < len(ranks)
        }
    if not run.rank_epochs:
        notes.append("Ranks cannot be chosen: this run has no ranks.jsonl, which older versions did not write.")
    elif len(run.last_ranks) > MOST_RANKS_TO_CHOOSE:
        notes.append(f"Of {len(run.last_ranks)} ranks the first {MOST_RANKS_TO_CHOOSE} can be chosen.")
    return Panel(
        views={name: _stages_view(epochs, stages) for name, epochs in measured.items() if epochs}, note=" ".join(notes)
    )


def _stages_view(epochs: Mapping[int, EpochRecord | RankCost], stages: list[str]) -> Any:
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


def communication_panel(run: ReportedRun) -> Panel:
    """The share of training that ranks wait in communication, by rank and by epoch."""
    if not any(cost.waiting_seconds for cost in run.costs):
        file = "ranks.jsonl has no waiting times" if run.rank_epochs else "this run has no ranks.jsonl"
        return Panel(missing=f"Not recorded: {file}, which older versions did not write.")
    share = communication_share(run.costs) or 0.0
    return Panel(
        views={"by rank, all epochs": _waiting_view(run, "rank"), "by epoch, all ranks": _waiting_view(run, "epoch")},
        note=f"{share:.1%} over all ranks and epochs.",
    )


def _waiting_view(run: ReportedRun, by: Literal["rank", "epoch"]) -> Any:
    """The stages' shares of the training time, those with the most seconds first."""
    waiting = _summed(run, run.rank_frame(lambda cost: cost.waiting_seconds), by)
    waiting = waiting[waiting.sum().sort_values(ascending=False, kind="stable").index]
    training = _summed(run, run.rank_frame(lambda cost: {"seconds": cost.training_seconds}), by)["seconds"]
    shares = 100 * waiting.div(training.where(training > 0), axis=0).fillna(0)
    hover = f"%{{fullData.name}}: %{{y:.2f}} %, %{{customdata[0]}}<br>{by} %{{x}}"
    rows = series_rows(shares, waiting.map("{:,.4g} s".format))
    return chart("bar", rows, x=by, y="share of training time (%)", hover=hover, layout={"showlegend": True})


def _summed(run: ReportedRun, frame: "pd.DataFrame", by: Literal["rank", "epoch"]) -> "pd.DataFrame":
    """Sums by epoch, or by rank of the last epoch."""
    sums = frame.groupby(level=by).sum()
    return sums.head(len(run.last_ranks)) if by == "rank" else sums


OWN, CACHED, SHARED, REMOTE = "its own", "in the cache", "in shared memory", "from another rank"


def locality_panel(run: ReportedRun) -> Panel:
    """The share of local rows, by rank and by epoch."""
    if not run.rank_epochs:
        return NOT_RECORDED
    share, hits = home_share(run.costs), cache_hit_rate(run.costs)
    if share is None:
        return Panel(missing="No rows were requested.")
    cached = "" if hits is None else f" Of the rows of other ranks, {hits:.2%} were in the cache."
    rows = run.rank_frame(
        lambda cost: {
            OWN: cost.rows_local,
            CACHED: cost.rows_cached,
            SHARED: cost.rows_shared,
            REMOTE: cost.rows_remote,
        }
    )
    return Panel(
        views={
            "by rank, all epochs": _locality_by_rank(_summed(run, rows, "rank")),
            "by epoch": _locality_by_epoch(rows),
        },
        note=f"{share:.2%} over all ranks and epochs.{cached}",
    )


def _locality_by_rank(numbers: "pd.DataFrame") -> Any:
    shares = 100 * numbers.div(numbers.sum(axis=1), axis=0).fillna(0)
    shown = [name for name in numbers if name not in (CACHED, SHARED) or numbers[name].any()]
    hover = "rank %{x}, %{fullData.name}: %{y:.2f} %, %{customdata[0]}"
    rows = series_rows(shares[shown], numbers[shown].map("{:,} rows".format))
    return chart("bar", rows, x="rank", y="share of rows (%)", hover=hover, range_y=[0, 100])


def _locality_by_epoch(rows: "pd.DataFrame") -> Any:
    import pandas as pd

    together = rows.groupby(level="epoch").sum()
    hits = together[CACHED] / (together[CACHED] + together[REMOTE])
    shares = {
        "local rows": 1 - together[REMOTE] / together.sum(axis=1),
        "hit rate of the cache": hits[together[CACHED] > 0],
    }
    hover = "%{fullData.name}<br>epoch %{x}: %{y:.2f} %"
    points = series_rows(100 * pd.DataFrame(shares))
    return chart("line", points, x="epoch", y="share of rows (%)", hover=hover, names=list(shares), range_y=[0, 100.5])


MOST_CELLS_WITH_TEXT = 64
"""More cells are too small for their numbers, which the pointer still shows, and for gaps."""


def heat_map(matrix: NDArray[np.float64]) -> Any:
    """A ``plotly.graph_objects.Figure`` of bytes [from, to]."""
    import plotly.express as px

    ranks = [str(rank) for rank in range(len(matrix))]
    is_small = matrix.size <= MOST_CELLS_WITH_TEXT
    colour_bar = {"outlinewidth": 0, "thickness": 12, "tickfont": {"color": MUTED}, "title_side": "right"}
    return (
        px.imshow(
            matrix,
            x=ranks,
            y=ranks,
            zmin=0,
            zmax=matrix.max() or 1,
            color_continuous_scale=["var(--heat-low)", "var(--heat-middle)", "var(--heat-high)"],
            labels={"x": "to rank", "y": "from rank", "color": "bytes"},
            aspect="auto",
            text_auto=".3~s" if is_small else False,
            template="none",
        )
        .update_traces(
            xgap=2 * is_small, ygap=2 * is_small, hovertemplate="from %{y} to %{x}: %{z:,.0f} bytes<extra></extra>"
        )
        .update_xaxes(type="category", showgrid=False)
        .update_yaxes(type="category", showgrid=False)
        .update_layout(
            margin_t=12, height=480 if is_small else 620, coloraxis_colorbar={**colour_bar, "tickformat": "~s"}
        )
    )


def traffic_panel(run: ReportedRun) -> Panel:
    """Bytes from rank to rank, of all stages and of each."""
    if not run.rank_epochs:
        return NOT_RECORDED
    stages = run.traffic()
    size = len(run.last_ranks)
    if not stages:
        reason = "one rank trained alone" if size == 1 else "all that was needed was local"
        return Panel(missing=f"No bytes went from rank to rank: {reason}.")
    everything = sum(stages.values(), np.zeros((size, size)))
    reduced = statistics.fmean(
        rank.bytes_reduced for ranks in run.rank_epochs.values() if len(ranks) == size for rank in ranks
    )
    return Panel(
        views={name: heat_map(matrix) for name, matrix in ({"all stages": everything} | stages).items()},
        note=f"{byte_size(everything.sum())} per epoch in all. Besides, each rank puts {byte_size(reduced)} "
        "of gradients per epoch into sums over all ranks; the way they take is the communication library's, so they "
        "are not in the map.",
    )


def memory_panel(run: ReportedRun) -> Panel:
    """Peak memory of each rank."""
    if not run.rank_epochs:
        return NOT_RECORDED
    peaks = run.rank_frame(lambda cost: {"process": cost.peak_memory_bytes, "GPU": cost.peak_gpu_memory_bytes})
    peaks = peaks.groupby(level="rank").max().head(len(run.last_ranks))
    if not peaks["process"].any():
        return Panel(missing="Not recorded: this system does not tell a process's peak.")
    shown = peaks.loc[:, peaks.any()]
    hosts = [cost.host for cost in run.last_ranks]
    rows = series_rows(shown, shown.apply(lambda _: hosts))
    view = chart(
        "bar",
        rows,
        x="rank",
        y="peak memory (bytes)",
        hover="rank %{x} on %{customdata[0]}: %{y:,.0f} bytes",
        layout={"barmode": "group", "yaxis_tickformat": "~s"},
    )
    note = f"{byte_size(peaks['process'].sum())} over all ranks; pages that processes share count once for each."
    return Panel(views={"peak": view}, note=note)
