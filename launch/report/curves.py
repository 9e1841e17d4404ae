"""Loss and metric curves, all runs in one figure."""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from windrow.launch.report.panel import INK, Panel, Section, chart, looks, plain, series_colour
from windrow.launch.report.read_run import ReportedRun
from windrow.training.journal import METRIC_NAMES, EpochRecord, first_epoch_dwarfs_others

__all__ = ["curves_section"]

LARGE_RATIO = 4.0
"""Of the largest to the smallest value, from which on a curve is also shown on a logarithmic axis."""

OfRecord = Callable[[EpochRecord], float | None]


def curves_section(runs: Sequence[ReportedRun]) -> Section:
    """Training loss, one panel per metric, and one for all else that was measured, of at least one run."""
    metrics = list(dict.fromkeys(run.records[-1].metric for run in runs))
    panels = [_loss_panel(runs), *(_metric_panel(runs, metric) for metric in metrics), _seconds_panel(runs)]
    return Section(
        name="curves",
        title="Curves",
        lead="Each point is one epoch (metrics.jsonl). Pick an entry of the legend to hide its curve.",
        panels=[*panels, _other_figures(runs)],
    )


def _loss_panel(runs: Sequence[ReportedRun]) -> Panel:
    return Panel(
        title="Training loss",
        description=f"Line chart of the training loss by epoch of {_names(runs)}.",
        views=_scaled_views(runs, lambda record: record.loss, "mean loss per training sample"),
    )


def _metric_panel(runs: Sequence[ReportedRun], metric: str) -> Panel:
    chosen = [run for run in runs if run.records[-1].metric == metric]
    name = METRIC_NAMES.get(metric, metric)
    points: list[dict[str, Any]] = []
    colours, dashes = {}, {}
    for run in chosen:
        prefix = f"{run.name}, " if len(runs) > 1 else ""
        for split, dash, own_colour in (("validation", "solid", 1), ("test", "dot", 2)):
            series = plain(f"{prefix}{split}")
            colours[series] = series_colour(runs.index(run) if prefix else own_colour)
            dashes[series] = dash
            found = _points([run], operator.attrgetter(split))
            points += [point | {"series": f"{prefix}{split}"} for point in found if math.isfinite(point["y"])]
    if not points:
        return Panel(title=name, missing="No epoch was evaluated, or the metric had no value: see the recipe's splits.")
    better = "higher" if chosen[0].records[-1].higher_is_better else "lower"
    looks = {"color_discrete_map": colours, "line_dash": "series", "line_dash_map": dashes}
    views = _scaled(points, f"{plain(name)} ({better} is better)", **looks)
    for run in chosen:
        if (best := run.best) is not None:
            prefix = f"{run.name}, " if len(runs) > 1 else ""
            for view in views.values():
                view.add_scatter(
                    x=[best.epoch],
                    y=[best.validation],
                    mode="markers",
                    name=plain(f"{prefix}best epoch, {best.epoch}"),
                    marker={"symbol": "star", "size": 14, "color": INK},
                    hovertemplate="best epoch %{x}: %{y:.6~g}<extra></extra>",
                ).update_layout(showlegend=True)
    return Panel(
        title=name,
        description=f"Line chart of {name} by epoch on the validation and test split of {_names(chosen)}.",
        views=views,
    )


def _seconds_panel(runs: Sequence[ReportedRun]) -> Panel:
    views = _scaled_views(
        runs, lambda record: record.seconds, "seconds, evaluation included", layout={"yaxis_rangemode": "tozero"}
    )
    logarithmic_first = any(first_epoch_dwarfs_others(run.records) for run in runs)
    return Panel(
        title="Time per epoch",
        description=f"Line chart of the seconds per epoch of {_names(runs)}.",
        views=dict(reversed(views.items())) if logarithmic_first else views,
    )


def _other_figures(runs: Sequence[ReportedRun]) -> Panel:
    names = dict.fromkeys(name for run in runs for record in run.records for name in record.figures)
    values: dict[str, tuple[str, OfRecord]] = {name: (plain(name), _figure(name)) for name in names}
    values["learning rate"] = "learning rate at the epoch's last step", lambda record: record.learning_rate
    views = {
        label: _chart(_points(runs, value), title, **looks([run.name for run in runs]))
        for label, (title, value) in values.items()
    }
    return Panel(
        title="Other metrics",
        description=f"Line chart by epoch of whatever else was measured, for {_names(runs)}.",
        views=views,
    )


def _figure(name: str) -> OfRecord:
    return lambda record: record.figures.get(name)


def _points(runs: Sequence[ReportedRun], value: OfRecord) -> list[dict[str, Any]]:
    """A point for each epoch of each run that has a value."""
    return [
        {"series": run.name, "x": record.epoch, "y": found}
        for run in runs
        for record in run.records
        if (found := value(record)) is not None
    ]


def _scaled_views(runs: Sequence[ReportedRun], value: OfRecord, title: str, **options: Any) -> dict[str, Any]:
    return _scaled(_points(runs, value), title, **looks([run.name for run in runs]), **options)


def _scaled(points: Sequence[Mapping[str, Any]], title: str, **options: Any) -> dict[str, Any]:
    """A linear view and a logarithmic one where values are far apart."""
    values = [point["y"] for point in points if math.isfinite(point["y"])]
    views = {"linear": _chart(points, title, **options)}
    if values and min(values) > 0 and max(values) > LARGE_RATIO * min(values):
        views["logarithmic"] = _chart(points, title, **options).update_yaxes(type="log")
    return views


def _chart(points: Sequence[Mapping[str, Any]], title: str, **options: Any) -> Any:
    hover = "%{fullData.name}<br>epoch %{x}: %{y:.6~g}"
    return chart("line", points, x="epoch", y=title, hover=hover, **options)


def _names(runs: Sequence[ReportedRun]) -> str:
    return ", ".join(run.name for run in runs)
