"""windrow.launch.known_links: one file per set of hosts; what is damaged is measured anew."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from windrow.comm.link_probe import ProbeOptions
from windrow.comm.links import Links, links_from_json, links_to_json
from windrow.comm.loopback import Loopback
from windrow.launch import known_links as links_cache
from windrow.launch.known_links import (
    KnownLinks,
    cache_folder,
    cached_file,
    known_links,
    read_cached_links,
    world_of_sums,
)

HOSTS = ["host0-1gbit", "host1-1gbit"]


def made_up(hosts: list[str] = HOSTS, latency_s: float = 0.5) -> Links:
    ones = np.ones((len(hosts), len(hosts)))
    return Links(hosts=hosts, latency_s=ones * latency_s, seconds_per_byte=ones, hidden_s=0 * ones)


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ranks that measured; what they "measure" is made up."""
    calls: list[int] = []

    def measure(world, options, *, device):
        calls.append(world.rank)
        return made_up(latency_s=0.25)

    monkeypatch.setattr(links_cache, "measure_links", measure)
    return calls


def ask(folder: Path, **changes) -> list[KnownLinks]:
    return Loopback.run(2, lambda world: known_links(world, hosts=HOSTS, folder=folder, **changes))


def test_measured_once_then_known(tmp_path, probe):
    first = ask(tmp_path / "a" / "b")
    assert sorted(probe) == [0, 1]
    assert first[0].age_s == 0
    assert first[0].problem == ""
    assert read_cached_links(first[0].file, HOSTS) is not None
    os.utime(first[0].file, (1e9, 1e9))
    second = ask(tmp_path / "a" / "b")
    assert sorted(probe) == [0, 1]
    for known in second:
        assert known.age_s > 1e7
        assert links_to_json(known.links) == links_to_json(first[0].links)
    ask(tmp_path / "a" / "b", measure=True)
    assert sorted(probe) == [0, 0, 1, 1]


def test_the_world_of_sums_is_chosen_by_what_is_known(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(links_cache, "gather_hosts", lambda world: ["a", "b", "a", "b"][: world.size])

    def kinds(topology, size=4):
        def body(world):
            chosen = world_of_sums(world, topology, device="cpu")
            assert chosen.all_reduce(torch.ones(9), stage="test").eq(size).all()
            return "flat" if chosen is world else "by hosts"

        return set(Loopback.run(size, body))

    assert [kinds(topology) for topology in ("flat", "hierarchical", "auto")] == [
        {"flat"},
        {"by hosts"},
        {"flat"},
    ]
    assert kinds("hierarchical", size=2) == {"flat"}
    hosts = ["a", "b", "a", "b"]
    file = cached_file(cache_folder(), hosts, backend="Loopback", device="cpu")
    file.parent.mkdir(parents=True)
    file.write_text(links_to_json(made_up(hosts)))
    assert kinds("auto") == {"by hosts"}


@pytest.mark.parametrize("text", ["", "{", "[]", links_to_json(made_up(["other", "hosts"])), "\udcff"])
def test_a_damaged_file_is_measured_anew(tmp_path, probe, text):
    file = ask(tmp_path)[0].file
    file.write_bytes(text.encode(errors="surrogateescape"))
    assert ask(tmp_path)[1].links.latency_s[0, 1] == 0.25
    assert len(probe) == 4
    assert links_from_json(file.read_text(), source="").hosts == tuple(HOSTS)


def test_a_folder_that_cannot_be_written_costs_the_next_measurement_only(tmp_path, probe):
    (tmp_path / "file").write_text("in the way")
    known = ask(tmp_path / "file" / "links")
    assert known[0].links.size == 2
    assert str(known[0].file) in known[0].problem


def test_the_key_holds_all_that_links_depend_on(tmp_path):
    asked = [
        (HOSTS, "MPIWorld", "cpu"),
        (HOSTS[::-1], "MPIWorld", "cpu"),
        (["host0-10gbit", "host1-10gbit"], "MPIWorld", "cpu"),
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


def test_a_real_measurement_is_kept(spmd, shared_tmp_path):
    quick = ProbeOptions(sizes_bytes=(8, 4096), max_repeats=2, min_repeats=1)

    def body(world):
        hosts = world.all_gather_object("here", stage="hosts")
        known = known_links(world, hosts=hosts, folder=shared_tmp_path, options=quick)
        return known.links.size, known.age_s, known.problem

    answers = spmd(body)
    assert answers == [(len(answers), 0.0, "")] * len(answers)
