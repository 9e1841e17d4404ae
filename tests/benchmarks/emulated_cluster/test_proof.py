"""benchmarks.emulated_cluster.proof: pairs, lengths of messages, and what is judged of them."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.emulated_cluster.network import ClusterError, SetUp, link_shape, make_options
from benchmarks.emulated_cluster.proof import judge, main, message_bytes, prove, ring_pairs


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
    code = f"import sys, benchmarks.emulated_cluster.proof; print({heavy})"
    done = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


OPTIONS = make_options(2, "1gbit,10gbit")
LENGTH = 10**6


def judged(speed=0.95e9, counted=4_000_100, options=OPTIONS, hosts=OPTIONS.hosts):
    judge(options, (0, 1), LENGTH, hosts=list(hosts), seconds=2 * 8 * LENGTH / speed, counted_bytes=counted)


def printed(ranks=2, **changes):
    pair = {"hosts": list(OPTIONS.hosts), "seconds": 0.053, "counted_bytes": 20_000_000, **changes}
    return json.dumps({"ranks": ranks, "pairs": [pair]}) + "\n"


@given(st.integers(10**7, 10**11))
def test_messages_are_long_beside_what_passes_at_once_and_yet_quick(rate):
    assert message_bytes(rate) >= 40 * link_shape(rate).burst_bytes
    assert message_bytes(rate) * 8 / rate < 0.6


class Printing(SetUp):
    """Runs nothing, and says what a probe would print."""

    def __init__(self, text):
        super().__init__(1)
        self.text = text

    def run(self, *command, text="", check=True, environment=None):
        return subprocess.CompletedProcess(command, 0, self.text, "")


def test_results_are_read_and_judged():
    said = prove(OPTIONS, {}, Printing("some library greets\n" + printed()))
    assert said.startswith("cluster: 2 hosts, 1gbit, 10gbit; ping-pong between neighbours 0.94 Gbit/s, 20 MB")
    with pytest.raises(ClusterError, match="the ranks ran on a and b"):
        prove(OPTIONS, {}, Printing(printed(hosts=["a", "b"])))


@pytest.mark.parametrize(("text", "seen"), [("", "no"), (printed(1) * 2, "1"), ("[1]\n", "no")])
def test_ranks_that_do_not_see_each_other_are_refused(text, seen):
    with pytest.raises(ClusterError, match=rf"2 ranks were started .* saw {seen} rank.*different MPI"):
        prove(OPTIONS, {}, Printing(text))


@pytest.mark.parametrize("speed", [0.51e9, 0.96e9, 1.09e9])
def test_a_link_that_keeps_its_rate_is_believed(speed):
    judged(speed)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"speed": 1.11e9}, r"1\.11 Gbit/s over links of 1 Gbit/s: the links do not keep their rate.*tc -s class"),
        ({"speed": 0.49e9}, r"0\.49 Gbit/s over links of 1 Gbit/s: this machine's processors"),
        ({"counted": 3_999_999}, "each sent 4000000 bytes, but the kernel counted 3999999 on a link"),
        ({"hosts": ("vm", "vm")}, "the ranks ran on vm and vm"),
    ],
)  # fmt: skip
def test_what_is_refused(found, message):
    with pytest.raises(ClusterError, match=f"ping-pong between host0-1gbit and host1-10gbit: .*{message}|{message}"):
        judged(**found)


def test_without_limits_bytes_alone_are_judged():
    free = make_options(2, "unlimited")
    judged(speed=1e12, options=free, hosts=free.hosts)
    with pytest.raises(ClusterError, match="another way"):
        judged(counted=5, options=free, hosts=free.hosts)


def test_a_launcher_that_fails_is_quoted(tmp_path, monkeypatch):
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\nfor i in 1 2 3 4 5 6 7 8 9; do echo line $i >&2; done; exit 5\n")
    mpirun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(ClusterError, match=r"exit status 5\); it said:\nline 2\n") as caught:
        prove(OPTIONS, {"PATH": "/bin"}, SetUp(20))
    assert "line 9" in str(caught.value)
