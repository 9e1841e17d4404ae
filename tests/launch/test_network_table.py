"""windrow.launch.known_links: a few ranks pair by pair, many as a summary."""

import math

import pytest

from windrow.comm.link_model import predict_all_reduce, predict_all_reduce_by_exchange
from windrow.comm.links import Links, NetworkDescription, described_links
from windrow.launch.known_links import PREDICTED_BYTES, link_rows, prediction_rows
from windrow.launch.terminal import table


def test_few_ranks_are_listed_pair_by_pair():
    rows = link_rows(described_links(NetworkDescription(nodes=3, rate="10gbit", node_rates={"2": "1gbit"})))
    assert [(row["from"], row["to"]) for row in rows][:3] == [
        ("0 node0", "1 node1"), ("0 node0", "2 node2"), ("1 node1", "0 node0")
    ]  # fmt: skip
    assert [row["Gbit/s"] for row in rows] == pytest.approx([10, 1, 10, 1, 1, 1])
    assert rows[0]["latency us"] == pytest.approx(20)


def test_many_ranks_are_summed_up():
    links = described_links(
        NetworkDescription(nodes=8, ranks_per_node=2, rate="10gbit", node_rates={"7": "1gbit"})
    )
    between, inside = link_rows(links)
    assert between["pairs"] == f"{16 * 14} between hosts"
    assert inside["pairs"] == "16 inside a host"
    assert between["Gbit/s: least"] == pytest.approx(1)
    assert between["Gbit/s: median"] == between["Gbit/s: most"] == pytest.approx(10)
    assert inside["latency us: most"] == pytest.approx(1)
    assert len(link_rows(described_links(NetworkDescription(nodes=9)))) == 1


def test_a_rate_that_never_showed_is_infinite():
    zeros = [[0, 0], [0, 0]]
    rows = link_rows(Links(hosts=["a", "b"], latency_s=zeros, seconds_per_byte=zeros, hidden_s=zeros))
    assert rows[0]["Gbit/s"] == math.inf
    assert "inf" in table(rows)


def test_hosts_of_several_ranks_have_a_second_way():
    links = described_links(NetworkDescription(nodes=2, ranks_per_node=2))
    shown = prediction_rows(links)[5]["all-reduce by hosts ms"]
    groups = [[0, 1], [2, 3]]
    assert shown == pytest.approx(predict_all_reduce_by_exchange(links, PREDICTED_BYTES[5], groups) * 1e3)


def test_predictions_are_those_of_the_model():
    links = described_links(NetworkDescription(nodes=4))
    rows = prediction_rows(links)
    assert [row["all-reduce ms"] for row in rows] == pytest.approx(
        [predict_all_reduce(links, num_bytes) * 1e3 for num_bytes in PREDICTED_BYTES]
    )
    assert rows[3]["all-to-all ms"] == pytest.approx(0.02 + 3 / 4 * (1 << 20) * 8e-10 * 1e3)
    assert [row["bytes per rank"] for row in rows][:1] == ["1.0 KiB"]
