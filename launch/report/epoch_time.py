"""Where the time of an epoch goes: seconds per stage, and the share that ranks wait in communication.

Ranks wait inside collectives for the network or for each other.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from windrow.launch.epoch_cost import RankCost
from windrow.launch.report.panel import (
    INK,
    Panel,
    Section,
    View,
    axis,
    bar_marker,
    layout,
    plain,
    run_title,
    whole_ticks,
)
from windrow.launch.report.read_run import ReportedRun, waiting_share, waiting_stages

__all__ = ["communication_section", "stages_section"]

ENOUGH_EPOCHS = 3
"""From so many epochs on there is a view without the first, which compiles and so dwarfs the others."""

MOST_RANKS_TO_CHOOSE = 64
"""Of more ranks each one's bars would make the page too large."""

Epochs = Sequence[tuple[int, Mapping[str, float]]]


def stages_section(runs: Sequence[ReportedRun]) -> Section:
    """One panel per run.

    Args:
        runs: at least one.
    """
    return Section(
        name="stages",
        title="Seconds per stage",
        lead="How long an epoch spent in each stage. Stages that overlap add up to more than the epoch, whose own "
        "duration is the line. Of each stage the slowest rank is shown until you choose a rank.",
        panels=[_stages_panel(run, run_title(run.name, len(runs))) for run in runs],
    )


def _stages_panel(run: ReportedRun, title: str) -> Panel:
    slowest = [(record.epoch, record.stage_seconds) for record in run.records]
    whole = {record.epoch: record.seconds for record in run.records}
    stages = list(dict.fromkeys(stage for _, seconds in slowest for stage in seconds))
    if not stages:
        return Panel(title=title, missing="metrics.jsonl has no seconds of stages.")
    views = [_stages_view("slowest rank of each stage", slowest, stages, whole)]
    if len(slowest) >= ENOUGH_EPOCHS:
        views.append(_stages_view("slowest rank, without the first epoch", slowest[1:], stages, whole))
    for rank in range(min(run.num_ranks or 0, MOST_RANKS_TO_CHOOSE)):
        own = [
            (epoch, ranks[rank].stage_seconds)
            for epoch, ranks in run.rank_epochs.items()
            if rank < len(ranks)
        ]
        if own:
            seconds = {epoch: run.rank_epochs[epoch][rank].seconds for epoch, _ in own}
            host = run.rank_epochs[own[-1][0]][rank].host
            views.append(
                _stages_view(f"rank {rank} ({host})" if host else f"rank {rank}", own, stages, seconds)
            )
    return Panel(
        title=title,
        description=f"Stacked bars of the seconds that each epoch of {run.name} spent in {', '.join(stages)}.",
        views=views,
        note=_stages_note(run),
    )


def _stages_note(run: ReportedRun) -> str:
    if not run.rank_epochs:
        return "Ranks cannot be chosen: this run has no ranks.jsonl, which older versions did not write."
    ranks = run.num_ranks or 0
    if ranks > MOST_RANKS_TO_CHOOSE:
        return f"Of {ranks} ranks the first {MOST_RANKS_TO_CHOOSE} can be chosen; ranks.jsonl has them all."
    return ""


def _stages_view(label: str, epochs: Epochs, stages: Sequence[str], whole: Mapping[int, float]) -> View:
    x = [epoch for epoch, _ in epochs]
    data: list[dict[str, object]] = [
        {
            "type": "bar",
            "name": plain(stage),
            "x": x,
            "y": [seconds.get(stage, 0.0) for _, seconds in epochs],
            "marker": bar_marker(index),
            "hovertemplate": "%{fullData.name}: %{y:.4~g} s<extra>epoch %{x}</extra>",
        }
        for index, stage in enumerate(stages)
    ]
    data.append(
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": "whole epoch",
            "x": x,
            "y": [whole[epoch] for epoch in x],
            "line": {"color": INK, "width": 1.5},
            "marker": {"size": 5},
            "hovertemplate": "whole epoch: %{y:.4~g} s<extra>epoch %{x}</extra>",
        }
    )
    return View(
        label=label,
        data=data,
        layout=layout(
            x=axis("epoch", showgrid=False, **whole_ticks(x)),
            y=axis("seconds", rangemode="tozero"),
            barmode="stack",
            bargap=0.15,
        ),
    )


def communication_section(runs: Sequence[ReportedRun]) -> Section:
    """One panel per run.

    Args:
        runs: at least one.
    """
    return Section(
        name="communication",
        title="Time in communication",
        lead="The share of its time in training, evaluation left out, that each rank spent waiting inside exchanges "
        "and sums (ranks.jsonl): for the network, or for a rank that came later. What travels while a rank computes "
        "costs it nothing, and is not in it.",
        panels=[_waiting_panel(run, run_title(run.name, len(runs))) for run in runs],
    )


def _waiting_panel(run: ReportedRun, title: str) -> Panel:
    epochs = list(run.rank_epochs.values())
    share = waiting_share(rank for ranks in epochs for rank in ranks)
    if share is None:
        file = "ranks.jsonl has no waiting times" if epochs else "this run has no ranks.jsonl"
        return Panel(title=title, missing=f"Not recorded: {file}, which older versions did not write.")
    stages = waiting_stages(run.rank_epochs)
    by_rank = [[ranks[rank] for ranks in epochs if rank < len(ranks)] for rank in range(len(epochs[-1]))]
    names = [str(rank) for rank in range(len(by_rank))]
    numbers = list(run.rank_epochs)
    return Panel(
        title=title,
        description=f"Bars of the share of training that each rank of {run.name} waited in communication; {share:.1%} "
        "on average.",
        views=[
            _waiting_view(
                "by rank, all epochs", names, by_rank, stages, "rank", type="category", showgrid=False
            ),
            _waiting_view(
                "by epoch, all ranks",
                numbers,
                epochs,
                stages,
                "epoch",
                showgrid=False,
                **whole_ticks(numbers),
            ),
        ],
        note=f"{share:.1%} over all ranks and epochs.",
    )


def _waiting_view(
    label: str,
    places: Sequence[object],
    costs: Sequence[Sequence[RankCost]],
    stages: Sequence[str],
    what: str,
    **options: Any,
) -> View:
    """Stacked bars, one for each place: the stages' shares of the training time of what is listed there."""
    totals = [sum(cost.training_seconds for cost in listed) for listed in costs]
    data = []
    for index, stage in enumerate(stages):
        waited = [_waited(listed, stage) for listed in costs]
        data.append(
            {
                "type": "bar",
                "name": plain(stage),
                "x": places,
                "y": [100 * w / total if total > 0 else 0.0 for w, total in zip(waited, totals, strict=True)],
                "customdata": [f"{seconds:,.4g} s" for seconds in waited],
                "hovertemplate": "%{fullData.name}: %{y:.2f} %, %{customdata}<extra>"
                + what
                + " %{x}</extra>",
                "marker": bar_marker(index),
            }
        )
    return View(
        label=label,
        data=data,
        layout=layout(
            x=axis(what, **options),
            y=axis("share of training time (%)", rangemode="tozero"),
            barmode="stack",
            bargap=0.35,
            showlegend=True,
        ),
    )


def _waited(costs: Iterable[RankCost], stage: str) -> float:
    return sum(cost.waiting_seconds.get(stage, 0.0) for cost in costs)
