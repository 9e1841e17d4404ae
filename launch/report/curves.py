"""Loss and metric curves, all runs in one figure."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from windrow.launch.epoch_record import METRIC_NAMES, EpochRecord
from windrow.launch.report.panel import (
    INK,
    Panel,
    Section,
    View,
    axis,
    layout,
    line_mode,
    plain,
    series_colour,
    whole_ticks,
)
from windrow.launch.report.read_run import ReportedRun

__all__ = ["curves_section"]

LARGE_RATIO = 4.0
"""Of the largest to the smallest value, from which on a curve is also shown on a logarithmic axis; and of the first
epoch's time to the median of the others, from which on it is shown so at first."""

Point = tuple[int, float]
Trace = dict[str, Any]


def curves_section(runs: Sequence[ReportedRun]) -> Section:
    """Training loss, one panel per metric, and one for all else that was measured.

    Args:
        runs: at least one.
    """
    metrics = list(dict.fromkeys(run.records[-1].metric for run in runs))
    panels = [_loss_panel(runs), *(_metric_panel(runs, metric) for metric in metrics), _seconds_panel(runs)]
    others = _other_figures(runs)
    return Section(
        name="curves",
        title="Curves",
        lead="Each point is one epoch (metrics.jsonl). Pick an entry of the legend to hide its curve.",
        panels=[*panels, others] if others.views else panels,
    )


def _loss_panel(runs: Sequence[ReportedRun]) -> Panel:
    data = [
        _curve(run.name, [(r.epoch, r.loss) for r in run.records], colour=series_colour(index))
        for index, run in enumerate(runs)
    ]
    return Panel(
        title="Training loss",
        description=f"Line chart of the training loss by epoch of {_names(runs)}.",
        views=_scaled_views(data, "mean loss per training sample"),
    )


def _metric_panel(runs: Sequence[ReportedRun], metric: str) -> Panel:
    chosen = [(index, run) for index, run in enumerate(runs) if run.records[-1].metric == metric]
    name = METRIC_NAMES.get(metric, metric)
    data = []
    for index, run in chosen:
        alone = len(runs) == 1
        prefix = "" if alone else f"{run.name}, "
        for split, dash, own_colour in (("validation", "solid", 1), ("test", "dot", 2)):
            points = _points(run.records, split)
            if points:
                colour = series_colour(own_colour if alone else index)
                data.append(_curve(f"{prefix}{split}", points, colour=colour, dash=dash))
        best = run.best
        if best is not None and best.validation is not None:
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "x": [best.epoch],
                    "y": [best.validation],
                    "name": plain(f"{prefix}best epoch, {best.epoch}"),
                    "marker": {"symbol": "star", "size": 14, "color": INK},
                    "hovertemplate": "best epoch %{x}: %{y:.6~g}<extra></extra>",
                }
            )
    if not data:
        return Panel(
            title=name, missing="No epoch was evaluated, or the metric had no value: see the recipe's splits."
        )
    better = "higher" if chosen[0][1].records[-1].higher_is_better else "lower"
    names = _names([run for _, run in chosen])
    return Panel(
        title=name,
        description=f"Line chart of {name} by epoch on the validation and test split of {names}.",
        views=_scaled_views(data, f"{plain(name)} ({better} is better)"),
    )


def _seconds_panel(runs: Sequence[ReportedRun]) -> Panel:
    data = [
        _curve(run.name, [(r.epoch, r.seconds) for r in run.records], colour=series_colour(index))
        for index, run in enumerate(runs)
    ]
    views = _scaled_views(data, "seconds, evaluation included", rangemode="tozero")
    return Panel(
        title="Time per epoch",
        description=f"Line chart of the seconds per epoch of {_names(runs)}.",
        views=views[::-1] if any(_first_dwarfs_others(run.records) for run in runs) else views,
    )


def _other_figures(runs: Sequence[ReportedRun]) -> Panel:
    names = dict.fromkeys(name for run in runs for record in run.records for name in record.figures)
    views = []
    for name in names:
        data = []
        for index, run in enumerate(runs):
            points = [(r.epoch, r.figures[name]) for r in run.records if name in r.figures]
            if points:
                data.append(_curve(run.name, points, colour=series_colour(index)))
        views.append(_view(name, data, plain(name)))
    rates = [
        _curve(run.name, [(r.epoch, r.learning_rate) for r in run.records], colour=series_colour(index))
        for index, run in enumerate(runs)
    ]
    views.append(_view("learning rate", rates, "learning rate at the epoch's last step"))
    return Panel(
        title="Other figures",
        description=f"Line chart by epoch of whatever else was measured, for {_names(runs)}.",
        views=views,
    )


def _view(label: str, data: Sequence[Trace], title: str, **options: Any) -> View:
    x = axis("epoch", **whole_ticks([epoch for trace in data for epoch in trace["x"]]))
    return View(
        label=label, data=data, layout=layout(x=x, y=axis(title, **options), showlegend=len(data) > 1)
    )


def _scaled_views(data: Sequence[Trace], title: str, **linear: Any) -> list[View]:
    """A linear view, with options of its axis, and a logarithmic one where values are far apart."""
    values = [value for trace in data for value in trace["y"] if math.isfinite(value)]
    views = [_view("linear", data, title, **linear)]
    if values and min(values) > 0 and max(values) > LARGE_RATIO * min(values):
        views.append(_view("logarithmic", data, title, type="log"))
    return views


def _first_dwarfs_others(records: Sequence[EpochRecord]) -> bool:
    """Whether the first epoch, which compiles, would press all others to the ground of a linear axis."""
    others = [record.seconds for record in records[1:]]
    return bool(others) and records[0].seconds > LARGE_RATIO * statistics.median(others)


def _curve(name: str, points: Sequence[Point], *, colour: str, dash: str = "solid") -> Trace:
    return {
        "type": "scatter",
        "mode": line_mode(len(points)),
        "name": plain(name),
        "x": [epoch for epoch, _ in points],
        "y": [value for _, value in points],
        "line": {"color": colour, "width": 2, "dash": dash},
        "marker": {"size": 6},
        "hovertemplate": "%{fullData.name}<br>epoch %{x}: %{y:.6~g}<extra></extra>",
    }


def _points(records: Sequence[EpochRecord], split: str) -> list[Point]:
    values = [(r.epoch, r.validation if split == "validation" else r.test) for r in records]
    return [(epoch, value) for epoch, value in values if value is not None and math.isfinite(value)]


def _names(runs: Sequence[ReportedRun]) -> str:
    return ", ".join(run.name for run in runs)
