"""windrow.launch.cluster.network: rates, names, and what makes no sense."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import ClusterError
from windrow.launch.cluster.network import (
    ClusterOptions,
    describe_rates,
    format_rate,
    make_options,
    parse_rate,
)


@pytest.mark.parametrize(
    ("text", "rate", "name"),
    [
        ("100mbit", 10**8, "100mbit"),
        ("1gbit", 10**9, "1gbit"),
        (" 2.5Gbit", 25 * 10**8, "2500mbit"),
        ("1000mbit", 10**9, "1gbit"),
        ("10gbit", 10**10, "10gbit"),
        ("64kbit", 64000, "64kbit"),
        ("1001bit", 1001, "1001bit"),
        ("unlimited", None, "unlimited"),
    ],
)
def test_rates(text, rate, name):
    assert parse_rate(text) == rate
    assert format_rate(rate) == name


@given(st.integers(1, 10**12))
def test_a_rate_survives_its_name(rate):
    assert parse_rate(format_rate(rate)) == rate


@pytest.mark.parametrize("text", ["", "fast", "1", "1gb", "-1gbit", "1e3mbit", "gbit", "1 gbit", "nan"])
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
        (1, "1gbit", r"1 host\(s\) has no network: take --hosts 2 or more, or run .* without"),
        (0, "1gbit", "no network"),
        (-4, "1gbit", "no network"),
        (10**15, "1gbit", "at most 64"),
        (65, "unlimited", "at most 64"),
        (3, "1gbit,1gbit", "gives 2 rates for 3 hosts: give one for all, or one for each"),
        (2, "1mbit", "rate 1mbit: expected 10mbit to 100gbit, or unlimited"),
        (2, "1gbit,101gbit", "rate 101gbit: expected"),
        (2, "0gbit", "expected 10mbit"),
        (2, "1gbit,", "rate '': expected"),
    ],
)
def test_what_makes_no_sense(hosts, rate, message):
    with pytest.raises(ClusterError, match=message):
        make_options(hosts, rate)


def test_rates_as_people_read_them():
    assert describe_rates((10**9, 10**9)) == "1 Gbit/s each"
    assert describe_rates((10**8, 25 * 10**8, None)) == "100 Mbit/s, 2.5 Gbit/s, unlimited"
