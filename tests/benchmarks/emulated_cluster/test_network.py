"""benchmarks.emulated_cluster.network: options of the command line, the commands that make links, and their queues."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.emulated_cluster import network
from benchmarks.emulated_cluster.network import (
    ClusterError,
    ClusterOptions,
    SetUp,
    build_network,
    format_rate,
    host_address,
    link_shape,
    make_options,
    parse_rate,
    require_tools,
    shaping_commands,
)


@pytest.mark.parametrize(
    ("text", "rate", "name"),
    [
        ("100mbit", 10**8, "100mbit"),
        (" 2.5Gbit", 25 * 10**8, "2500mbit"),
        ("1000mbit", 10**9, "1gbit"),
        ("64064kbit", 64064000, "64064kbit"),
        ("10000001bit", 10000001, "10000001bit"),
        ("unlimited", None, "unlimited"),
    ],
)
def test_rates(text, rate, name):
    assert parse_rate(text) == rate
    assert format_rate(rate) == name


@given(st.integers(10**7, 10**11))
def test_a_rate_survives_its_name(rate):
    assert parse_rate(format_rate(rate)) == rate


@pytest.mark.parametrize("text", ["", "fast", "1", "1gb", "-1gbit", "1e3mbit", "gbit", "1 gbit", "nan", "1tbit"])
def test_no_rates(text):
    with pytest.raises(ClusterError, match="expected a number with its unit"):
        parse_rate(text)


@given(st.lists(st.sampled_from([None, 10**7, 10**9, 25 * 10**8]), min_size=2, max_size=64))
def test_hosts_have_names_of_their_own_that_a_resolver_takes(rates):
    hosts = ClusterOptions(rates=tuple(rates)).hosts
    assert len(set(hosts)) == len(hosts) == len(rates)
    assert all(host.replace("-", "").isalnum() and len(host) < 64 for host in hosts)


def test_one_rate_for_all_or_one_for_each():
    assert make_options(3, "1gbit").rates == (10**9,) * 3
    mixed = make_options(3, "1gbit,unlimited,100mbit")
    assert mixed.hosts == ("host0-1gbit", "host1-unlimited", "host2-100mbit")
    told = json.loads(mixed.to_json())
    assert told == {"hosts": list(mixed.hosts), "rates_bits_per_second": [10**9, None, 10**8]}


@pytest.mark.parametrize(
    ("hosts", "rate", "message"),
    [
        (1, "1gbit", r"1 host\(s\) have no network: take --hosts 2 or more, or run"),
        (-4, "1gbit", "no network"),
        (65, "unlimited", "at most 64"),
        (3, "1gbit,1gbit", "gives 2 rates for 3 hosts: give one for all, or one for each"),
        (2, "1mbit", r"rate '1mbit': expected .*, 10mbit to 100gbit, or unlimited"),
        (2, "1gbit,101gbit", "rate '101gbit': expected"),
        (2, "0gbit", "10mbit to"),
        (2, "1gbit,", "rate '': expected"),
    ],
)
def test_what_makes_no_sense(hosts, rate, message):
    with pytest.raises(ClusterError, match=message):
        make_options(hosts, rate)


class Recorder(SetUp):
    """Runs nothing and keeps what it was to run."""

    def __init__(self):
        super().__init__(1)
        self.seen = []

    def run(self, *command, text="", check=True, environment=None):
        self.seen.append((command, text))


def test_every_host_is_connected_and_every_limited_link_is_shaped_at_both_ends():
    recorder = Recorder()
    build_network(make_options(3, "1gbit,unlimited,10gbit"), recorder)
    lines = dict(recorder.seen)
    made = lines["ip", "-batch", "-"] + "\n"
    for number, host in enumerate(("host0-1gbit", "host1-unlimited", "host2-10gbit")):
        assert f"netns add {host}\nlink add port{number} type veth peer name eth0 netns {host}\n" in made
        size = {0: " gso_max_size 16384", 1: "", 2: " gso_max_size 65536"}[number]
        assert f"link set port{number} master switch up{size}\n" in made, "packets fit into buckets"
        assert f"addr add {host_address(number)}/24 dev eth0" in lines["ip", "-netns", host, "-batch", "-"]
    assert ("tc", "-netns", "host1-unlimited", "-batch", "-") not in lines
    ports = lines["tc", "-batch", "-"]
    assert "port1 " not in ports
    assert "match ip src 10.77.0.2/32" in ports
    own = lines["tc", "-netns", "host2-10gbit", "-batch", "-"]
    assert "rate 10000000000bit" in own
    assert "match ip dst 10.77.0.1/32" in own
    assert "10.77.0.3" not in own


def test_a_missing_program_is_named_with_its_package(monkeypatch):
    monkeypatch.setattr(network, "find_program", lambda name: None if name in {"tc", "ip"} else f"/bin/{name}")
    with pytest.raises(ClusterError, match=r"ip and tc not found: apt install iproute2\. What works without"):
        require_tools()


def test_a_program_that_fails_is_quoted():
    with pytest.raises(ClusterError, match="sh -c echo oh no >&2; exit 1 failed: oh no"):
        SetUp(20).run("sh", "-c", "echo oh no >&2; exit 1")
    done = SetUp(20).run("sh", "-c", 'cat; echo "$A"; exit 4', text="in ", check=False, environment={"A": "b"})
    assert (done.stdout, done.returncode) == ("in b\n", 4)


def test_a_program_that_hangs_is_named():
    set_up = SetUp(0.3)
    with pytest.raises(ClusterError, match=r"longer than 0\.3 s; it hung in: sleep 60"):
        set_up.run("sleep", "60")
    # One deadline for all of them together.
    with pytest.raises(ClusterError, match="sleep 61"):
        set_up.run("sleep", "61")


def test_programs_for_administration_are_found_without_a_path_to_them(monkeypatch, tmp_path):
    (tmp_path / "tc").write_text("#!/bin/sh\n")
    (tmp_path / "tc").chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(network, "ADMINISTRATION_PATH", f"/nowhere-either:{tmp_path}")
    assert network.find_program("tc") == str(tmp_path / "tc")
    assert network.find_program("no-such-program") is None


RATES = st.integers(10**7, 10**11)


@pytest.mark.parametrize(
    ("rate", "burst", "packet"),
    [(10**7, 17_000, 16_384), (10**9, 17_000, 16_384), (25 * 10**8, 31_250, 16_384), (10**10, 125_000, 65_536),
     (10**11, 130_000, 65_536)],
)  # fmt: skip
def test_known_links(rate, burst, packet):
    shape = link_shape(rate)
    assert shape == (burst, packet)


@given(RATES)
def test_a_packet_fits_into_the_bucket_and_a_bucket_hides_no_message(rate):
    shape = link_shape(rate)
    assert shape.packet_bytes < shape.burst_bytes <= 130_000


@given(RATES, st.integers(1, 63), st.sampled_from(["src", "dst"]))
def test_every_peer_has_a_queue_and_guarantees_fill_the_link(rate, num_peers, by):
    peers = [f"10.77.0.{number + 1}" for number in range(num_peers)]
    lines = shaping_commands("eth0", rate, peers, by=by)
    classes = [re.search(r"parent (\S+) classid (\S+) htb rate (\d+)bit ceil (\d+)bit", line) for line in lines]
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
