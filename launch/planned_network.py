"""The network that a plan is for: described, measured before, or that of this machine where it is known."""

import socket
from collections import Counter
from pathlib import Path

from windrow.comm.errors import RecipeError
from windrow.comm.links import Links, links_from_json
from windrow.comm.network_description import NetworkDescription, described_links
from windrow.launch.links_cache import cache_folder, cached_file, read_cached_links
from windrow.launch.settings import parse_settings
from windrow.launch.toml_file import read_toml

__all__ = ["kept_links_of_this_machine", "ranks_on_one_host", "read_network"]


def read_network(path: Path) -> Links:
    """Read a network.

    Args:
        path: a description (*.toml), or links as ``windrow network --out`` writes them (*.json).

    Raises:
        RecipeError: it is neither, or the description is wrong.
        StoreError: the links are damaged.
    """
    if path.suffix == ".toml":
        network = parse_settings(NetworkDescription, read_toml(path), source=str(path), base=path.parent)
        return described_links(network)
    if path.suffix != ".json":
        raise RecipeError(
            f"{path}: expected a description of a network (*.toml), or links that `windrow network --out` "
            "wrote (*.json)"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(
            f"cannot read {path} ({error}): write it by `mpirun -n 4 windrow network --out {path}`"
        ) from error
    return links_from_json(text, source=str(path))


def kept_links_of_this_machine(ranks: int) -> Links | None:
    """What ``mpirun -n RANKS windrow network`` measured on this machine; None where nobody ran it.

    Args:
        ranks: how many, all on this host.
    """
    hosts = [socket.gethostname()] * ranks
    return read_cached_links(cached_file(cache_folder(), hosts, backend="MPIWorld", device="cpu"), hosts)


def ranks_on_one_host(links: Links) -> int:
    """How many ranks share a machine: on the one that has most.

    Args:
        links: of the network.
    """
    return max(Counter(links.hosts).values())
