"""benchmarks.harness.result: statistics, checks; any result comes back equal, a damaged file is named."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness.result import (
    Aim,
    BenchmarkResult,
    Comparison,
    Findings,
    Matrix,
    Measurement,
    Table,
    check_writable,
    ratio,
    read_result,
    result_file_name,
    result_to_json,
    write_result,
)
from windrow.comm.errors import StoreError


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
    assert result(aims={"fast": Aim("ratio >= 2", True)}).met
    assert result(aims={}).met


def test_a_short_run_has_its_own_file() -> None:
    assert result().file_name == "x.json"
    assert result(form="short").file_name == "x-short.json"
    assert result(part="y").file_name == "x-y.json" == result_file_name("x", "y", short=False)
    assert (result(part="y").title, result(form="short", part="y").title) == ("x y", "x y (short)")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_figures_must_be_numbers(value: float) -> None:
    with pytest.raises(ValueError, match=f"speed = {value} must be a number"):
        Findings(figures={"speed": value}, aims={})


def test_parts_of_a_benchmark_make_one() -> None:
    parts = [
        Findings(figures={"a": 1.0}, aims={"fast": Aim("a >= 1", True)}),
        Findings(figures={"b": 2.0}, aims={"small": Aim("b <= 1", False)}, tables={"t": Table.from_rows([{"x": 1}])}),
    ]
    found = Findings.joined(parts)
    assert list(found.figures.items()) == [("a", 1.0), ("b", 2.0)]
    assert [aim.met for aim in found.aims.values()] == [True, False]
    assert found.tables == parts[1].tables
    assert Findings.joined(parts[:1]) == parts[0]


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
    with pytest.raises(ValueError, match=r"values\[0\]\[1\] = nan must be a number"):
        Matrix(unit="bytes", values=((0.0, float("nan")),))
    with pytest.raises(ValueError, match=r"rows\[0\]\[0\] = inf must be"):
        Table(columns=("a",), rows=((float("inf"),),))


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("C",)), min_size=1, max_size=8)
SECONDS = st.floats(1e-9, 1e4)
AMOUNTS = st.none() | st.integers(0, 2**50)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
CELLS = NAMES | st.integers(-(2**40), 2**40) | NUMBERS | st.booleans()


@st.composite
def comparisons(draw: st.DrawFn) -> Comparison:
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    count = draw(st.integers(1, 4))
    samples = st.lists(SECONDS, min_size=count, max_size=count).map(tuple)
    measured = st.builds(Measurement, seconds=samples, bytes=AMOUNTS, rows=AMOUNTS, peak_memory_bytes=AMOUNTS)
    return Comparison(
        baseline=draw(st.sampled_from(names)),
        variants={name: draw(measured) for name in names},
        per=draw(st.sampled_from(["run", "edge"])),
    )


@st.composite
def tables(draw: st.DrawFn) -> Table:
    columns = tuple(draw(st.lists(NAMES, max_size=3)))
    row = st.tuples(*[CELLS] * len(columns))
    return Table(columns=columns, rows=tuple(draw(st.lists(row, max_size=3))))


def matrices() -> st.SearchStrategy[Matrix]:
    square = st.integers(0, 3).flatmap(
        lambda n: st.lists(st.lists(NUMBERS, min_size=n, max_size=n).map(tuple), max_size=3).map(tuple)
    )
    return st.builds(Matrix, unit=st.just("bytes"), values=square)


RESULTS = st.builds(
    BenchmarkResult,
    figures=st.dictionaries(NAMES, NUMBERS, max_size=3),
    aims=st.dictionaries(NAMES, st.builds(Aim, NAMES, st.booleans()), max_size=3),
    comparisons=st.dictionaries(NAMES, comparisons(), max_size=2),
    tables=st.dictionaries(NAMES, tables(), max_size=2),
    matrices=st.dictionaries(NAMES, matrices(), max_size=2),
    benchmark=NAMES,
    form=st.sampled_from(["short", "full"]),
    date=st.just("2026-11-21T20:50:48Z"),
    command=NAMES,
    commit=NAMES,
    hardware=NAMES,
    packages=st.dictionaries(NAMES, NAMES, max_size=2),
)


@given(RESULTS)
def test_any_result_comes_back_equal(tmp_path_factory: pytest.TempPathFactory, result: BenchmarkResult) -> None:
    path = tmp_path_factory.mktemp("results") / "folder" / "x.json"
    write_result(result, path)
    assert read_result(path) == result
    assert json.loads(path.read_text("utf-8")) == result_to_json(result)


def small_result() -> BenchmarkResult:
    measured = {"a": Measurement(seconds=(2.0, 4.0, 3.0)), "b": Measurement(seconds=(1.0, 2.0, 1.5), rows=7)}
    return result(comparisons={"here": Comparison(baseline="a", variants=measured)})


def test_what_follows_from_the_samples_is_written_too(tmp_path: Path) -> None:
    write_result(small_result(), tmp_path / "x.json")
    assert '"seconds": [2.0, 4.0, 3.0]' in (tmp_path / "x.json").read_text(), "samples stand on one line"
    variants = result_to_json(small_result())["comparisons"]["here"]["variants"]
    assert variants["a"] == {"seconds": [2.0, 4.0, 3.0], "derived": {"median_s": 3.0, "p90_s": 3.8}}
    assert variants["b"]["rows"] == 7
    assert variants["b"]["derived"]["median_s"] == 1.5
    assert variants["b"]["derived"]["ratio"] == [2.0, 2.0, 2.0]


def damage(values: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    *outer, last = path.split("/")
    place = values
    for key in outer:
        place = place[key]
    place[last] = value
    return values


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("schema", 2, '"schema" must be 1'),
        ("comparisons/here/variants/a/seconds", "fast", "must be a list of one or more"),
        ("comparisons/here/baseline", "c", "'c' is none of the variants"),
        ("comparisons/here/variants", [], "must be a section"),
        ("comparisons", [], "must be a section"),
        ("figures/ratio", "fast", "must be a number"),
        ("form", "long", "must be one of 'short', 'full'"),
        ("surprise", 1, "no key 'surprise'"),
    ],
)
def test_a_damaged_file_is_refused_with_its_name(tmp_path: Path, path: str, value: object, message: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(json.dumps(damage(result_to_json(small_result()), path, value)))
    with pytest.raises(StoreError, match=message) as caught:
        read_result(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("text", ["", "[1]", "{", "null"])
def test_what_is_no_result_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(StoreError, match=r"x\.json is not"):
        read_result(file)
    with pytest.raises(StoreError, match=r"absent\.json is not"):
        read_result(tmp_path / "absent.json")


def test_a_place_that_cannot_be_written_is_known_before(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "x.json")
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="--save"):
        write_result(small_result(), tmp_path / "file" / "x.json")
    for place in (tmp_path / "file" / "x.json", tmp_path / "new"):
        with pytest.raises(StoreError, match=r"cannot write the result .*--save"):
            check_writable(place)


SAMPLES = st.lists(st.floats(0.001, 10), min_size=1, max_size=20)


@given(SAMPLES)
def test_p90_interpolates_between_neighbours(seconds: list[float]) -> None:
    ordered, place = sorted(seconds), 0.9 * (len(seconds) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    assert Measurement(seconds=tuple(seconds)).p90_s == pytest.approx(low + (high - low) * (place - math.floor(place)))


@given(SAMPLES, st.floats(0.1, 10))
def test_ratio_of_a_constant_factor_is_that_factor(seconds: list[float], factor: float) -> None:
    result = ratio(seconds, [factor * second for second in seconds])
    assert [result.low, result.median, result.high] == pytest.approx([factor] * 3)


@given(st.lists(st.tuples(st.floats(0.001, 10), st.floats(0.001, 10)), min_size=1, max_size=12))
def test_interval_holds_the_median_and_lies_within_the_rounds(pairs: list[tuple[float, float]]) -> None:
    rounds = [baseline / variant for variant, baseline in pairs]
    found = ratio([variant for variant, _ in pairs], [baseline for _, baseline in pairs])
    bounds = [min(rounds), found.low, found.median, found.high, max(rounds)]
    assert all(a <= b * (1 + 1e-12) for a, b in pairwise(bounds))


def test_ratio_has_an_ordered_repeatable_interval() -> None:
    result = ratio([1.0, 1.1, 0.9, 1.0, 1.3], [2.0, 2.1, 2.4, 1.8, 2.2])
    assert result.low < result.high
    assert result == ratio([1.0, 1.1, 0.9, 1.0, 1.3], [2.0, 2.1, 2.4, 1.8, 2.2])
    assert str(result) == f"{result.median:.2f} [{result.low:.2f}, {result.high:.2f}]"


def test_ratio_needs_paired_samples() -> None:
    with pytest.raises(ValueError, match="got 1 and 2"):
        ratio([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="got 0 and 0"):
        ratio([], [])


def compared(**seconds: tuple[float, ...]) -> Comparison:
    return Comparison(
        baseline=next(iter(seconds)), variants={name: Measurement(seconds=each) for name, each in seconds.items()}
    )


@pytest.mark.parametrize("seconds", [(), (0.0,), (1.0, -1.0), (float("nan"),), (float("inf"),)])
def test_samples_that_cannot_be_are_refused(seconds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"seconds.* a number above 0"):
        Measurement(seconds=seconds)


@pytest.mark.parametrize("name", ["bytes", "rows", "peak_memory_bytes"])
def test_negative_amounts_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} = -1 must be an integer of at least 0"):
        Measurement(seconds=(1.0,), **{name: -1})


def test_comparison_needs_its_baseline_and_paired_samples() -> None:
    one = Measurement(seconds=(1.0,))
    with pytest.raises(ValueError, match="'b' is none of the variants: a"):
        Comparison(baseline="b", variants={"a": one})
    with pytest.raises(ValueError, match="as many samples"):
        compared(a=(1.0,), b=(1.0, 2.0))


def test_ratios_of_all_directions() -> None:
    found = compared(slow=(4.0, 4.0, 4.0), middle=(2.0, 2.0, 2.0), fast=(1.0, 1.0, 1.0))
    assert found.ratio("fast").median == 4
    assert found.ratio("slow").median == 1
    assert found.ratio("fast", "middle").median == 2
    assert found.rival("fast") == "middle"
    assert found.against("middle").ratio("fast").median == 2
    assert found.against("middle").variants == found.variants


def test_divided_by_what_each_run_did() -> None:
    found = compared(a=(4.0, 6.0), b=(1.0, 9.0)).divided({"a": [2, 3], "b": [1, 3]}, "edge")
    assert found.variants["a"].seconds == (2.0, 2.0)
    assert found.variants["b"].seconds == (1.0, 3.0)
    assert found.per == "edge"
    assert found.rows()[0]["edges/s"] == 0.5
    with pytest.raises(ValueError, match="zip"):
        compared(a=(4.0, 6.0)).divided({"a": [2]}, "edge")


def test_rows_have_the_same_columns_for_every_variant() -> None:
    measured = {
        "bare": Measurement(seconds=(2.0,)),
        "full": Measurement(seconds=(1.0,), bytes=3_000_000, rows=6, peak_memory_bytes=5 << 20),
    }
    bare, full = Comparison(baseline="bare", variants=measured).rows()
    assert list(bare) == list(full)
    assert bare == {
        "variant": "bare",
        "median s": 2.0,
        "P90 s": 2.0,
        "faster than baseline": "baseline",
        "MB": "",
        "MB/s": "",
        "rows": "",
        "rows/s": "",
        "peak MiB": "",
    }
    assert (full["MB"], full["MB/s"], full["rows"], full["rows/s"], full["peak MiB"]) == (3.0, 3.0, 6, 6.0, 5)
    assert full["faster than baseline"] == "2.00 [2.00, 2.00]"
