"""windrow.launch.benchmark.measurement: against slow definitions, and laws of the ratio."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.launch.benchmark.measurement import mean_and_standard_error, median, percentile_90, ratio

SAMPLES = st.lists(st.floats(0.001, 10), min_size=1, max_size=20)


@given(SAMPLES)
def test_median_is_the_middle(seconds: list[float]) -> None:
    ordered, half = sorted(seconds), len(seconds) // 2
    expected = ordered[half] if len(seconds) % 2 else (ordered[half - 1] + ordered[half]) / 2
    assert median(seconds) == pytest.approx(expected)


@given(SAMPLES)
def test_p90_interpolates_between_neighbours(seconds: list[float]) -> None:
    ordered, place = sorted(seconds), 0.9 * (len(seconds) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    assert percentile_90(seconds) == pytest.approx(low + (high - low) * (place - math.floor(place)))


def test_the_standard_error_is_that_of_the_mean() -> None:
    assert mean_and_standard_error([1.0, 2.0, 4.0, 5.0]) == pytest.approx((3.0, math.sqrt(10 / 3 / 4)))


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
