"""Measured links, kept for the next run on the same machines: one file for each set of hosts.

    ~/.cache/windrow/links/            or $XDG_CACHE_HOME/windrow/links/
        3f0c9a51d2e84b76.json          links, as `windrow.comm.links` writes them

The name is a digest of all that the links depend on: names of hosts in rank order, backend, kind of device, version of
the format. The hosts of an emulated cluster carry their rate in their name, so that each rate has a file of its own.
"""

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from windrow.comm.errors import StoreError
from windrow.comm.link_probe import ProbeOptions, measure_links
from windrow.comm.links import FORMAT_VERSION, Links, links_from_json, links_to_json
from windrow.comm.world import World
from windrow.partition.atomic_file import write_atomically

__all__ = ["KnownLinks", "cache_folder", "cached_file", "known_links", "read_cached_links"]

STAGE = "links of this cluster"


@dataclass(frozen=True, kw_only=True)
class KnownLinks:
    """Links, and where they come from."""

    links: Links
    age_s: float
    """Seconds since they were measured; 0: just now."""
    file: Path
    """Where they are kept."""
    problem: str = ""
    """Why they could not be kept; empty where they were."""


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
        device: kind of device that tensors are on: "cpu" or "cuda".
    """
    asked = json.dumps([FORMAT_VERSION, backend, device, list(hosts)])
    return folder / f"{hashlib.sha256(asked.encode()).hexdigest()[:16]}.json"


def read_cached_links(file: Path, hosts: Sequence[str]) -> Links | None:
    """Read links that were kept.

    Args:
        file: from `cached_file`.
        hosts: machine of each rank, which those of the file must be.

    Returns:
        The links; None where there are none, or the file is damaged: then they are measured anew.
    """
    try:
        links = links_from_json(file.read_text(encoding="utf-8"), source=str(file))
    except (OSError, UnicodeDecodeError, StoreError):
        return None
    return links if list(links.hosts) == list(hosts) else None


def known_links(
    world: World,
    *,
    hosts: Sequence[str],
    folder: Path,
    measure: bool = False,
    options: ProbeOptions | None = None,
    device: str = "cpu",
) -> KnownLinks:
    """Links between the ranks of a job: those that were kept, else measured and kept. Collective.

    Args:
        world: the ranks.
        hosts: machine of each rank; must agree.
        folder: of the cache; that of rank 0 counts.
        measure: measure in any case; must agree.
        options: how much is measured; must agree.
        device: kind of device that tensors are on.

    Returns:
        The links, the same on every rank.
    """
    file = cached_file(folder, hosts, backend=type(world).__name__, device=device)
    kept = _kept(file, hosts) if world.rank == 0 and not measure else None
    text, age_s = world.broadcast_object(kept or ("", 0.0), root=0, stage=STAGE)
    if text:
        return KnownLinks(links=links_from_json(text, source=str(file)), age_s=age_s, file=file)
    links = measure_links(world, options, device=device)
    problem = _keep(file, links) if world.rank == 0 else ""
    return KnownLinks(links=links, age_s=0.0, file=file, problem=problem)


def _kept(file: Path, hosts: Sequence[str]) -> tuple[str, float] | None:
    """Links of the cache as text, and the seconds since they were written; None where there are none."""
    links = read_cached_links(file, hosts)
    return None if links is None else (links_to_json(links), max(0.0, time.time() - file.stat().st_mtime))


def _keep(file: Path, links: Links) -> str:
    """Write a file of the cache; a disk that is full or read-only costs the next measurement, not this run."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, links_to_json(links).encode())
    except OSError as error:
        return f"{error.strerror}: {file}"
    return ""
