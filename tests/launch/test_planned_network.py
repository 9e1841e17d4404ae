"""windrow.launch.known_links: networks from files, and links that were kept."""

import socket
from pathlib import Path

import numpy as np
import pytest

from windrow.comm.errors import RecipeError, StoreError
from windrow.comm.links import Links, NetworkDescription, described_links, links_to_json
from windrow.launch.known_links import (
    cache_folder,
    cached_file,
    kept_links_of_this_machine,
    ranks_on_one_host,
    read_network,
)


def same(one: Links, other: Links) -> bool:
    return one.hosts == other.hosts and np.array_equal(one.seconds_per_byte, other.seconds_per_byte)


def test_a_description_and_links_that_were_written(tmp_path: Path) -> None:
    links = described_links(NetworkDescription(nodes=2, ranks_per_node=3, rate="5gbit"))
    (tmp_path / "network.toml").write_text('nodes = 2\nranks_per_node = 3\nrate = "5gbit"\n')
    (tmp_path / "links.json").write_text(links_to_json(links))
    assert same(read_network(tmp_path / "network.toml"), links)
    assert same(read_network(tmp_path / "links.json"), links)
    assert ranks_on_one_host(links) == 3


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


def test_links_of_this_machine_are_known_once_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kept_links_of_this_machine(2) is None
    host = socket.gethostname()
    zeros = np.zeros((2, 2))
    links = Links(hosts=[host, host], latency_s=zeros + 1e-6, seconds_per_byte=zeros + 1e-9, hidden_s=zeros)
    file = cached_file(cache_folder(), links.hosts, backend="MPIWorld", device="cpu")
    file.parent.mkdir(parents=True)
    file.write_text(links_to_json(links))
    kept = kept_links_of_this_machine(2)
    assert kept is not None
    assert same(kept, links)
    assert kept_links_of_this_machine(3) is None
