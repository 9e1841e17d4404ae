"""windrow.comm.link_probe: every kind of world can be measured, and all ranks hear the same."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm import link_probe
from windrow.comm.link_estimate import fit_time_curve
from windrow.comm.link_model import predict_all_reduce
from windrow.comm.link_probe import ProbeOptions, _repeats, _spread, measure_links
from windrow.comm.links import links_to_json
from windrow.comm.meter import Meter, Tracer

QUICK = ProbeOptions(sizes_bytes=(8, 1000, 1 << 16))


def test_every_pair_is_measured_and_ranks_agree(spmd):
    def body(world):
        world.meter, world.tracer = meter, tracer = Meter(), Tracer()
        links = measure_links(world, QUICK)
        assert world.meter is meter
        assert world.tracer is tracer
        assert not meter.table()
        assert links.size == world.size
        assert ((links.latency_s > 0) == ~np.eye(world.size, dtype=bool)).all()
        if world.size > 1:
            assert links.all_to_all.latency_factor > 0
            assert predict_all_reduce(links, 1 << 20) > 0
        return links_to_json(links)

    texts = spmd(body)
    assert set(texts) == {texts[0]}


class ShapedLink:
    """A world of two ranks whose clock is made up, and whose messages pass a token bucket."""

    LATENCY_S, SECONDS_PER_BYTE, BUCKET_BYTES = 1e-5, 8e-9, 17_000

    def __init__(self):
        self.rank, self.size = 0, 2
        self.now = self.sent_at = 0.0
        self.tokens = float(self.BUCKET_BYTES)

    def perf_counter(self):
        self.now += 1e-7
        return self.now

    def start_exchange(self, sends, receives, *, stage):
        num_bytes = sum(map(len, sends))
        brought = (self.now - self.sent_at) / self.SECONDS_PER_BYTE
        self.tokens = min(float(self.BUCKET_BYTES), self.tokens + brought)
        wire_s = max(0.0, num_bytes - self.tokens) * self.SECONDS_PER_BYTE
        self.tokens = max(0.0, self.tokens - num_bytes)
        self.now += self.LATENCY_S + wire_s
        self.sent_at = self.now
        return self

    def wait(self):
        pass


def test_each_message_finds_the_link_as_after_a_pause(monkeypatch):
    """Messages that follow at once would find the bucket empty, and what hides in it would be missed."""
    world = ShapedLink()
    monkeypatch.setattr(link_probe, "time", world)
    samples = link_probe._Probe(world, ProbeOptions()).ask(1)
    curve = fit_time_curve(samples)
    assert curve.latency_s == pytest.approx(2 * world.LATENCY_S, rel=0.05)
    assert curve.seconds_per_unit == pytest.approx(world.SECONDS_PER_BYTE, rel=0.01)
    assert curve.hidden_s == pytest.approx(world.BUCKET_BYTES * world.SECONDS_PER_BYTE, rel=0.1)


def test_sizes_that_would_take_too_long_are_left_out(spmd):
    """Both ends of a pair must stop at the same size, or this waits for ever."""
    options = ProbeOptions(sizes_bytes=(8, 1 << 12, 1 << 30), seconds_per_size=0.03)
    hosts = spmd(lambda world: measure_links(world, options).hosts, debug=True)
    assert len(set(hosts)) == 1
    assert len(hosts[0]) == len(hosts)


@pytest.mark.parametrize(
    ("expected_s", "budget_s", "repeats"), [(0.0, 1.0, 15), (0.01, 0.1, 10), (0.03, 0.1, 3), (0.04, 0.1, 0)]
)
def test_repeats_fit_into_their_time(expected_s, budget_s, repeats):
    assert _repeats(expected_s, budget_s + 1e-9) == repeats


@given(st.lists(st.integers(0, 20), min_size=1).filter(any))
def test_each_has_its_turns_and_no_two_rounds_pass_without_need(counts):
    order = list(_spread(counts))
    assert [order.count(which) for which in range(len(counts))] == counts
    for which, count in enumerate(counts):
        for part in (1, 2):
            # In each half of the time about half of the turns.
            half = order[: part * len(order) // 2].count(which)
            assert abs(half - part * count / 2) <= 2 + len(counts) * count / len(order)
