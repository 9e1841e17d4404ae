"""windrow.comm.link_probe: every kind of world can be measured, and all ranks hear the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.link_model import predict_all_reduce
from windrow.comm.link_probe import ProbeOptions, measure_links, spread
from windrow.comm.links import links_to_json
from windrow.comm.meter import Meter
from windrow.comm.trace import Tracer

QUICK = ProbeOptions(
    sizes_bytes=(8, 1000, 1 << 16),
    max_repeats=3,
    min_repeats=1,
    seconds_per_size=5,
    collective_seconds_per_size=5,
)


def test_every_pair_is_measured_and_ranks_agree(spmd):
    def body(world):
        world.meter, world.tracer = meter, tracer = Meter(), Tracer()
        links = measure_links(world, QUICK)
        assert world.meter is meter
        assert world.tracer is tracer
        assert not meter.table()
        assert links.size == world.size
        assert (links.latency_s >= 0).all()
        for source in range(world.size):
            for target in range(world.size):
                if source != target:
                    assert links.latency_s[source, target] > 0
        if world.size > 1:
            assert links.all_to_all.latency_factor > 0
            assert predict_all_reduce(links, 1 << 20) > 0
        assert links.add_seconds_per_byte > 0
        return links_to_json(links)

    texts = spmd(body)
    assert set(texts) == {texts[0]}


def test_debug_mode_agrees_too(spmd):
    hosts = spmd(lambda world: measure_links(world, QUICK).hosts, debug=True)
    assert len(set(hosts)) == 1
    assert len(hosts[0]) == len(hosts)


def test_sizes_that_would_take_too_long_are_left_out(spmd):
    """Both ends of a pair must stop at the same size, or this waits for ever."""
    options = ProbeOptions(
        sizes_bytes=(8, 1 << 12, 1 << 30), max_repeats=2, min_repeats=2, seconds_per_size=0.05,
        collective_seconds_per_size=0.05,
    )  # fmt: skip
    assert all(size >= 1 for size in spmd(lambda world: measure_links(world, options).size))


@pytest.mark.parametrize(
    ("expected_s", "budget_s", "repeats"), [(0.0, 1.0, 15), (0.01, 0.1, 10), (0.03, 0.1, 3), (0.04, 0.1, 0)]
)
def test_repeats_fit_into_their_time(expected_s, budget_s, repeats):
    assert ProbeOptions().repeats(expected_s, budget_s + 1e-9) == repeats


@pytest.mark.parametrize(
    "changes",
    [
        {"sizes_bytes": ()},
        {"sizes_bytes": (8, 8)},
        {"sizes_bytes": (0, 8)},
        {"min_repeats": 0},
        {"min_repeats": 99},
    ],
)
def test_options_that_measure_nothing_are_refused(changes):
    with pytest.raises(ValueError, match="expected"):
        ProbeOptions(**changes)


def test_turns_are_spread_over_the_whole_time():
    assert list(spread([4, 2, 0])) == [0, 0, 1, 0, 0, 1]


@given(st.lists(st.integers(0, 20), min_size=1).filter(any))
def test_each_has_its_turns_and_no_two_rounds_pass_without_need(counts):
    order = list(spread(counts))
    assert [order.count(which) for which in range(len(counts))] == counts
    for which, count in enumerate(counts):
        for part in (1, 2):
            # In each half of the time about half of the turns.
            half = order[: part * len(order) // 2].count(which)
            assert abs(half - part * count / 2) <= 2 + len(counts) * count / len(order)
