"""windrow.launch.report.benchmarks: dots where the ratios are, whiskers where the intervals end."""

import pytest

from windrow.launch.benchmark.measurement import Comparison, Measurement
from windrow.launch.report.benchmarks import ratio_view


def comparison(*names: str) -> Comparison:
    variants = {
        name: Measurement(seconds=(1.0 + place, 1.1 + place, 1.3 + place)) for place, name in enumerate(names)
    }
    return Comparison(baseline=names[0], variants=variants)


def test_dots_and_whiskers_are_the_ratios_and_their_intervals() -> None:
    compared = comparison("raw", "one", "two")
    trace = ratio_view({"setting": compared}).data[0]
    for place, name in enumerate(("one", "two")):
        expected = compared.ratio(name)
        assert trace["x"][place] == expected.median
        assert trace["x"][place] + trace["error_x"]["array"][place] == pytest.approx(expected.high)
        assert trace["x"][place] - trace["error_x"]["arrayminus"][place] == pytest.approx(expected.low)


def test_settings_head_their_groups_and_baselines_are_not_drawn() -> None:
    view = ratio_view(
        {"<a>": comparison("raw", "one"), "b": comparison("alone"), "c": comparison("raw", "x", "y")}
    )
    labels = [note["text"] for note in view.layout["annotations"]]
    assert labels[0] == "<b>&lt;a&gt;</b>, against raw"
    assert [label.partition(":")[0] for label in labels] == [
        labels[0],
        "one",
        "<b>c</b>, against raw",
        "x",
        "y",
    ]
    assert view.data[0]["y"] == [1, 3, 4]
    assert [note["y"] for note in view.layout["annotations"]] == [0, 1, 2, 3, 4]


def test_a_line_marks_what_is_as_fast_as_the_baseline() -> None:
    (line,) = ratio_view({"a": comparison("raw", "one")}).layout["shapes"]
    assert (line["x0"], line["x1"]) == (1, 1)
