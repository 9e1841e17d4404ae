"""Sums by way of the own host against direct ones, and the choice between the two."""

import platform
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm import hosts as hosts_module
from windrow.comm.errors import CollectiveMismatchError, RecipeError
from windrow.comm.hierarchy import hierarchical
from windrow.comm.hosts import gather_hosts, host_groups, kernel_id
from windrow.comm.link_model import predict_all_reduce_by_exchange
from windrow.comm.links import NetworkDescription, described_links
from windrow.comm.loopback import Loopback
from windrow.comm.wire import make_codec


@given(hosts=st.lists(st.sampled_from("abc"), min_size=1, max_size=6), data=st.data())
def test_exchanges_and_sums_equal_direct_ones(hosts, data):
    size = len(hosts)
    cells = st.lists(st.integers(0, 3), min_size=size, max_size=size)
    counts = data.draw(st.lists(cells, min_size=size, max_size=size))
    length = data.draw(st.integers(0, 9))

    def body(world):
        by_hosts = hierarchical(world, hosts)
        send_counts = counts[world.rank]
        send = torch.arange(3 * sum(send_counts)).reshape(-1, 3) + 1000 * world.rank
        received = [row[world.rank] for row in counts]
        values = torch.arange(length) * (world.rank + 1) % 5
        for one in (world, by_hosts):
            yield one.all_to_all(send, send_counts, received, stage="test").tolist()
            yield one.all_reduce(values.clone(), stage="test").tolist()
            yield one.all_reduce(values.clone(), stage="test", op="max").tolist()
            yield one.all_reduce(values.float(), stage="test", codec=make_codec("bf16")).tolist()

    for direct_and_by_hosts in Loopback.run(size, lambda world: list(body(world)), deadline_s=20):
        assert direct_and_by_hosts[:4] == direct_and_by_hosts[4:]


def test_many_exchanges_may_be_under_way(spmd):
    def body(world):
        by_hosts = hierarchical(world, ["a", "b", "a", "b"][: world.size])
        ones = [1] * world.size
        sends = [torch.full((world.size, 2), 10.0 * n + world.rank) for n in range(4)]
        started = [by_hosts.start_all_to_all(send, ones, ones, stage="t") for send in sends]
        for pending in started if world.rank else started[::-1]:
            pending.test()
        for n, pending in enumerate(started):
            assert pending.wait()[:, 0].tolist() == [10.0 * n + peer for peer in range(world.size)]

    spmd(body)


def test_a_subgroup_of_hosts_needs_no_other_rank():
    def body(world):
        pair = hierarchical(world, "aabb").split([[0, 2], [1], [3]])
        return pair.all_gather_object(world.rank, stage="test") if world.rank in (0, 2) else []

    assert Loopback.run(4, body) == [[0, 2], [], [0, 2], []]


def test_hosts_are_found_by_name_and_kernel(monkeypatch):
    names = iter(["node", "other", "node", "node"])
    kernels = iter("1123")

    def body(world):
        for rank in range(world.size):  # One thread after another takes its name.
            if world.rank == rank:
                name, kernel = next(names), next(kernels)
            world.barrier(stage="turn")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world, "all_gather_object", lambda value, stage: gather(world, (name, kernel)))
            return gather_hosts(world)

    def gather(world, value):
        return type(world).all_gather_object(world, value, stage="test")

    assert Loopback.run(4, body)[0] == ["node", "other", "node (2)", "node (3)"]
    monkeypatch.setattr(hosts_module.socket, "gethostname", lambda: "here")
    assert gather_hosts(Loopback.single()) == ["here"]


def test_cores_are_shared_by_the_ranks_of_a_kernel(monkeypatch):
    own = threading.local()
    monkeypatch.setattr(hosts_module, "kernel_id", lambda: own.kernel)
    monkeypatch.setattr(hosts_module, "own_cores", lambda: frozenset(range(6)))

    def body(world):
        own.kernel = "abbb"[world.rank]
        return hosts_module.cores_of_rank(world)

    assert Loopback.run(4, body, deadline_s=60) == [6, 2, 2, 2]


def test_processes_of_one_machine_share_a_kernel_id(tmp_path):
    program = "from windrow.comm.hosts import kernel_id; print(kernel_id())"
    command = [sys.executable, "-P", "-c", program]
    printed = subprocess.run(command, check=True, capture_output=True, text=True)
    assert printed.stdout.strip() == kernel_id()
    (tmp_path / "boot_id").write_text("one-start-of-a-kernel\n")
    assert kernel_id(tmp_path / "boot_id") == "one-start-of-a-kernel"
    assert kernel_id(tmp_path / "absent") == platform.node()


def links(**changes):
    return described_links(NetworkDescription(**{"nodes": 2, "ranks_per_node": 2, **changes}))


def test_the_way_that_is_predicted_to_be_faster_is_taken_by_all_ranks():
    """With ranks dealt to hosts in turn, halving sends its longest messages between hosts; short sums are doubled."""
    network, turns = links(), [0, 2, 1, 3]
    dealt = replace(
        network,
        hosts=[network.hosts[rank] for rank in turns],
        latency_s=network.latency_s[np.ix_(turns, turns)],
        seconds_per_byte=network.seconds_per_byte[np.ix_(turns, turns)],
    )

    def body(world):
        chosen = hierarchical(world, dealt.hosts, links=dealt if world.rank == 0 else network)
        assert chosen is not world
        directly = []
        world.post_all_reduce = lambda *args: directly.append(1) or Loopback.post_all_reduce(world, *args)
        found = []
        for length in (1 << 20, 100):
            assert chosen.all_reduce(torch.ones(length), stage="test").eq(4).all()
            found.append(bool(directly))
        return found

    assert Loopback.run(4, body) == [[False, True]] * 4


def test_sums_between_hosts_send_a_part_for_each_rank_of_a_host():
    network = links(latency_us=0.0, latency_inside_us=0.0, rate_inside="2000gbit")
    alone = predict_all_reduce_by_exchange(network, 8e6, [[rank] for rank in range(4)])
    together = predict_all_reduce_by_exchange(network, 8e6, host_groups(network.hosts))
    # Out of a host go 2 x 2 quarters and the same again; or 2 quarters and the same again.
    assert together / alone == pytest.approx(0.5, rel=0.1)


def test_one_host_or_one_rank_on_each_needs_no_hierarchy():
    def body(world):
        return hierarchical(world, "aa") is world and hierarchical(world, "ab") is world

    assert all(Loopback.run(2, body))


def test_hosts_and_links_must_be_those_of_the_ranks():
    def body(world):
        with pytest.raises(RecipeError, match="hosts of 3 ranks for a world of 2"):
            hierarchical(world, "aab")
        with pytest.raises(RecipeError, match="links of 4 ranks for a world of 2"):
            hierarchical(world, "ab", links=links())

    Loopback.run(2, body)

    def disagree(world):
        with pytest.raises(CollectiveMismatchError):
            hierarchical(world, "aabb" if world.rank else "abba")

    Loopback.run(4, disagree, deadline_s=10)
