"""benchmarks.harness.markdown: everything is on the page, and the page follows from the files alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.harness.markdown import main, read_results, results_page
from benchmarks.harness.result import Aim, BenchmarkResult, Comparison, Matrix, Measurement, Table, write_result
from windrow.comm.errors import DataError, StoreError


@pytest.fixture
def result() -> BenchmarkResult:
    measured = {"a|b": Measurement(seconds=(2.0,)), "c": Measurement(seconds=(1.0,), bytes=4_000_000)}
    return BenchmarkResult(
        figures={"speed_over_wire_ratio": 0.123456789},
        aims={"fast": Aim("speed >= 0.1", True), "small": Aim("bytes <= 10", False)},
        comparisons={"4 ranks": Comparison(baseline="a|b", variants=measured)},
        tables={"More": Table(columns=("what", "number"), rows=(("x", 2.5),))},
        matrices={"sent": Matrix(unit="bytes", values=((0.0, 5e6), (4e6, 0.0)))},
        benchmark="exchange",
        form="short",
        date="2026-11-21T20:50:48Z",
        command="python benchmarks/exchange.py --short",
        commit="0123456789abcdef-modified",
        hardware="2 cores of a processor",
        packages={},
    )


def test_the_page_names_everything(result: BenchmarkResult) -> None:
    page = results_page([result, replace(result, benchmark="other", form="full")])
    lines = page.splitlines()
    overview = (
        "| [exchange (short)](#exchange-short) | 1 of 2 | [1](exchange-short.json) | 2026-11-21 "
        "| 0123456789-modified | 2 cores of a processor |"
    )
    assert set(lines) >= {
        overview,
        "## exchange (short)",
        "## other",
        "- met: speed >= 0.1",
        "- **missed**: bytes <= 10",
        "| speed_over_wire_ratio | 0.123457 |",
        "| a\\|b | 2 | 2 | baseline |  |  |",
        "| c | 1 | 1 | 2.00 [2.00, 2.00] | 4 | 4 |",
        "| x | 2.5 |",
        "| from | 0 | 1 |",
        "| 1 | 4e+06 | 0 |",
    }


def test_the_page_is_written_from_the_files(
    result: BenchmarkResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_result(result, tmp_path / result.file_name)
    write_result(replace(result, form="full"), tmp_path / "exchange.json")
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'README.md'}\n"
    assert (tmp_path / "README.md").read_text() == results_page(read_results(tmp_path))
    assert [each.file_name for each in read_results(tmp_path)] == ["exchange-short.json", "exchange.json"]


def test_files_that_do_not_belong_are_named(result: BenchmarkResult, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no folder"):
        read_results(tmp_path / "absent")
    write_result(result, tmp_path / "renamed.json")
    with pytest.raises(DataError, match=r"renamed\.json holds the result exchange-short\.json"):
        read_results(tmp_path)
    (tmp_path / "renamed.json").write_text("{}")
    with pytest.raises(StoreError, match=r"renamed\.json"):
        read_results(tmp_path)


def test_a_damaged_result_ends_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text("{}")
    assert main([str(tmp_path)]) == 2
    assert "x.json" in capsys.readouterr().err
    assert not (tmp_path / "README.md").exists()
