"""windrow.launch.cluster.probe: which links are played over, and that it is quick to load."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from windrow.launch.cluster.probe import main, ring_pairs, sent_bytes


@given(st.integers(2, 64))
def test_every_host_plays_and_no_pair_twice(num_hosts):
    pairs = ring_pairs(num_hosts)
    assert {host for pair in pairs for host in pair} == set(range(num_hosts))
    assert len({frozenset(pair) for pair in pairs}) == len(pairs)
    assert all(first != second for first, second in pairs)


def test_bytes_are_those_of_the_kernel(tmp_path):
    (tmp_path / "tx_bytes").write_text("1234\n")
    assert sent_bytes(tmp_path) == 1234


def test_a_rank_alone_says_so(capsys):
    assert main(["1000"]) == 0
    assert capsys.readouterr().out == '{"ranks": 1, "pairs": []}\n'


def test_loading_it_loads_no_heavy_library():
    heavy = "[name for name in ('torch', 'numba', 'numpy') if name in sys.modules]"
    code = f"import sys, windrow.launch.cluster.probe; print({heavy})"
    done = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
