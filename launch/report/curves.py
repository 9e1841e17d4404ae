"""Loss and metric curves, all runs in one figure."""

import math
import operator
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from windrow.launch.epoch_record import METRIC_NAMES, EpochRecord
from windrow.launch.report.panel import (
    INK,
    Panel,
    Section,
    View,
    axis,
    curve,
    layout,
    plain,
    series_colour,
    whole_ticks,
)
from windrow.launch.report.read_run import ReportedRun

__all__ = ["curves_section"]

LARGE_RATIO = 4.0
"""Of the largest to the smallest value, from which on a curve is also shown on a logarithmic axis; and of the first
epoch's time to the median of the others, from which on it is shown so at first."""

Trace = dict[str, Any]
OfRecord = Callable[[EpochRecord], float | None]


def curves_section(runs: Sequence[ReportedRun]) -> Section:
    """Training loss, one panel per metric, and one for all else that was measured, of at least one run."""
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
    data = _of_runs(runs, lambda record: record.loss)
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
            epochs, values = _points(run.records, operator.attrgetter(split))
            if epochs:
                colour = series_colour(own_colour if alone else index)
                data.append(curve(f"{prefix}{split}", epochs, values, colour=colour, dash=dash))
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
    data = _of_runs(runs, lambda record: record.seconds)
    views = _scaled_views(data, "seconds, evaluation included", rangemode="tozero")
    return Panel(
        title="Time per epoch",
        description=f"Line chart of the seconds per epoch of {_names(runs)}.",
        views=views[::-1] if any(_first_dwarfs_others(run.records) for run in runs) else views,
    )


def _other_figures(runs: Sequence[ReportedRun]) -> Panel:
    names = dict.fromkeys(name for run in runs for record in run.records for name in record.figures)
    views = [_view(name, _of_runs(runs, _figure(name)), plain(name)) for name in names]
    rates = _of_runs(runs, lambda record: record.learning_rate)
    views.append(_view("learning rate", rates, "learning rate at the epoch's last step"))
    return Panel(
        title="Other figures",
        description=f"Line chart by epoch of whatever else was measured, for {_names(runs)}.",
        views=views,
    )


def _figure(name: str) -> OfRecord:
    return lambda record: record.figures.get(name)


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


def _of_runs(runs: Sequence[ReportedRun], value: OfRecord) -> list[Trace]:
    """A curve for each run that has values."""
    found = []
    for index, run in enumerate(runs):
        epochs = [record.epoch for record in run.records if value(record) is not None]
        values = [each for record in run.records if (each := value(record)) is not None]
        if epochs:
            found.append(curve(run.name, epochs, values, colour=series_colour(index)))
    return found


def _points(records: Sequence[EpochRecord], value: OfRecord) -> tuple[list[int], list[float]]:
    """Epochs whose value is a number, and the values."""
    found = [(record.epoch, each) for record in records if (each := value(record)) is not None]
    finite = [(epoch, each) for epoch, each in found if math.isfinite(each)]
    return [epoch for epoch, _ in finite], [each for _, each in finite]


def _names(runs: Sequence[ReportedRun]) -> str:
    return ", ".join(run.name for run in runs)
