"""windrow.launch.benchmark.result: checks, tables, and the closing line."""

import json

import pytest

from windrow.launch.benchmark.result import Aim, BenchmarkResult, Findings, Matrix, Table


def result(**changes: object) -> BenchmarkResult:
    values: dict[str, object] = {
        "figures": {"ratio": 3, "size_bytes": 11},
        "aims": {"fast": Aim("ratio >= 2", True), "small": Aim("bytes <= 10", False)},
        "benchmark": "x",
        "form": "full",
        "date": "2026-11-21T20:50:48Z",
        "command": "python benchmarks/x.py",
        "commit": "c" * 40,
        "hardware": "2 cores",
        "packages": {"python": "3.11"},
    }
    return BenchmarkResult(**(values | changes))


def test_closing_line_is_one_line_of_json_with_these_keys() -> None:
    line = result().closing_line()
    assert "\n" not in line
    closing = json.loads(line)
    assert list(closing) == ["benchmark", "figures", "aims", "met", "commit", "hardware"]
    assert closing["figures"] == {"ratio": 3.0, "size_bytes": 11.0}
    assert closing["aims"] == {"fast": "ratio >= 2", "small": "bytes <= 10"}
    assert closing["met"] is False


def test_met_follows_from_the_aims() -> None:
    assert not result().met
    assert result(aims={"fast": Aim("ratio >= 2", True)}).met
    assert result(aims={}).met


def test_a_short_run_has_its_own_file() -> None:
    assert result().file_name == "x.json"
    assert result(form="short").file_name == "x-short.json"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_figures_must_be_numbers(value: float) -> None:
    with pytest.raises(ValueError, match="'speed' must be a finite number"):
        Findings(figures={"speed": value}, aims={})


def test_table_of_rows_and_back() -> None:
    rows = [{"name": "a", "seconds": 1.5, "count": 3, "equal": True}]
    made = Table.from_rows(rows)
    assert made == Table(columns=("name", "seconds", "count", "equal"), rows=(("a", 1.5, 3, True),))
    assert made.to_rows() == rows
    assert Table.from_rows([{"note": None}]).rows == (("None",),)
    assert Table.from_rows([{"ratio": float("nan")}]).rows == (("nan",),)
    assert Table.from_rows([]) == Table(columns=(), rows=())


def test_crooked_tables_and_matrices_are_refused() -> None:
    with pytest.raises(ValueError, match="1 entries, but there are 2 columns"):
        Table(columns=("a", "b"), rows=((1,),))
    with pytest.raises(ValueError, match=r"lengths \[1, 2\]"):
        Matrix(unit="bytes", values=((1.0,), (1.0, 2.0)))
    with pytest.raises(ValueError, match="got nan"):
        Matrix(unit="bytes", values=((0.0, float("nan")),))
    with pytest.raises(ValueError, match="not finite"):
        Table(columns=("a",), rows=((float("inf"),),))
