"""What a network costs: seconds per byte and latency of every ordered pair of ranks, and what all share.

    links.latency_s            [n, n]  gamma: how long next to nothing takes from rank p to rank q
    links.seconds_per_byte     [n, n]  theta: what each further byte adds, once the link is the limit
    links.hidden_s             [n, n]  seconds of bytes that travel within the latency

    seconds of m bytes from p to q = gamma + max(0, theta m - hidden)

With nothing hidden this is Hockney's model (Parallel Computing 20, 1994). `windrow.comm.link_probe` measures links,
`windrow.comm.network_description` makes those of a network that is not there, and `windrow.comm.link_model` predicts
from them how long collectives take.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windrow.comm.errors import StoreError

__all__ = ["FORMAT_VERSION", "CollectiveCost", "Links", "links_from_json", "links_to_json"]

FORMAT_VERSION = 1
"""Of the JSON that holds links."""

DEFAULT_ADD_SECONDS_PER_BYTE = 2e-10
"""Seconds to add one byte of a partial sum where nobody measured it: a core that reads two streams and writes one at
a good 10 GB/s."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveCost:
    """How a collective of all ranks at once differs from its messages taken alone."""

    latency_factor: float = 1.0
    """Latencies of the slowest pair that one round takes: above 1 where ranks compete for cores, or where the call
    itself costs more than a message."""
    stretch: float = 1.0
    """Times that the seconds on the wire are taken: below 1 where several messages of a rank travel together faster
    than one after another, above 1 where rounds wait for each other."""
    hidden_s: float = 0.0
    """Seconds on the wire that pass within the latency."""
    call_s: float = 0.0
    """Seconds of each call, however many rounds it has: until every rank has begun, where ranks compete for cores."""

    def __post_init__(self) -> None:
        """Refuse what no collective costs."""
        for entry in fields(self):
            value = getattr(self, entry.name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{entry.name} = {value!r}: expected a number that is not negative")


@dataclass(frozen=True, kw_only=True, eq=False)
class Links:
    """The network between the ranks of a job. Arrays are checked, converted to float64 and made read-only.

    Attributes:
        hosts: the machine of each rank; ranks with the same name share its network card.
        latency_s: [n, n] seconds; entry [p, q] is of messages from p to q, the diagonal counts for nothing.
        seconds_per_byte: [n, n] in the same order.
        hidden_s: [n, n] seconds of bytes that travel within the latency: what a shaper's token bucket lets pass, or
            what the wire carries while a rank waits for a core. Zero for networks that are only described.
        shared_seconds_per_byte: what one byte from any rank to any other costs the resource that all of them share (a
            switch; the cores of a machine that plays a cluster): it carries them one after another. Zero for none.
        all_to_all: what an exchange of all ranks at once costs beside the bytes.
        all_reduce: the same for a sum.
        add_seconds_per_byte: adding one byte of a partial sum.

    Raises:
        ValueError: a shape does not fit the number of hosts, or an entry is negative or not finite.
    """

    hosts: Sequence[str]
    latency_s: NDArray[np.float64]
    seconds_per_byte: NDArray[np.float64]
    hidden_s: NDArray[np.float64]
    shared_seconds_per_byte: float = 0.0
    all_to_all: CollectiveCost = field(default_factory=CollectiveCost)
    all_reduce: CollectiveCost = field(default_factory=CollectiveCost)
    add_seconds_per_byte: float = DEFAULT_ADD_SECONDS_PER_BYTE

    def __post_init__(self) -> None:
        """Check and freeze."""
        object.__setattr__(self, "hosts", tuple(self.hosts))
        if not self.hosts:
            raise ValueError("hosts is empty: expected the host of each rank")
        for name in ("latency_s", "seconds_per_byte", "hidden_s"):
            object.__setattr__(self, name, _matrix(name, getattr(self, name), len(self.hosts)))
        for name in ("shared_seconds_per_byte", "add_seconds_per_byte"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} = {value!r}: expected a number that is not negative")

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.hosts)


def links_to_json(links: Links) -> str:
    """Write links as text; `links_from_json` reads it back, number for number.

    Args:
        links: any.

    Returns:
        A JSON object: matrices as lists of rows, seconds as numbers.
    """
    document: dict[str, Any] = {"format_version": FORMAT_VERSION}
    for entry in fields(links):
        value = getattr(links, entry.name)
        if isinstance(value, np.ndarray):
            value = value.tolist()
        elif isinstance(value, CollectiveCost):
            value = {part.name: getattr(value, part.name) for part in fields(value)}
        document[entry.name] = value
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def links_from_json(text: str, *, source: str) -> Links:
    """Read what `links_to_json` wrote.

    Args:
        text: the JSON.
        source: where it comes from, for messages.

    Returns:
        The links.

    Raises:
        StoreError: it is not JSON, of another version, incomplete, or holds values that no links have.
    """
    cure = "measure the network again: mpirun -n N windrow network --measure"
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise StoreError(f"{source}: not valid JSON ({error}); {cure}") from error
    if not isinstance(document, dict):
        raise StoreError(f"{source}: holds a {type(document).__name__}, expected a JSON object; {cure}")
    version = document.pop("format_version", None)
    if version != FORMAT_VERSION:
        raise StoreError(f"{source}: format version {version!r}, this windrow reads {FORMAT_VERSION}; {cure}")
    wanted = {entry.name for entry in fields(Links)}
    if document.keys() != wanted:
        odd = sorted(document.keys() ^ wanted)
        raise StoreError(f"{source}: {', '.join(odd)} missing or unknown; {cure}")
    try:
        return _links(document)
    except (TypeError, ValueError) as error:
        raise StoreError(f"{source}: {error}; {cure}") from error


def _links(document: Mapping[str, Any]) -> Links:
    hosts = document["hosts"]
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        raise TypeError(f"hosts = {hosts!r}: expected a list of names")
    values = dict(document)
    for name in ("all_to_all", "all_reduce"):
        values[name] = CollectiveCost(**values[name])
    return Links(**values)


def _matrix(name: str, values: ArrayLike, size: int) -> NDArray[np.float64]:
    matrix = np.array(values, dtype=np.float64)
    if matrix.shape != (size, size):
        raise ValueError(f"{name} has shape {list(matrix.shape)}, expected {[size, size]}: one row per rank")
    np.fill_diagonal(matrix, 0.0)
    if not np.isfinite(matrix).all() or (matrix < 0).any():
        raise ValueError(f"{name} holds entries that are negative or not finite")
    matrix.setflags(write=False)
    return matrix
