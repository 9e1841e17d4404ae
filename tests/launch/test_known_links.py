"""windrow.launch.known_links: one file per set of hosts, networks from files, tables of links."""

import math
import os
import re
import socket
from pathlib import Path

import numpy as np
import pytest
import torch

from windrow.comm.errors import RecipeError, StoreError
from windrow.comm.link_model import predict_all_reduce, predict_all_reduce_by_exchange
from windrow.comm.links import Links, NetworkDescription, described_links, links_from_json, links_to_json
from windrow.comm.loopback import Loopback
from windrow.launch import known_links as links_cache
from windrow.launch.known_links import (
    PREDICTED_BYTES,
    cache_folder,
    cached_file,
    kept_links_of_this_machine,
    known_links,
    link_rows,
    prediction_rows,
    read_cached_links,
    read_network,
    world_of_sums,
)
from windrow.training.terminal import table

HOSTS = ["host0-1gbit", "host1-1gbit"]


def made_up(hosts: list[str] = HOSTS, latency_s: float = 0.5) -> Links:
    ones = np.ones((len(hosts), len(hosts)))
    return Links(hosts=hosts, latency_s=ones * latency_s, seconds_per_byte=ones, hidden_s=0 * ones)


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ranks that measured; what they "measure" is made up."""
    calls: list[int] = []

    def measure(world):
        calls.append(world.rank)
        return made_up(latency_s=0.25)

    monkeypatch.setattr(links_cache, "measure_links", measure)
    return calls


def ask(folder: Path, **changes) -> list[tuple[Links, str]]:
    return Loopback.run(2, lambda world: known_links(world, hosts=HOSTS, folder=folder, **changes))


def test_measured_once_then_known(tmp_path, probe):
    first = ask(tmp_path / "a" / "b")
    assert sorted(probe) == [0, 1]
    links, said = first[0]
    (file,) = (tmp_path / "a" / "b").iterdir()
    assert said == f"measured just now, kept in {file}"
    assert read_cached_links(file, HOSTS) is not None
    os.utime(file, (1e9, 1e9))
    second = ask(tmp_path / "a" / "b")
    assert sorted(probe) == [0, 1]
    for known, said in second:
        assert re.fullmatch(rf"measured \d.* ago \(--measure does it anew\), kept in {file}", said)
        assert links_to_json(known) == links_to_json(links)
    ask(tmp_path / "a" / "b", measure=True)
    assert sorted(probe) == [0, 0, 1, 1]


@pytest.mark.parametrize("text", ["", "{", "[]", links_to_json(made_up(["other", "hosts"])), "\udcff"])
def test_a_damaged_file_is_measured_anew(tmp_path, probe, text):
    ask(tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(text.encode(errors="surrogateescape"))
    assert ask(tmp_path)[1][0].latency_s[0, 1] == 0.25
    assert len(probe) == 4
    assert links_from_json(file.read_text(), source="").hosts == tuple(HOSTS)


def test_the_world_of_sums_is_chosen_by_what_is_known(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(links_cache, "gather_hosts", lambda world: ["a", "b", "a", "b"][: world.size])

    def kinds(topology, size=4, device="cpu", travels_from=None):
        def body(world):
            monkeypatch.setattr(world, "transport_device", lambda device: torch.device(travels_from or device))
            chosen = world_of_sums(world, topology, device=torch.device(device))
            assert chosen.all_reduce(torch.ones(9), stage="test").eq(size).all()
            return "flat" if chosen is world else "by hosts"

        return set(Loopback.run(size, body))

    assert [kinds(topology) for topology in ("flat", "hierarchical", "auto")] == [{"flat"}, {"by hosts"}, {"flat"}]
    assert kinds("hierarchical", size=2) == {"flat"}
    hosts = ["a", "b", "a", "b"]
    file = cached_file(cache_folder(), hosts, backend="Loopback", device="cpu")
    file.parent.mkdir(parents=True)
    file.write_text(links_to_json(made_up(hosts)))
    assert kinds("auto") == {"by hosts"}
    # Gradients on GPUs cross the links that were measured where they go through the memory of the CPU.
    assert kinds("auto", device="cuda", travels_from="cpu") == {"by hosts"}
    assert kinds("auto", device="cuda") == {"flat"}


def test_a_folder_that_cannot_be_written_costs_the_next_measurement_only(tmp_path, probe):
    (tmp_path / "file").write_text("in the way")
    links, said = ask(tmp_path / "file" / "links")[0]
    assert links.size == 2
    assert f"not kept (File exists: {tmp_path}" in said or f"not kept (Not a directory: {tmp_path}" in said


def test_the_key_holds_all_that_links_depend_on(tmp_path):
    asked = [
        (HOSTS, "MPIWorld", "cpu"),
        (HOSTS[::-1], "MPIWorld", "cpu"),
        (HOSTS, "TorchWorld", "cpu"),
        (HOSTS, "TorchWorld", "cuda"),
        ([*HOSTS, "host2-1gbit"], "MPIWorld", "cpu"),
    ]
    files = {cached_file(tmp_path, hosts, backend=backend, device=device) for hosts, backend, device in asked}
    assert len(files) == len(asked)
    again = cached_file(tmp_path, tuple(HOSTS), backend="MPIWorld", device="cpu")
    assert again in files


def test_folder_follows_the_environment(tmp_path, monkeypatch):
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "windrow" / "links"
    monkeypatch.setenv("HOME", str(tmp_path))
    usual = tmp_path / ".cache" / "windrow" / "links"
    assert cache_folder({}) == cache_folder({"XDG_CACHE_HOME": "relative"}) == usual


def test_a_real_measurement_is_kept(tmp_path):
    def body(world):
        hosts = world.all_gather_object("here", stage="hosts")
        links, said = known_links(world, hosts=hosts, folder=tmp_path)
        return links.size, "just now, kept in" in said

    assert Loopback.run(2, body, deadline_s=60) == [(2, True)] * 2


def same(one: Links, other: Links) -> bool:
    return one.hosts == other.hosts and np.array_equal(one.seconds_per_byte, other.seconds_per_byte)


def test_a_description_and_links_that_were_written(tmp_path: Path) -> None:
    links = described_links(NetworkDescription(nodes=2, ranks_per_node=3, rate="5gbit"))
    (tmp_path / "network.toml").write_text('nodes = 2\nranks_per_node = 3\nrate = "5gbit"\n')
    (tmp_path / "links.json").write_text(links_to_json(links))
    assert same(read_network(tmp_path / "network.toml"), links)
    assert same(read_network(tmp_path / "links.json"), links)


def test_what_is_no_network(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"network.txt: expected a description"):
        read_network(tmp_path / "network.txt")
    with pytest.raises(RecipeError, match=r"windrow network --out"):
        read_network(tmp_path / "links.json")
    (tmp_path / "links.json").write_text("{}")
    with pytest.raises(StoreError, match=r"links.json"):
        read_network(tmp_path / "links.json")
    (tmp_path / "network.toml").write_text("node = 3")
    with pytest.raises(RecipeError, match=r"network.toml.*Did you mean 'nodes'"):
        read_network(tmp_path / "network.toml")


def test_links_of_this_machine_are_known_once_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kept_links_of_this_machine(2) is None
    links = made_up([socket.gethostname()] * 2)
    file = cached_file(cache_folder(), links.hosts, backend="MPIWorld", device="cpu")
    file.parent.mkdir(parents=True)
    file.write_text(links_to_json(links))
    kept = kept_links_of_this_machine(2)
    assert kept is not None
    assert same(kept, links)
    assert kept_links_of_this_machine(3) is None


def test_few_ranks_are_listed_pair_by_pair():
    rows = link_rows(described_links(NetworkDescription(nodes=3, rate="10gbit", node_rates={"2": "1gbit"})))
    assert [(row["from"], row["to"]) for row in rows][:3] == [
        ("0 node0", "1 node1"), ("0 node0", "2 node2"), ("1 node1", "0 node0")
    ]  # fmt: skip
    assert [row["Gbit/s"] for row in rows] == pytest.approx([10, 1, 10, 1, 1, 1])
    assert rows[0]["latency us"] == pytest.approx(20)


def test_many_ranks_are_summed_up():
    links = described_links(NetworkDescription(nodes=8, ranks_per_node=2, rate="10gbit", node_rates={"7": "1gbit"}))
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


def test_predictions_are_those_of_the_model():
    two = described_links(NetworkDescription(nodes=2, ranks_per_node=2))
    by_hosts = predict_all_reduce_by_exchange(two, PREDICTED_BYTES[5], [[0, 1], [2, 3]])
    assert prediction_rows(two)[5]["all-reduce by hosts ms"] == pytest.approx(by_hosts * 1e3)
    links = described_links(NetworkDescription(nodes=4))
    rows = prediction_rows(links)
    assert [row["all-reduce ms"] for row in rows] == pytest.approx(
        [predict_all_reduce(links, num_bytes) * 1e3 for num_bytes in PREDICTED_BYTES]
    )
    assert rows[3]["all-to-all ms"] == pytest.approx(0.02 + 3 / 4 * (1 << 20) * 8e-10 * 1e3)
    assert [row["bytes per rank"] for row in rows][:1] == ["1.0 KiB"]
