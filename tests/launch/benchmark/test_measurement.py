"""windrow.launch.benchmark.measurement: against slow definitions, laws of the ratio, what is refused."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.launch.benchmark.measurement import (
    Comparison,
    Measurement,
    mean_and_standard_error,
    median,
    ratio,
)

SAMPLES = st.lists(st.floats(0.001, 10), min_size=1, max_size=20)


@given(SAMPLES)
def test_median_is_the_middle(seconds: list[float]) -> None:
    ordered, half = sorted(seconds), len(seconds) // 2
    expected = ordered[half] if len(seconds) % 2 else (ordered[half - 1] + ordered[half]) / 2
    assert median(seconds) == pytest.approx(expected)


def test_the_standard_error_is_that_of_the_mean() -> None:
    assert mean_and_standard_error([1.0, 2.0, 4.0, 5.0]) == pytest.approx((3.0, math.sqrt(10 / 3 / 4)))


@given(SAMPLES)
def test_p90_interpolates_between_neighbours(seconds: list[float]) -> None:
    ordered, place = sorted(seconds), 0.9 * (len(seconds) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    assert Measurement(seconds=tuple(seconds)).p90_s == pytest.approx(
        low + (high - low) * (place - math.floor(place))
    )


@given(SAMPLES, st.floats(0.1, 10))
def test_ratio_of_a_constant_factor_is_that_factor(seconds: list[float], factor: float) -> None:
    result = ratio(seconds, [factor * second for second in seconds])
    assert result.low == pytest.approx(factor)
    assert result.median == pytest.approx(factor)
    assert result.high == pytest.approx(factor)


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
        baseline=next(iter(seconds)),
        variants={name: Measurement(seconds=each) for name, each in seconds.items()},
    )


@pytest.mark.parametrize("seconds", [(), (0.0,), (1.0, -1.0), (float("nan"),), (float("inf"),)])
def test_samples_that_cannot_be_are_refused(seconds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"sample|positive and finite"):
        Measurement(seconds=seconds)


@pytest.mark.parametrize("name", ["bytes", "rows", "peak_memory_bytes"])
def test_negative_amounts_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must not be negative, got -1"):
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
    assert found.advantage("fast", "middle").median == 2
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
