"""windrow.comm.link_estimate: links and curves that made the timings are found again in them, whatever outliers say."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.comm.link_estimate import estimate_links, fit_time_curve
from windrow.comm.link_model import predict_all_reduce, predict_all_to_all
from windrow.comm.links import CollectiveCost, Links, TimeCurve

SIZES = [1 << power for power in (6, 10, 12, 14, 16, 18, 20, 22, 24)]


def message_seconds(links: Links, pair: tuple[int, int], num_bytes: float) -> float:
    on_the_wire = links.seconds_per_byte[pair] * num_bytes
    return float(links.latency_s[pair] + max(0.0, on_the_wire - links.hidden_s[pair]))


def timings(links: Links, outliers: np.random.Generator | None = None) -> Links:
    """Estimate from what the model says that a probe would time."""

    def repeats(seconds: float) -> list[float]:
        wrong = [] if outliers is None else (seconds * outliers.uniform(0.2, 20, 2)).tolist()
        return [seconds] * 3 + wrong

    ranks = range(links.size)

    def pair(p: int, q: int) -> dict[float, list[float]]:
        return {m: repeats(message_seconds(links, (p, q), m) + links.latency_s[q, p]) for m in SIZES}

    pairs = [{q: pair(p, q) for q in ranks if q != p} for p in ranks]
    equal = np.full((links.size, links.size), 1 / links.size)
    exchange = {m: repeats(predict_all_to_all(links, equal * m)) for m in SIZES}
    reduction = {m: repeats(predict_all_reduce(links, m)) for m in SIZES}
    return estimate_links(links.hosts, pairs, exchange, reduction)


def network(size: int, *, theta: float, gamma: float, **changes) -> Links:
    """Links that are alike in both directions, as a ping-pong sees them, but not all alike."""
    factor = 1 + 0.1 * np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
    values = {"latency_s": gamma * factor, "seconds_per_byte": theta * factor, "hidden_s": gamma * factor}
    return Links(hosts=tuple(f"host{n}" for n in range(size)), **values, **changes)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"all_to_all": CollectiveCost(latency_factor=3, hidden_s=1e-4)},
        {"all_to_all": CollectiveCost(latency_factor=2, stretch=0.9)},
        {"shared_seconds_per_byte": 4e-9},
        {
            "all_reduce": (
                TimeCurve(latency_s=3e-5, seconds_per_unit=1e-9, hidden_s=0.0),
                TimeCurve(latency_s=1e-4, seconds_per_unit=8e-9, hidden_s=2e-5),
            )
        },
    ],
    ids=["plain", "slow call", "streams in parallel", "shared", "reduction"],
)
@settings(max_examples=3)
@given(seed=st.integers(0, 2**32 - 1), theta=st.floats(5e-10, 1e-8), gamma=st.floats(5e-6, 5e-5))
def test_planted_links_are_found(size, changes, seed, theta, gamma):
    if size == 2 and changes.get("all_to_all", CollectiveCost()).stretch < 1:
        return  # One peer has no streams in parallel.
    planted = network(size, theta=theta, gamma=gamma, **changes)
    found = timings(planted, np.random.default_rng(seed))
    for name in ("latency_s", "seconds_per_byte"):
        np.testing.assert_allclose(getattr(found, name), getattr(planted, name), rtol=1e-3, atol=1e-12)
    # Between what a slow call hides and what it does not, the line that is found bends: up to 0.37 of 150 draws.
    for num_bytes, close in ((1 << 10, 0.1), (1 << 17, 0.5), (1 << 26, 0.1)):
        equal = np.full((size, size), num_bytes / size)
        assert predict_all_to_all(found, equal) == pytest.approx(predict_all_to_all(planted, equal), rel=close)
    # Of short vectors a little is on the wire, which the floor takes in.
    for num_bytes, close in ((1 << 10, 0.3), (1 << 13, 0.3), (1 << 20, 0.03), (1 << 26, 0.01)):
        expected = predict_all_reduce(planted, num_bytes)
        assert predict_all_reduce(found, num_bytes) == pytest.approx(expected, rel=close)


def test_what_is_shared_is_told_from_what_a_port_carries():
    planted = network(4, theta=1e-9, gamma=1e-5, shared_seconds_per_byte=4e-9)
    found = timings(planted)
    assert found.shared_seconds_per_byte == pytest.approx(4e-9)
    one = np.zeros((4, 4))
    one[0, 3] = 1 << 24
    # A single message has the shared resource for itself.
    assert predict_all_to_all(found, one) == pytest.approx(predict_all_to_all(planted, one), rel=0.01)
    assert timings(replace(planted, shared_seconds_per_byte=0.0)).shared_seconds_per_byte < 1e-9


def test_a_pair_that_was_timed_in_a_slow_spell_is_corrected_by_the_exchange():
    planted = network(2, theta=1e-9, gamma=1e-5)
    slow = {1: {m: [3e-5 + 5 * 1e-9 * m] for m in SIZES}}, {0: {m: [2e-5 + 1.1e-9 * m] for m in SIZES}}
    exchange = {m: [predict_all_to_all(planted, np.full((2, 2), m / 2))] for m in SIZES}
    reduction = {m: [predict_all_reduce(planted, m)] for m in SIZES}
    found = estimate_links(planted.hosts, slow, exchange, reduction)
    assert found.seconds_per_byte[0, 1] == pytest.approx(1.1e-9, rel=0.01)
    equal = np.full((2, 2), 1 << 25)
    assert predict_all_to_all(found, equal) == pytest.approx(predict_all_to_all(planted, equal), rel=0.01)


def test_one_rank_has_no_links():
    links = estimate_links(["here"], [{}], {64: [1e-6]}, {64: [1e-6]})
    assert links.latency_s.tolist() == [[0.0]]
    assert links.all_to_all == CollectiveCost()
    assert links.all_reduce is None


@settings(max_examples=10)
@given(st.integers(0, 2**32 - 1))
def test_any_timings_make_links(seed):
    """Even a machine that does something else all the time."""
    chance = np.random.default_rng(seed)

    def samples() -> dict[float, list[float]]:
        return {m: chance.lognormal(-9, 3, 3).tolist() for m in SIZES[: chance.integers(1, len(SIZES))]}

    pairs = [{q: samples() for q in range(3) if q != p} for p in range(3)]
    links = estimate_links(["a", "b", "b"], pairs, samples(), samples())
    assert all(np.isfinite(getattr(links, field.name)).all() for field in fields(links)[1:5])
    assert predict_all_reduce(links, 1 << 20) >= 0


CURVES = st.builds(
    TimeCurve,
    latency_s=st.floats(1e-6, 1e-3),
    seconds_per_unit=st.floats(1e-10, 1e-7),
    hidden_s=st.sampled_from([0.0, 1e-5, 1e-4]),
)


@given(CURVES, st.data())
def test_less_than_half_of_the_samples_may_be_anything(planted, data):
    samples = {}
    for size, time in zip(SIZES, planted.seconds(np.array(SIZES)), strict=True):
        wrong = data.draw(st.lists(st.floats(1e-9, 10), min_size=0, max_size=2))
        samples[size] = [float(time)] * 3 + wrong
    found = fit_time_curve(samples)
    x = np.array(SIZES)
    np.testing.assert_allclose(found.seconds(x), planted.seconds(x), rtol=1e-6)
    assert found.seconds_per_unit == pytest.approx(planted.seconds_per_unit, rel=1e-3)


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


@pytest.mark.parametrize("samples", [{}, {1.0: []}])
def test_no_samples_are_refused(samples):
    with pytest.raises(ValueError, match="at least one"):
        fit_time_curve(samples)
