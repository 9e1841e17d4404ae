"""A network that is not there, in a few words: for planning and simulation.

    nodes = 8                       # machines
    ranks_per_node = 4
    rate = "100gbit"                # of each machine's network card, in each direction
    latency_us = 5.0
    node_rates = { 3 = "25gbit" }   # machines that differ

A pair of machines is as fast as the slower of both cards.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from windrow.comm.errors import RecipeError
from windrow.comm.links import DEFAULT_ADD_SECONDS_PER_BYTE, Links

__all__ = ["NetworkDescription", "described_links", "seconds_per_byte"]

UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
BITS_PER_BYTE = 8
MAX_RANKS = 4096
"""Links are matrices: those of 4096 ranks hold 16 million entries, 128 MB each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkDescription:
    """Machines behind one switch that carries what their cards send. Rates as text: "1gbit", "2.5gbit", "100gbit"."""

    nodes: int
    """Machines."""
    ranks_per_node: int = 1
    """Ranks on each; those of one machine share its network card."""
    rate: str = "10gbit"
    """Of each machine's network card, in each direction."""
    latency_us: float = 20.0
    """Microseconds that next to nothing takes between machines: about 20 over TCP, 2 over RDMA."""
    rate_inside: str = "80gbit"
    """Between two ranks of one machine: about 80gbit through shared memory, 2000gbit over NVLink."""
    latency_inside_us: float = 1.0
    """Microseconds that next to nothing takes between two ranks of one machine."""
    node_rates: Mapping[str, str] = field(default_factory=dict)
    """Rate of machines that differ from the others, under their number from 0: {"3" = "25gbit"}."""
    wire_share: float = 1.0
    """Part of a network card's rate that data gets: 0.94 for TCP in Ethernet frames of 1500 bytes."""
    add_gigabytes_per_second: float = 1e-9 / DEFAULT_ADD_SECONDS_PER_BYTE
    """How fast a rank adds partial sums of an all-reduce."""

    def __post_init__(self) -> None:
        """Refuse what no network has.

        Raises:
            RecipeError: a number is out of range, a rate is none, or node_rates names a machine that is not there.
        """
        if self.nodes < 1 or self.ranks_per_node < 1 or self.nodes * self.ranks_per_node > MAX_RANKS:
            raise RecipeError(
                f"nodes = {self.nodes}, ranks_per_node = {self.ranks_per_node}: expected at least 1 of each, and no "
                f"more than {MAX_RANKS} ranks in all"
            )
        for name in ("latency_us", "latency_inside_us"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise RecipeError(f"{name} = {value!r}: expected microseconds, not negative")
        if not 0 < self.wire_share <= 1:
            raise RecipeError(f"wire_share = {self.wire_share!r}: expected a part, above 0 and at most 1")
        if not (math.isfinite(self.add_gigabytes_per_second) and self.add_gigabytes_per_second > 0):
            raise RecipeError(
                f"add_gigabytes_per_second = {self.add_gigabytes_per_second!r}: expected a number above 0"
            )
        for rate in (self.rate, self.rate_inside, *self.node_rates.values()):
            seconds_per_byte(rate)
        for node in self.node_rates:
            if not (node.isdecimal() and int(node) < self.nodes):
                raise RecipeError(
                    f"node_rates names machine {node!r}: expected a number from 0 to {self.nodes - 1}"
                )


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
    rates = [
        seconds_per_byte(network.node_rates.get(str(node), network.rate)) for node in range(network.nodes)
    ]
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
