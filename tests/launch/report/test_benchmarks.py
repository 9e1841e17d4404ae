"""windrow.launch.report.benchmarks: files and folders of results, aims, figures, matrices."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from windrow.comm.errors import StoreError
from windrow.launch.benchmark_result import BenchmarkResult, Comparison, Measurement, write_result
from windrow.launch.report.benchmarks import benchmark_sections, read_results


def test_files_and_folders(result: BenchmarkResult, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_result(replace(result, benchmark=name), tmp_path / "results" / f"{name}.json")
    (tmp_path / "results" / "README.md").write_text("no result")
    folder = tmp_path / "results"
    assert [one.benchmark for one in read_results([folder])] == ["a", "b"]
    assert [one.benchmark for one in read_results([folder / "b.json", folder])] == ["b", "a"]


def test_what_holds_no_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no result"):
        read_results([tmp_path])
    with pytest.raises(StoreError, match=r"none\.json"):
        read_results([tmp_path / "none.json"])


def test_everything_of_a_result_is_shown(result: BenchmarkResult) -> None:
    (section,) = benchmark_sections([result])
    panels = {panel.title: panel for panel in section.panels}
    assert list(panels) == ["Aims", "Metrics", "More", "Ratios to the baseline", "bytes sent"]
    assert section.name == "benchmark-exchange-short"
    assert section.title == "Benchmark: exchange, short form"
    assert "abc" in section.lead
    aims = panels["Aims"].table
    assert aims is not None
    assert aims.rows == [("twice as fast", "met"), ("ten times as fast", "missed")]
    assert aims.marked == {(1, 1)}
    assert panels["Aims"].note == "1 of 2 met."
    assert panels["bytes sent"].views["all"].data[0].customdata[0][1] == "5,000,000 bytes (4.8 MiB)"
    more = panels["More"].table
    assert more is not None
    assert [row[1] for row in more.rows] == ["1", "2.5"]
    figures = panels["Metrics"].table
    assert figures is not None
    assert figures.rows == [("ours_over_raw_ratio", "2")]


def test_a_result_of_figures_alone(result: BenchmarkResult) -> None:
    bare = replace(result, form="full", aims={}, comparisons={}, tables={}, matrices={})
    (section,) = benchmark_sections([bare])
    assert [panel.title for panel in section.panels] == ["Metrics"]
    assert section.title == "Benchmark: exchange"


def test_results_of_the_same_benchmark_have_anchors_of_their_own(result: BenchmarkResult) -> None:
    other = replace(result, benchmark="reader")
    sections = benchmark_sections([result, other, replace(result, commit="def")])
    assert [section.title.removeprefix("Benchmark: ") for section in sections] == [
        "exchange, short form (1)",
        "reader, short form",
        "exchange, short form (2)",
    ]
    assert len({section.name for section in sections}) == 3


def comparison(*names: str) -> Comparison:
    variants = {name: Measurement(seconds=(1.0 + place, 1.1 + place, 1.3 + place)) for place, name in enumerate(names)}
    return Comparison(baseline=names[0], variants=variants)


def ratio_view(result: BenchmarkResult, comparisons: dict[str, Comparison]) -> Any:
    (section,) = benchmark_sections([replace(result, comparisons=comparisons)])
    (panel,) = (panel for panel in section.panels if panel.title == "Ratios to the baseline")
    return panel.views["ratios"]


def test_dots_and_whiskers_are_the_ratios_and_their_intervals(result: BenchmarkResult) -> None:
    compared = comparison("raw", "one", "two")
    view = ratio_view(result, {"setting": compared})
    (line,) = view.layout.shapes
    assert (line.x0, line.x1) == (1, 1), "as fast as the baseline"
    trace = view.data[0]
    for place, name in enumerate(("one", "two")):
        expected = compared.ratio(name)
        assert trace.x[place] == expected.median
        assert trace.x[place] + trace.error_x.array[place] == pytest.approx(expected.high)
        assert trace.x[place] - trace.error_x.arrayminus[place] == pytest.approx(expected.low)


def test_settings_head_their_groups_and_baselines_are_not_drawn(result: BenchmarkResult) -> None:
    view = ratio_view(
        result, {"<a>": comparison("raw", "one"), "b": comparison("alone"), "c": comparison("raw", "x", "y")}
    )
    labels = [note.text for note in view.layout.annotations]
    assert labels[0] == "<b>&lt;a&gt;</b>, against raw"
    assert [label.partition(":")[0] for label in labels] == [labels[0], "one", "<b>c</b>, against raw", "x", "y"]
    assert list(view.data[0].y) == [1, 3, 4]
    assert [note.y for note in view.layout.annotations] == [0, 1, 2, 3, 4]
