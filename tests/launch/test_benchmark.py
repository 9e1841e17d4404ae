"""windrow.launch.benchmark: order of the runs, the interval, the table and the closing line."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.launch.benchmark import Aim, conclude, interleave, ratio, short_flag, table


def test_interleaving_rotates_and_keeps_every_timed_sample() -> None:
    order: list[str] = []
    variants = {name: (lambda name=name: order.append(name)) for name in "abc"}
    samples = interleave(variants, repeats=3, warm_up=1)
    assert "".join(order) == "abc" + "bca" + "cab" + "abc"
    assert {name: len(seconds) for name, seconds in samples.items()} == {"a": 3, "b": 3, "c": 3}
    assert all(second >= 0 for seconds in samples.values() for second in seconds)


def test_nothing_to_time_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one variant"):
        interleave({}, repeats=1)
    with pytest.raises(ValueError, match="one repeat"):
        interleave({"a": int}, repeats=0)


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=20), st.floats(0.1, 10))
def test_ratio_of_a_constant_factor_is_that_factor(seconds: list[float], factor: float) -> None:
    result = ratio(seconds, [factor * second for second in seconds])
    assert result.low == pytest.approx(factor)
    assert result.median == pytest.approx(factor)
    assert result.high == pytest.approx(factor)


def test_ratio_has_an_ordered_repeatable_interval() -> None:
    result = ratio([1.0, 1.1, 0.9, 1.0, 1.3], [2.0, 2.1, 2.4, 1.8, 2.2])
    assert result.low <= result.median <= result.high
    assert result.low < result.high
    assert result == ratio([1.0, 1.1, 0.9, 1.0, 1.3], [2.0, 2.1, 2.4, 1.8, 2.2])
    assert str(result) == f"{result.median:.2f} [{result.low:.2f}, {result.high:.2f}]"


def test_ratio_needs_paired_samples() -> None:
    with pytest.raises(ValueError, match="got 1 and 2"):
        ratio([1.0], [1.0, 2.0])


def test_table_aligns_numbers_right_and_text_left() -> None:
    rows = [{"name": "a", "seconds": 1.23456, "rows": 3}, {"name": "longer", "seconds": 12.5, "rows": 1234}]
    assert table(rows).splitlines() == [
        "name    seconds  rows",
        "------  -------  ----",
        "a         1.235     3",
        "longer     12.5  1234",
    ]
    assert table([]) == "(no rows)"


def test_flags() -> None:
    assert short_flag("x").parse_args([]).short is False
    arguments = short_flag("x").parse_args(["--short", "--save", "f.json"])
    assert arguments.short
    assert arguments.save == Path("f.json")


def test_conclusion_is_one_line_of_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    aims = {"fast": Aim("ratio >= 2", True), "small": Aim("bytes <= 10", False)}
    saved = tmp_path / "results" / "x.json"
    conclude("x", {"ratio": 3, "size_bytes": 11}, aims, save_to=saved)
    line = capsys.readouterr().out
    assert line.endswith("\n")
    assert "\n" not in line[:-1]
    result = json.loads(line)
    assert list(result) == ["benchmark", "figures", "aims", "met", "commit", "hardware"]
    assert result["figures"] == {"ratio": 3.0, "size_bytes": 11.0}
    assert result["aims"] == {"fast": "ratio >= 2", "small": "bytes <= 10"}
    assert result["met"] is False
    assert json.loads(saved.read_text()) == result
