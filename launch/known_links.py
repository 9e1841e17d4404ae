"""The links of a cluster: measured once and kept on disk, or read from a description; and tables of them for people.

    ~/.cache/windrow/links/            or $XDG_CACHE_HOME/windrow/links/
        3f0c9a51d2e84b76.json          links, as `windrow.comm.links` writes them

The name is a digest of all that the links depend on: hosts in rank order, backend, device that messages leave from,
version of the format. Hosts of an emulated cluster carry their rate in their name: each rate has a file of its own.
"""

import hashlib
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from windrow.comm.errors import RecipeError, StoreError
from windrow.comm.hierarchy import hierarchical
from windrow.comm.hosts import gather_hosts, host_groups
from windrow.comm.link_model import predict_all_reduce, predict_all_reduce_by_exchange, predict_all_to_all
from windrow.comm.link_probe import measure_links
from windrow.comm.links import (
    FORMAT_VERSION,
    Links,
    NetworkDescription,
    described_links,
    links_from_json,
    links_to_json,
)
from windrow.comm.wire import Topology
from windrow.comm.world import World
from windrow.launch.settings import parse_settings, read_toml
from windrow.partition.atomic_writes import write_atomically
from windrow.training.terminal import byte_size, duration

__all__ = [
    "PREDICTED_BYTES",
    "cache_folder",
    "cached_file",
    "kept_links",
    "kept_links_of_this_machine",
    "known_links",
    "link_rows",
    "prediction_rows",
    "read_cached_links",
    "read_description",
    "read_network",
    "world_of_sums",
]

STAGE = "links of this cluster"


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of measured links: of ``XDG_CACHE_HOME``, else ``~/.cache``."""
    named = environment.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path is to be ignored.
    base = Path(named) if Path(named).is_absolute() else Path.home() / ".cache"
    return base / "windrow" / "links"


def cached_file(folder: Path, hosts: Sequence[str], *, backend: str, device: str) -> Path:
    """The file that links between these ranks are kept in.

    Args:
        folder: of the cache.
        hosts: machine of each rank, in rank order.
        backend: what carries the messages, for example "MPIWorld".
        device: kind of device that messages leave from: "cpu" or "cuda".
    """
    asked = json.dumps([FORMAT_VERSION, backend, device, list(hosts)])
    return folder / f"{hashlib.sha256(asked.encode()).hexdigest()[:16]}.json"


def read_cached_links(file: Path, hosts: Sequence[str]) -> Links | None:
    """Read links of these hosts that were kept; None where there are none, or the file is damaged."""
    try:
        links = links_from_json(file.read_text(encoding="utf-8"), source=str(file))
    except (OSError, UnicodeDecodeError, StoreError):
        return None
    return links if list(links.hosts) == list(hosts) else None


def known_links(world: World, *, hosts: Sequence[str], folder: Path, measure: bool = False) -> tuple[Links, str]:
    """Links between the ranks of a job: those that were kept, else measured and kept. Collective.

    Args:
        world: the ranks.
        hosts: machine of each rank; must agree.
        folder: of the cache; that of rank 0 counts.
        measure: measure in any case; must agree.

    Returns:
        The links, the same on every rank; and for people when they were measured, and where they are kept.
    """
    file = _file_of(world, folder, hosts, torch.device("cpu"))
    kept: tuple[Links, str] | None = None
    if world.rank == 0 and not measure and (found := read_cached_links(file, hosts)) is not None:
        age = duration(max(0.0, time.time() - file.stat().st_mtime))
        kept = found, f"measured {age} ago (--measure does it anew), kept in {file}"
    known: tuple[Links, str] | None = world.broadcast_object(kept, root=0, stage=STAGE)
    if known is not None:
        return known
    links, where = measure_links(world), f"kept in {file}"
    if world.rank == 0:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, links_to_json(links).encode())
        except OSError as error:
            # A disk that is full or read-only costs the next measurement, not this run.
            where = f"not kept ({error.strerror}: {file})"
    return links, f"measured just now, {where}"


def _file_of(world: World, folder: Path, hosts: Sequence[str], device: torch.device) -> Path:
    """The file of what carries tensors that are on a device."""
    return cached_file(folder, hosts, backend=type(world).__name__, device=world.transport_device(device).type)


def world_of_sums(world: World, topology: Topology, *, device: torch.device) -> World:
    """The world that sums gradients. Collective.

    Args:
        world: the ranks.
        topology: as `windrow.comm.wire.WireOptions.topology`; must agree.
        device: that the gradients are on.

    Returns:
        `world`, or one that sums within hosts first; for "auto" by the links that ``windrow network`` measured.
    """
    if topology == "flat" or world.size == 1:
        return world
    hosts = gather_hosts(world)
    if topology == "hierarchical":
        return hierarchical(world, hosts)
    links = kept_links(world, hosts, device)
    return world if links is None else hierarchical(world, hosts, links=links)


def kept_links(world: World, hosts: Sequence[str], device: torch.device) -> Links | None:
    """What ``windrow network`` measured between hosts, of the cache of rank 0; None where nobody ran it. Collective."""
    file = _file_of(world, cache_folder(), hosts, device)
    kept = read_cached_links(file, hosts) if world.rank == 0 else None
    links: Links | None = world.broadcast_object(kept, root=0, stage=STAGE)
    return links


def read_description(path: Path) -> NetworkDescription:
    """Read the description of a network, *.toml: RecipeError where it is none."""
    if path.suffix != ".toml":
        raise RecipeError(f"{path}: expected a description of a network (*.toml), see windrow network --help")
    return parse_settings(NetworkDescription, read_toml(path), source=str(path), base=path.parent)


def read_network(path: Path) -> Links:
    """Read a network.

    Args:
        path: a description (*.toml), or links as ``windrow network --out`` writes them (*.json).

    Raises:
        RecipeError: it is neither, or the description is wrong.
        StoreError: the links are damaged.
    """
    if path.suffix == ".toml":
        return described_links(read_description(path))
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
    """What ``mpirun -n RANKS windrow network`` measured on this machine; None where nobody ran it."""
    hosts = [socket.gethostname()] * ranks
    return read_cached_links(cached_file(cache_folder(), hosts, backend="MPIWorld", device="cpu"), hosts)


PREDICTED_BYTES = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 24, 1 << 26)
"""Bytes for each rank whose times are predicted: 1 KiB to 64 MiB."""

MOST_RANKS_IN_FULL = 8
"""Of more ranks a table of all pairs would be longer than a screen."""

BITS_PER_BYTE = 8


def link_rows(links: Links) -> list[dict[str, object]]:
    """Latency and bandwidth of each pair of ranks, of many ranks a summary, for `windrow.training.terminal.table`.

    Bandwidth is infinite where no size was long enough to show it.
    """
    with np.errstate(divide="ignore"):
        units = {"latency us": links.latency_s * 1e6, "Gbit/s": BITS_PER_BYTE / links.seconds_per_byte / 1e9}
    hosts, others = np.array(links.hosts), ~np.eye(links.size, dtype=bool)
    if links.size <= MOST_RANKS_IN_FULL:
        return [
            {"from": f"{p} {hosts[p]}", "to": f"{q} {hosts[q]}"} | {unit: float(of[p, q]) for unit, of in units.items()}
            for p, q in np.argwhere(others)
        ]
    inside = hosts[:, None] == hosts[None, :]
    quantiles = {"least": 0.0, "median": 0.5, "most": 1.0}
    return [
        {"pairs": f"{int(chosen.sum())} {name}"}
        | {
            f"{unit}: {which}": float(np.quantile(of[chosen], share, method="nearest"))
            for unit, of in units.items()
            for which, share in quantiles.items()
        }
        for name, chosen in (("between hosts", ~inside), ("inside a host", inside & others))
        if chosen.any()
    ]


def prediction_rows(links: Links) -> list[dict[str, object]]:
    """Predicted milliseconds of an all-to-all with equal parts and of an all-reduce, for a few sizes, as rows.

    Also a sum within hosts first (`windrow.comm.hierarchy`), where hosts have several ranks.
    """
    groups = host_groups(links.hosts)
    rows: list[dict[str, object]] = []
    for num_bytes in PREDICTED_BYTES:
        equal = np.full((links.size, links.size), num_bytes / links.size)
        row: dict[str, object] = {
            "bytes per rank": byte_size(num_bytes),
            "all-to-all ms": predict_all_to_all(links, equal) * 1e3,
            "all-reduce ms": predict_all_reduce(links, num_bytes) * 1e3,
        }
        if 1 < len(groups) < links.size:
            row["all-reduce by hosts ms"] = predict_all_reduce_by_exchange(links, num_bytes, groups) * 1e3
        rows.append(row)
    return rows
