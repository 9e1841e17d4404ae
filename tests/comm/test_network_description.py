"""windrow.comm.links: a few words become links; nonsense is refused with a cure."""

import numpy as np
import pytest

from windrow.comm.errors import RecipeError
from windrow.comm.link_model import predict_all_to_all
from windrow.comm.links import CollectiveCost, NetworkDescription, described_links, seconds_per_byte


@pytest.mark.parametrize(
    ("rate", "expected"),
    [("1gbit", 8e-9), ("100 Gbit", 8e-11), ("2.5gbit", 3.2e-9), ("800mbit", 1e-8), ("8kbit", 1e-3), ("8bit", 1.0),
     ("1tbit", 8e-12)],
)  # fmt: skip
def test_rates(rate, expected):
    assert seconds_per_byte(rate) == pytest.approx(expected)


@pytest.mark.parametrize("rate", ["", "fast", "10", "-1gbit", "0gbit", "1gbyte", "gbit", "1gbits"])
def test_what_is_no_rate_is_refused(rate):
    with pytest.raises(RecipeError, match="100gbit"):
        seconds_per_byte(rate)


def test_uniform_network():
    links = described_links(NetworkDescription(nodes=8, rate="100gbit", latency_us=5))
    others = ~np.eye(8, dtype=bool)
    assert links.hosts == tuple(f"node{n}" for n in range(8))
    np.testing.assert_allclose(links.latency_s[others], 5e-6)
    np.testing.assert_allclose(links.seconds_per_byte[others], 8e-11)
    assert not links.hidden_s.any()
    assert links.all_to_all == links.all_reduce == CollectiveCost()
    assert predict_all_to_all(links, np.full((8, 8), 10**6)) == pytest.approx(5e-6 + 7 * 8e-11 * 10**6)


def test_ranks_of_a_machine_share_its_card():
    links = described_links(
        NetworkDescription(nodes=2, ranks_per_node=2, rate="1gbit", rate_inside="10gbit", latency_inside_us=1)
    )
    assert links.hosts == ("node0", "node0", "node1", "node1")
    assert links.seconds_per_byte[0, 1] == pytest.approx(8e-10)
    assert links.latency_s[0, 1] == pytest.approx(1e-6)
    assert links.seconds_per_byte[0, 2] == pytest.approx(8e-9)
    assert predict_all_to_all(links, np.full((4, 4), 1000)) == pytest.approx(20e-6 + 4 * 1000 * 8e-9)


def test_a_pair_is_as_fast_as_the_slower_card_and_framing_takes_its_share():
    links = described_links(
        NetworkDescription(nodes=3, rate="10gbit", node_rates={"1": "1gbit"}, wire_share=0.8)
    )
    assert links.seconds_per_byte[0, 1] == links.seconds_per_byte[1, 2] == pytest.approx(1e-8)
    assert links.seconds_per_byte[0, 2] == pytest.approx(1e-9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": 0}, "nodes = 0"),
        ({"ranks_per_node": 0}, "ranks_per_node = 0"),
        ({"nodes": 5000}, "4096"),
        ({"latency_us": -1.0}, "latency_us"),
        ({"latency_inside_us": float("nan")}, "latency_inside_us"),
        ({"wire_share": 0.0}, "wire_share"),
        ({"wire_share": 1.5}, "wire_share"),
        ({"add_gigabytes_per_second": 0.0}, "add_gigabytes_per_second"),
        ({"rate": "quick"}, "rate 'quick'"),
        ({"rate_inside": "quick"}, "rate 'quick'"),
        ({"node_rates": {"0": "quick"}}, "rate 'quick'"),
        ({"node_rates": {"2": "1gbit"}}, "node_rates names machine '2'"),
        ({"node_rates": {"first": "1gbit"}}, "from 0 to 1"),
    ],
)
def test_impossible_networks_are_refused(changes, message):
    with pytest.raises(RecipeError, match=message):
        NetworkDescription(**{"nodes": 2, **changes})
