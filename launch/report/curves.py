"""Loss and metric curves, all runs in one figure."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from windrow.launch.report.panel import Panel, chart, plain
from windrow.launch.report.read_run import ReportedRun
from windrow.training.journal import METRIC_NAMES, first_epoch_dwarfs_others

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["curve_panels"]

LARGE_RATIO = 4.0
"""Of the largest to the smallest value, from which on a curve is also shown on a logarithmic axis."""


def curve_panels(runs: Sequence[ReportedRun]) -> list[Panel]:
    """Training loss, one panel per metric, seconds, and one for all else that was measured, of at least one run."""
    import pandas as pd

    epochs = pd.concat([run.epoch_frame() for run in runs])
    names = [run.name for run in runs]
    seconds = _views(epochs, names, "seconds", "seconds, evaluation included")
    if any(first_epoch_dwarfs_others(run.records) for run in runs):
        seconds = dict(reversed(seconds.items()))
    others = [column for column in epochs if column.startswith("figures.")]
    titles = {column.removeprefix("figures."): column for column in others}
    titles["learning rate at the epoch's last step"] = "learning_rate"
    return [
        Panel(title="Training loss", views=_views(epochs, names, "loss", "mean loss per training sample")),
        *(_metric_panel(epochs, runs, metric) for metric in dict.fromkeys(run.records[-1].metric for run in runs)),
        Panel(title="Time per epoch", views=seconds),
        Panel(
            title="Other metrics",
            views={title: _curve(epochs, names, column, plain(title)) for title, column in titles.items()},
        ),
    ]


def _metric_panel(epochs: "pd.DataFrame", runs: Sequence[ReportedRun], metric: str) -> Panel:
    chosen = [run for run in runs if run.records[-1].metric == metric]
    own = epochs[epochs["run"].isin([run.name for run in chosen])]
    name = METRIC_NAMES.get(metric, metric)
    values = own.melt(["epoch", "run"], ["validation", "test"], "split", "value").dropna(subset="value")
    if values.empty:
        return Panel(title=name, missing="No epoch was evaluated, or the metric had no value: see the recipe's splits.")
    better = "higher" if chosen[0].records[-1].higher_is_better else "lower"
    dashes = {"line_dash": "split", "line_dash_map": {"validation": "solid", "test": "dot"}}
    names = [run.name for run in runs]
    views = _views(values, names, "value", f"{plain(name)} ({better} is better)", **dashes)
    return Panel(title=name, views=views)


def _views(epochs: "pd.DataFrame", names: Sequence[str], column: str, title: str, **options: Any) -> dict[str, Any]:
    """A linear view and a logarithmic one where values are far apart."""
    views = {"linear": _curve(epochs, names, column, title, **options)}
    if 0 < LARGE_RATIO * epochs[column].min() < epochs[column].max():
        views["logarithmic"] = _curve(epochs, names, column, title, **options).update_yaxes(type="log")
    return views


def _curve(epochs: "pd.DataFrame", names: Sequence[str], column: str, title: str, **options: Any) -> Any:
    rows = epochs.rename(columns={"epoch": "x", column: "y"}).dropna(subset="y")
    if len(names) > 1:
        rows["series"] = rows["run"]
    hover = "%{fullData.name}<br>epoch %{x}: %{y:.6~g}"
    return chart("line", rows, x="epoch", y=title, hover=hover, names=names, **options)
