"""windrow.comm.link_estimate: planted floors and lines come back, whatever the outliers say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.link_estimate import TimeCurve, fit_time_curve, median_curve

SIZES = [float(1 << power) for power in (6, 10, 12, 14, 16, 18, 20, 22, 24)]

CURVES = st.builds(
    TimeCurve,
    latency_s=st.floats(1e-6, 1e-3),
    seconds_per_unit=st.floats(1e-10, 1e-7),
    hidden_s=st.sampled_from([0.0, 1e-5, 1e-4]),
)


def check_same(found: TimeCurve, planted: TimeCurve) -> None:
    x = np.array(SIZES)
    np.testing.assert_allclose(found.seconds(x), planted.seconds(x), rtol=1e-6)


@given(CURVES)
def test_planted_curve_is_found(planted):
    times = planted.seconds(np.array(SIZES))
    found = fit_time_curve({size: [float(time)] for size, time in zip(SIZES, times, strict=True)})
    check_same(found, planted)
    assert found.seconds_per_unit == pytest.approx(planted.seconds_per_unit, rel=1e-3)


@given(CURVES, st.data())
def test_less_than_half_of_the_samples_may_be_anything(planted, data):
    samples = {}
    for size, time in zip(SIZES, planted.seconds(np.array(SIZES)), strict=True):
        wrong = data.draw(st.lists(st.floats(1e-9, 10), min_size=0, max_size=2))
        samples[size] = [float(time)] * 3 + wrong
    check_same(fit_time_curve(samples), planted)


@pytest.mark.parametrize("hidden_s", [0.0, 8e-5])
@given(which=st.integers(0, 6), factor=st.floats(1.5, 30))
def test_a_size_that_is_wrong_as_a_whole_is_passed_by(hidden_s, which, factor):
    """Any but the longest two, which alone tell the slope."""
    planted = TimeCurve(latency_s=2e-5, seconds_per_unit=8e-9, hidden_s=hidden_s)
    times = planted.seconds(np.array(SIZES))
    right = np.arange(len(SIZES)) != which
    times[which] *= factor
    found = fit_time_curve({size: [float(time)] for size, time in zip(SIZES, times, strict=True)})
    np.testing.assert_allclose(found.seconds(np.array(SIZES))[right], times[right], rtol=0.3)
    assert found.seconds_per_unit == pytest.approx(8e-9, rel=0.02)


@given(st.dictionaries(st.sampled_from(SIZES), st.lists(st.floats(0, 10), min_size=1), min_size=1))
def test_nothing_comes_out_negative(samples):
    curve = fit_time_curve(samples)
    assert curve.latency_s >= 0
    assert curve.seconds_per_unit >= 0
    assert curve.hidden_s >= 0
    assert np.isfinite(curve.seconds(np.array(SIZES))).all()


@given(CURVES, st.integers(0, 2**32 - 1))
def test_no_line_through_two_points_without_floor_is_better(planted, seed):
    """Against the slow way: every pair of points as a plain line."""
    x = np.array(SIZES)
    y = planted.seconds(x) * np.random.default_rng(seed).uniform(0.7, 1.5, len(x))
    found = fit_time_curve({size: [float(time)] for size, time in zip(SIZES, y, strict=True)})
    best = np.abs(found.seconds(x) / y - 1).sum()
    for i in range(len(x)):
        for j in range(i):
            slope = (y[i] - y[j]) / (x[i] - x[j])
            start = y[i] - slope * x[i]
            if slope >= 0 and start >= 0:
                assert best <= np.abs((start + slope * x) / y - 1).sum() + 1e-9


def test_points_are_medians_by_rising_size():
    x, y = median_curve({20.0: [1.0, 9.0, 2.0], 10.0: [4.0, 5.0]})
    assert x.tolist() == [10, 20]
    assert y.tolist() == [4.5, 2]


@pytest.mark.parametrize("samples", [{}, {1.0: []}])
def test_no_samples_are_refused(samples):
    with pytest.raises(ValueError, match="at least one"):
        fit_time_curve(samples)
