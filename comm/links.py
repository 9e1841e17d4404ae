"""What a network costs: seconds per byte and latency of every ordered pair of ranks, and what all share.

    links.latency_s            [n, n]  gamma: how long next to nothing takes from rank p to rank q
    links.seconds_per_byte     [n, n]  theta: what each further byte adds, once the link is the limit
    links.hidden_s             [n, n]  seconds of bytes that travel within the latency

    seconds of m bytes from p to q = gamma + max(0, theta m - hidden)

With nothing hidden this is Hockney's model (Parallel Computing 20, 1994). `windrow.comm.link_probe` measures links, and
`windrow.comm.link_model` predicts from them how long collectives take.

For planning and simulation, `described_links` makes the links of a network that is not there from a few words
(`NetworkDescription`). A pair of machines is as fast as the slower of both cards::

    nodes = 8                       # machines
    ranks_per_node = 4
    rate = "100gbit"                # of each machine's network card, in each direction
    latency_us = 5.0
    node_rates = { 3 = "25gbit" }   # machines that differ
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from windrow.comm.errors import RecipeError, StoreError
from windrow.comm.options import NonNegativeFloat, PositiveFloat, PositiveInt, checked_dataclass

__all__ = [
    "FORMAT_VERSION",
    "CollectiveCost",
    "Links",
    "NetworkDescription",
    "described_links",
    "links_from_json",
    "links_to_json",
    "seconds_per_byte",
]

FORMAT_VERSION = 1
"""Of the JSON that holds links."""

DEFAULT_ADD_SECONDS_PER_BYTE = 2e-10
"""Seconds to add one byte of a partial sum where nobody measured it: a core that reads two streams and writes one at
a good 10 GB/s."""


@checked_dataclass
class CollectiveCost:
    """How a collective of all ranks at once differs from its messages taken alone."""

    latency_factor: NonNegativeFloat = 1.0
    """Latencies of the slowest pair that one round takes: above 1 where ranks compete for cores, or where the call
    itself costs more than a message."""
    stretch: NonNegativeFloat = 1.0
    """Times that the seconds on the wire are taken: below 1 where several messages of a rank travel together faster
    than one after another, above 1 where rounds wait for each other."""
    hidden_s: NonNegativeFloat = 0.0
    """Seconds on the wire that pass within the latency."""
    call_s: NonNegativeFloat = 0.0
    """Seconds of each call, however many rounds it has: until every rank has begun, where ranks compete for cores."""


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
    document = {"format_version": FORMAT_VERSION, **asdict(links)}
    return json.dumps(document, indent=1, allow_nan=False, default=np.ndarray.tolist) + "\n"


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
    hosts = document["hosts"]
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        raise StoreError(f"{source}: hosts = {hosts!r}: expected a list of names; {cure}")
    try:
        costs = {name: CollectiveCost(**document[name]) for name in ("all_to_all", "all_reduce")}
        return Links(**{**document, **costs})
    except (TypeError, ValueError) as error:
        raise StoreError(f"{source}: {error}; {cure}") from error


def _matrix(name: str, values: ArrayLike, size: int) -> NDArray[np.float64]:
    matrix = np.array(values, dtype=np.float64)
    if matrix.shape != (size, size):
        raise ValueError(f"{name} has shape {list(matrix.shape)}, expected {[size, size]}: one row per rank")
    np.fill_diagonal(matrix, 0.0)
    if not np.isfinite(matrix).all() or (matrix < 0).any():
        raise ValueError(f"{name} holds entries that are negative or not finite")
    matrix.setflags(write=False)
    return matrix


UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
BITS_PER_BYTE = 8
MAX_RANKS = 4096
"""Links are matrices: those of 4096 ranks hold 16 million entries, 128 MB each."""


@checked_dataclass
class NetworkDescription:
    """Machines behind one switch that carries what their cards send. Rates as text: "1gbit", "2.5gbit", "100gbit"."""

    nodes: PositiveInt
    """Machines."""
    ranks_per_node: PositiveInt = 1
    """Ranks on each; those of one machine share its network card."""
    rate: str = "10gbit"
    """Of each machine's network card, in each direction."""
    latency_us: NonNegativeFloat = 20.0
    """Microseconds that next to nothing takes between machines: about 20 over TCP, 2 over RDMA."""
    rate_inside: str = "80gbit"
    """Between two ranks of one machine: about 80gbit through shared memory, 2000gbit over NVLink."""
    latency_inside_us: NonNegativeFloat = 1.0
    """Microseconds that next to nothing takes between two ranks of one machine."""
    node_rates: Mapping[str, str] = field(default_factory=dict)
    """Rate of machines that differ from the others, under their number from 0: {"3" = "25gbit"}."""
    wire_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Part of a network card's rate that data gets: 0.94 for TCP in Ethernet frames of 1500 bytes."""
    add_gigabytes_per_second: PositiveFloat = 1e-9 / DEFAULT_ADD_SECONDS_PER_BYTE
    """How fast a rank adds partial sums of an all-reduce."""

    def __post_init__(self) -> None:
        """Refuse what no network has.

        Raises:
            RecipeError: too many ranks, a rate is none, or node_rates names a machine that is not there.
        """
        if self.nodes * self.ranks_per_node > MAX_RANKS:
            raise RecipeError(
                f"nodes = {self.nodes}, ranks_per_node = {self.ranks_per_node}: expected no more than {MAX_RANKS} "
                "ranks in all"
            )
        for rate in (self.rate, self.rate_inside, *self.node_rates.values()):
            seconds_per_byte(rate)
        for node in self.node_rates:
            if not (node.isdecimal() and int(node) < self.nodes):
                raise RecipeError(f"node_rates names machine {node!r}: expected a number from 0 to {self.nodes - 1}")


def seconds_per_byte(rate: str) -> float:
    """What one byte takes at a rate.

    Args:
        rate: number and unit, "100gbit"; bits per second with a decimal prefix.

    Raises:
        RecipeError: it is none, or zero.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(t|g|m|k)?bit", rate.strip().lower())
    if match is None or float(match[1]) == 0:
        raise RecipeError(f"rate {rate!r}: expected a number with its unit, for example 100gbit or 2.5gbit")
    return BITS_PER_BYTE / (float(match[1]) * UNITS[f"{match[2] or ''}bit"])


def described_links(network: NetworkDescription) -> Links:
    """The links of a network that is described.

    Args:
        network: its description.

    Returns:
        Links of ``nodes * ranks_per_node`` ranks, those of machine 0 first, on hosts node0, node1, ...; nothing hidden,
        nothing shared, so that predictions are the textbook's.
    """
    rates = [seconds_per_byte(network.node_rates.get(str(node), network.rate)) for node in range(network.nodes)]
    node = np.repeat(np.arange(network.nodes), network.ranks_per_node)
    card = np.array(rates)[node] / network.wire_share
    inside = node[:, None] == node[None, :]
    latency = np.where(inside, network.latency_inside_us, network.latency_us) * 1e-6
    return Links(
        hosts=[f"node{number}" for number in node],
        latency_s=latency,
        seconds_per_byte=np.where(
            inside, seconds_per_byte(network.rate_inside), np.maximum(card[:, None], card[None, :])
        ),
        hidden_s=np.zeros_like(latency),
        add_seconds_per_byte=1e-9 / network.add_gigabytes_per_second,
    )
