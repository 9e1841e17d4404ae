"""What a network costs: seconds per byte and latency of every ordered pair of ranks, and what all share.

    seconds of m bytes from p to q = latency (gamma) + max(0, seconds per byte (theta) * m - hidden)

With nothing hidden this is Hockney's model (Parallel Computing 20, 1994). `windrow.comm.link_probe` measures links,
`described_links` makes those of a network that is not there, and `windrow.comm.link_model` predicts collectives.
"""

import re
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Annotated, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from windrow.comm.errors import RecipeError, StoreError
from windrow.comm.options import NonNegativeFloat, PositiveInt, checked_dataclass

__all__ = [
    "FORMAT_VERSION",
    "CollectiveCost",
    "Links",
    "NetworkDescription",
    "TimeCurve",
    "described_links",
    "links_from_json",
    "links_to_json",
    "seconds_per_byte",
]

FORMAT_VERSION: Final = 2
"""Of the JSON that holds links."""


@checked_dataclass
class TimeCurve:
    """``seconds(x) = latency_s + max(0, seconds_per_unit * x - hidden_s)``."""

    latency_s: NonNegativeFloat
    """The floor."""
    seconds_per_unit: NonNegativeFloat
    """The slope, once the line is above the floor."""
    hidden_s: NonNegativeFloat
    """What of the slope's seconds passes within the floor."""

    def seconds(self, x: ArrayLike) -> NDArray[np.float64]:
        """The curve's value at each entry of `x`."""
        return self.latency_s + np.maximum(0.0, self.seconds_per_unit * np.asarray(x, np.float64) - self.hidden_s)


@checked_dataclass
class CollectiveCost:
    """How an exchange of all ranks at once differs from its messages taken alone."""

    latency_factor: NonNegativeFloat = 1.0
    """Latencies of the slowest pair that it takes: above 1 where ranks compete for cores, or where the call itself
    costs more than a message."""
    stretch: NonNegativeFloat = 1.0
    """Times that the seconds on the wire are taken: below 1 where several messages of a rank travel together faster
    than one after another."""
    hidden_s: NonNegativeFloat = 0.0
    """Seconds on the wire that pass within the latency."""


def _matrix(values: ArrayLike) -> NDArray[np.float64]:
    matrix = np.array(values, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"has shape {list(matrix.shape)}, expected one row and one column for each rank")
    np.fill_diagonal(matrix, 0.0)
    if not np.isfinite(matrix).all() or (matrix < 0).any():
        raise ValueError("holds entries that are negative or not finite")
    matrix.setflags(write=False)
    return matrix


_Matrix = Annotated[NDArray[np.float64], BeforeValidator(_matrix), PlainSerializer(np.ndarray.tolist)]


@dataclass(
    frozen=True,
    kw_only=True,
    eq=False,
    config=ConfigDict(arbitrary_types_allowed=True, extra="forbid", allow_inf_nan=False),
)
class Links:
    """The network between the ranks of a job. Matrices are checked, converted to float64 and made read-only.

    Raises:
        ValueError: a shape does not fit the number of hosts, or an entry is negative or not finite.
    """

    hosts: Annotated[tuple[str, ...], Field(min_length=1)]
    """The machine of each rank; ranks with the same name share its network card."""
    latency_s: _Matrix
    """[n, n] seconds that next to nothing takes from rank p to rank q; the diagonal counts for nothing."""
    seconds_per_byte: _Matrix
    """[n, n] what each further byte adds, once the link is the limit."""
    hidden_s: _Matrix
    """[n, n] seconds of bytes that travel within the latency: what a shaper's token bucket lets pass, or what the wire
    carries while a rank waits for a core. Zero for networks that are only described."""
    shared_seconds_per_byte: NonNegativeFloat = 0.0
    """What one byte from any rank to any other costs the resource that all of them share (a switch; the cores of a
    machine that plays a cluster): it carries them one after another. Zero for none."""
    all_to_all: CollectiveCost = field(default_factory=CollectiveCost)
    """What an exchange of all ranks at once costs beside the bytes."""
    all_reduce: tuple[TimeCurve, TimeCurve] | None = None
    """Seconds of a sum over all ranks by its bytes, as measured: of short vectors
    (`windrow.comm.link_model.SHORT_ALL_REDUCE_BYTES`), and of longer ones. None: it follows from the messages."""
    format_version: Literal[2] = FORMAT_VERSION
    """Of the JSON."""

    def __post_init__(self) -> None:
        """Refuse matrices of other sizes."""
        for name in ("latency_s", "seconds_per_byte", "hidden_s"):
            shape = list(getattr(self, name).shape)
            if shape != [self.size] * 2:
                raise ValueError(f"{name} has shape {shape}, expected {[self.size] * 2}: one row per rank")

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.hosts)

    def of_first(self, size: int) -> "Links":
        """Those of the first so many ranks among themselves; what their sums take follows from the messages."""
        if size == self.size:
            return self
        return replace(
            self,
            hosts=self.hosts[:size],
            latency_s=self.latency_s[:size, :size],
            seconds_per_byte=self.seconds_per_byte[:size, :size],
            hidden_s=self.hidden_s[:size, :size],
            all_reduce=None,
        )


def links_to_json(links: Links) -> str:
    """Write links as a JSON object; `links_from_json` reads it back, number for number."""
    return TypeAdapter(Links).dump_json(links, indent=1).decode() + "\n"


def links_from_json(text: str, *, source: str) -> Links:
    """Read what `links_to_json` wrote; `source` is where it comes from, for messages.

    Raises:
        StoreError: it is not JSON, of another version, incomplete, or holds values that no links have.
    """
    try:
        return TypeAdapter(Links).validate_json(text)
    except ValidationError as error:
        found = "; ".join(
            f"{'.'.join(map(str, one['loc']))} {one['msg']}".strip() for one in error.errors(include_url=False)
        )
        raise StoreError(
            f"{source}: {found}; measure the network again: mpirun -n N windrow network --measure"
        ) from error


UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
BITS_PER_BYTE = 8
MAX_RANKS = 4096
"""Links are matrices: those of 4096 ranks hold 16 million entries, 128 MB each."""


@checked_dataclass
class NetworkDescription:
    """Machines behind one switch that carries what their cards send. Rates as text: "1gbit", "2.5gbit", "100gbit".

    A pair of machines is as fast as the slower of both cards.
    """

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

    def __post_init__(self) -> None:
        """Refuse too many ranks, what is no rate, and rates of machines that are not there."""
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
    """What one byte takes at a rate, a number and its unit: "100gbit" is bits per second with a decimal prefix.

    Raises:
        RecipeError: it is none, or zero.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(t|g|m|k)?bit", rate.strip().lower())
    if match is None or float(match[1]) == 0:
        raise RecipeError(f"rate {rate!r}: expected a number with its unit, for example 100gbit or 2.5gbit")
    return BITS_PER_BYTE / (float(match[1]) * UNITS[f"{match[2] or ''}bit"])


def described_links(network: NetworkDescription) -> Links:
    """Links of ``nodes * ranks_per_node`` ranks, those of machine 0 first, on hosts node0, node1, ...

    Nothing is hidden, nothing shared, so that predictions are the textbook's.
    """
    rates = [seconds_per_byte(network.node_rates.get(str(node), network.rate)) for node in range(network.nodes)]
    node = np.repeat(np.arange(network.nodes), network.ranks_per_node)
    card = np.array(rates)[node] / network.wire_share
    inside = node[:, None] == node[None, :]
    latency = np.where(inside, network.latency_inside_us, network.latency_us) * 1e-6
    return Links(
        hosts=tuple(f"node{number}" for number in node),
        latency_s=latency,
        seconds_per_byte=np.where(
            inside, seconds_per_byte(network.rate_inside), np.maximum(card[:, None], card[None, :])
        ),
        hidden_s=np.zeros_like(latency),
    )
