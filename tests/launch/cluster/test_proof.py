"""windrow.launch.cluster.proof: pairs, lengths of messages, and what is judged of them."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import ClusterError
from windrow.launch.cluster.network import SetUp, link_shape, make_options
from windrow.launch.cluster.proof import (
    PairResult,
    expected_seconds,
    judge,
    main,
    message_bytes,
    prove,
    read_results,
    ring_pairs,
)


@given(st.integers(2, 64))
def test_every_host_plays_and_no_pair_twice(num_hosts):
    pairs = ring_pairs(num_hosts)
    assert {host for pair in pairs for host in pair} == set(range(num_hosts))
    assert len({frozenset(pair) for pair in pairs}) == len(pairs)
    assert all(first != second for first, second in pairs)


def test_a_rank_alone_says_so(capsys):
    assert main(["1000"]) == 0
    assert capsys.readouterr().out == '{"ranks": 1, "pairs": []}\n'


def test_loading_it_loads_no_heavy_library():
    heavy = "[name for name in ('torch', 'numba', 'numpy') if name in sys.modules]"
    code = f"import sys, windrow.launch.cluster.proof; print({heavy})"
    done = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


OPTIONS = make_options(2, "1gbit,10gbit")
RATES = st.one_of(st.none(), st.integers(10**7, 10**11))


def result(speed=0.95e9, counted=1_000_100, hosts=OPTIONS.hosts):
    return PairResult(hosts=hosts, payload_bytes=10**6, bits_per_second=speed, counted_bytes=counted)


def printed(ranks=2):
    pair = {
        "hosts": list(OPTIONS.hosts),
        "message_bytes": 10**6,
        "messages": 4,
        "seconds": 0.0165,
        "counted_bytes": [4_100_000, 4_000_500],
    }
    return json.dumps({"ranks": ranks, "pairs": [pair]}) + "\n"


@given(RATES, RATES)
def test_messages_are_long_beside_what_passes_at_once(first, second):
    length = message_bytes(first, second)
    assert length == message_bytes(second, first)
    for rate in (first, second):
        if rate is not None:
            assert length >= 20 * link_shape(rate).burst_bytes


def test_the_proof_of_usual_clusters_is_quick():
    assert expected_seconds(make_options(4, "1gbit")) < 1
    assert expected_seconds(make_options(4, "10gbit")) < 1
    assert expected_seconds(make_options(4, "unlimited")) == 0
    # Two pairs of three are held up by the slow host: four messages of 340 kB, there and back.
    slow = expected_seconds(make_options(3, "10mbit,unlimited,unlimited"))
    assert slow == pytest.approx(2 * 2 * 4 * 340_000 * 8 / 1e7)


def test_results_are_read():
    noise = "some library greets\n"
    (one,) = read_results(noise + printed(), 2)
    assert (one.hosts, one.payload_bytes, one.counted_bytes) == (OPTIONS.hosts, 4_000_000, 4_000_500)
    assert one.bits_per_second == pytest.approx(2 * 8e6 / 0.0165)


@pytest.mark.parametrize(("text", "seen"), [("", "no"), (printed(1) * 2, "1"), ("[1]\n", "no")])
def test_ranks_that_do_not_see_each_other_are_refused(text, seen):
    with pytest.raises(ClusterError, match=rf"2 ranks were started .* saw {seen} rank.*different MPI"):
        read_results(text, 2)


@pytest.mark.parametrize("speed", [0.51e9, 0.96e9, 1.09e9])
def test_a_link_that_keeps_its_rate_is_believed(speed):
    judge(OPTIONS, [result(speed)])


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (result(speed=1.11e9), r"1\.11 Gbit/s over links of 1 Gbit/s: the links do not keep their rate.*tc -s class"),
        (result(speed=0.49e9), r"0\.49 Gbit/s over links of 1 Gbit/s: this machine's processors"),
        (result(counted=999_999), "each sent 1000000 bytes, but the kernel counted 999999 on a link"),
        (result(hosts=("vm", "vm")), "the ranks ran on vm and vm"),
    ],
)  # fmt: skip
def test_what_is_refused(found, message):
    with pytest.raises(ClusterError, match=f"ping-pong between host0-1gbit and host1-10gbit: .*{message}|{message}"):
        judge(OPTIONS, [found])


def test_without_limits_bytes_alone_are_judged():
    free = make_options(2, "unlimited")
    judge(free, [result(speed=1e12, hosts=free.hosts)])
    with pytest.raises(ClusterError, match="another way"):
        judge(free, [result(counted=5, hosts=free.hosts)])


def test_a_launcher_that_fails_is_quoted(tmp_path, monkeypatch):
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\nfor i in 1 2 3 4 5 6 7 8 9; do echo line $i >&2; done; exit 5\n")
    mpirun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(ClusterError, match=r"exit status 5\); it said:\nline 2\n") as caught:
        prove(OPTIONS, {"PATH": "/bin"}, SetUp(20))
    assert "line 9" in str(caught.value)
