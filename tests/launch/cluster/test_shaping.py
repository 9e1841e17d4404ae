"""windrow.launch.cluster.network: the arithmetic of buckets and queues, without a kernel."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.launch.cluster.network import link_shape, shaping_commands

RATES = st.integers(10**7, 10**11)


@pytest.mark.parametrize(
    ("rate", "burst", "packet"),
    [(10**7, 17_000, 16_384), (10**9, 17_000, 16_384), (25 * 10**8, 31_250, 16_384), (10**10, 125_000, 65_536),
     (10**11, 130_000, 65_536)],
)  # fmt: skip
def test_known_links(rate, burst, packet):
    shape = link_shape(rate)
    assert (shape.rate, shape.burst_bytes, shape.packet_bytes) == (rate, burst, packet)


@given(RATES)
def test_a_packet_fits_into_the_bucket_and_a_bucket_hides_no_message(rate):
    shape = link_shape(rate)
    assert shape.packet_bytes < shape.burst_bytes <= 130_000


@given(RATES, st.integers(1, 63), st.sampled_from(["src", "dst"]))
def test_every_peer_has_a_queue_and_guarantees_fill_the_link(rate, num_peers, by):
    peers = [f"10.77.0.{number + 1}" for number in range(num_peers)]
    lines = shaping_commands("eth0", link_shape(rate), peers, by=by)
    classes = [
        re.search(r"parent (\S+) classid (\S+) htb rate (\d+)bit ceil (\d+)bit", line) for line in lines
    ]
    (link, *queues) = [match for match in classes if match]
    assert (link[1], link[2], int(link[3])) == ("1:", "1:1", rate)
    assert all(queue[1] == "1:1" for queue in queues)
    assert all(int(queue[4]) == rate for queue in queues)
    guaranteed = sum(int(queue[3]) for queue in queues)
    assert rate - num_peers <= guaranteed <= rate
    assert len({queue[2] for queue in queues}) == len(queues) == num_peers + 1
    # Each class has a queue, each peer a filter to its own one, and what no filter names has a class too.
    for queue in queues:
        assert sum(f"parent {queue[2]} bfifo" in line for line in lines) == 1
    filters = [re.search(rf"match ip {by} (\S+)/32 flowid (\S+)", line) for line in lines]
    assert [match[1] for match in filters if match] == peers
    assert len({match[2] for match in filters if match}) == num_peers
    assert any(line == "qdisc add dev eth0 root handle 1: htb default 2" for line in lines)
    assert "1:2" in {queue[2] for queue in queues} - {match[2] for match in filters if match}
