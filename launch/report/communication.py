"""The share of training in which ranks wait inside collectives, for the network or for each other."""

from collections.abc import Iterable, Sequence
from typing import Any

from windrow.launch.rank_cost import RankCost
from windrow.launch.report.figure import axis, bar_marker, layout, plain, run_title, whole_ticks
from windrow.launch.report.panel import Panel, Section, View
from windrow.launch.report.rank_epochs import waiting_share, waiting_stages
from windrow.launch.report.read_run import ReportedRun

__all__ = ["communication_section"]


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
        panels=[_panel(run, run_title(run.name, len(runs))) for run in runs],
    )


def _panel(run: ReportedRun, title: str) -> Panel:
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
            _view("by rank, all epochs", names, by_rank, stages, "rank", type="category", showgrid=False),
            _view(
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


def _view(
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
