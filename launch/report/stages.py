"""Where the time of an epoch goes: seconds per stage as stacked bars."""

from collections.abc import Mapping, Sequence

from windrow.launch.report.figure import INK, axis, bar_marker, layout, plain, run_title, whole_ticks
from windrow.launch.report.panel import Panel, Section, View
from windrow.launch.report.read_run import ReportedRun

__all__ = ["stages_section"]

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
        panels=[_panel(run, run_title(run.name, len(runs))) for run in runs],
    )


def _panel(run: ReportedRun, title: str) -> Panel:
    slowest = [(record.epoch, record.stage_seconds) for record in run.records]
    whole = {record.epoch: record.seconds for record in run.records}
    stages = list(dict.fromkeys(stage for _, seconds in slowest for stage in seconds))
    if not stages:
        return Panel(title=title, missing="metrics.jsonl has no seconds of stages.")
    views = [_view("slowest rank of each stage", slowest, stages, whole)]
    if len(slowest) >= ENOUGH_EPOCHS:
        views.append(_view("slowest rank, without the first epoch", slowest[1:], stages, whole))
    for rank in range(min(run.num_ranks or 0, MOST_RANKS_TO_CHOOSE)):
        own = [
            (epoch, ranks[rank].stage_seconds)
            for epoch, ranks in run.rank_epochs.items()
            if rank < len(ranks)
        ]
        if own:
            seconds = {epoch: run.rank_epochs[epoch][rank].seconds for epoch, _ in own}
            host = run.rank_epochs[own[-1][0]][rank].host
            views.append(_view(f"rank {rank} ({host})" if host else f"rank {rank}", own, stages, seconds))
    return Panel(
        title=title,
        description=f"Stacked bars of the seconds that each epoch of {run.name} spent in {', '.join(stages)}.",
        views=views,
        note=_note(run),
    )


def _note(run: ReportedRun) -> str:
    if not run.rank_epochs:
        return "Ranks cannot be chosen: this run has no ranks.jsonl, which older versions did not write."
    ranks = run.num_ranks or 0
    if ranks > MOST_RANKS_TO_CHOOSE:
        return f"Of {ranks} ranks the first {MOST_RANKS_TO_CHOOSE} can be chosen; ranks.jsonl has them all."
    return ""


def _view(label: str, epochs: Epochs, stages: Sequence[str], whole: Mapping[int, float]) -> View:
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
