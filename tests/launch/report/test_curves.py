"""windrow.launch.report.curves: all runs in one figure, one per metric."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from windrow.launch.report.curves import curve_panels
from windrow.launch.report.read_run import ReportedRun

RunOf = Callable[..., ReportedRun]


def test_one_run(run_of: RunOf) -> None:
    loss, metric, seconds, others = curve_panels([run_of("graph", "one", epochs=3)])
    assert list(loss.views) == ["linear"]
    (curve,) = loss.views["linear"].data
    assert (list(curve.x), list(curve.y)) == ([1, 2, 3], [1.0, 0.5, 1 / 3])
    assert loss.views["linear"].layout.showlegend is False
    assert loss.views["linear"].layout.xaxis.dtick == 1  # few epochs get a tick each
    assert metric.title == "ROC-AUC"
    drawn = metric.views["linear"]
    assert [(trace.name, trace.line.dash) for trace in drawn.data] == [("validation", "solid"), ("test", "dot")]
    assert drawn.layout.yaxis.title.text == "ROC-AUC (higher is better)"
    assert list(seconds.views) == ["linear"]
    assert list(others.views) == ["samples per second", "learning rate at the epoch's last step"]


def test_runs_share_a_figure_and_have_colours_of_their_own(run_of: RunOf) -> None:
    runs = [run_of("graph", "one"), run_of("log", "two"), run_of("graph", "<three>", epochs=30)]
    panels = curve_panels(runs)
    loss = panels[0].views["linear"]
    assert loss.layout.xaxis.dtick is None
    assert [trace.name for trace in loss.data] == ["one", "two", "&lt;three&gt;"]
    assert [trace.line.color for trace in loss.data] == [f"var(--series-{n})" for n in range(3)]
    assert [trace.mode for trace in loss.data] == ["lines+markers", "lines+markers", "lines"]
    titles = [panel.title for panel in panels]
    assert titles == ["Training loss", "ROC-AUC", "normalised entropy", "Time per epoch", "Other metrics"]
    metric, other = (panel.views["linear"] for panel in panels[1:3])
    assert [trace.name for trace in metric.data[:2]] == ["one, validation", "one, test"]
    assert "two" not in " ".join(trace.name for trace in metric.data)
    assert metric.data[2].line.color == "var(--series-2)"  # of the third run, as everywhere
    assert "lower is better" in other.layout.yaxis.title.text


@pytest.mark.parametrize(
    ("seconds", "views"),
    [
        ([9, 1, 1, 1], ["logarithmic", "linear"]),
        ([9, 1], ["logarithmic", "linear"]),
        ([9], ["linear"]),
        ([5, 5.1, 4.9], ["linear"]),
        ([1, 1, 9, 1], ["linear", "logarithmic"]),
    ],
)
def test_the_axis_of_time_is_logarithmic_where_the_first_epoch_dwarfs_the_others(
    run_of: RunOf, seconds: list[float], views: list[str]
) -> None:
    run = run_of("graph", "one", epochs=len(seconds))
    records = [replace(record, seconds=each) for record, each in zip(run.records, seconds, strict=True)]
    panel = curve_panels([replace(run, records=records)])[2]
    assert list(panel.views) == views


def test_values_that_are_no_numbers_are_left_out(run_of: RunOf) -> None:
    run = run_of("graph", "one", epochs=9)
    nan = float("nan")
    records = [replace(run.records[0], loss=nan, validation=nan, test=nan), *run.records[1:]]
    loss, metric, *_ = curve_panels([replace(run, records=records)])
    assert list(loss.views) == ["linear", "logarithmic"], "values are far apart"
    assert list(metric.views["linear"].data[0].x) == list(range(2, 10))
    metric = curve_panels([replace(run, records=records[:1])])[1]
    assert not metric.views
    assert "no value" in metric.missing


def test_a_run_without_evaluation_says_so(run_of: RunOf) -> None:
    run = run_of("graph", "one")
    blind = [replace(record, validation=None, test=None) for record in run.records]
    metric = curve_panels([replace(run, records=blind)])[1]
    assert not metric.views
    assert "No epoch was evaluated" in metric.missing
