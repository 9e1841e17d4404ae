"""Compiled loops of what plans cost, and of the placement whose cost is least."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from windrow.partition.tables.cost_model import CORRECTION, ComputeModel

if TYPE_CHECKING:
    from windrow.comm.links import Links

__all__ = [
    "Head",
    "Network",
    "Pieces",
    "Ranks",
    "best_placement",
    "exchange",
    "exchanges",
    "head_of",
    "in_turn",
    "network_of",
    "seconds_of",
    "total",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FAST = {"reassoc", "contract", "arcp", "nsz"}
"""Additions in any order, but limits may be infinite."""
CAP_STEP = 0.05
"""Between caps on what a rank exchanges, as a share of the mean."""


class Head(NamedTuple):
    """What turns the sum of pieces' vectors into seconds: see `ComputeModel`."""

    weighted: bool
    """Whether the design is ``corrected``."""
    base: float
    """Seconds of any set at all."""
    bias: Floats
    """[width - 1] of the hidden layer, whose weights are in the vectors."""
    last: Floats
    """[width - 1] weights of the last layer."""
    last_bias: float


def head_of(model: ComputeModel) -> Head:
    """The head of a model as compiled loops want it."""
    (_, bias), (last, last_bias) = model.head
    return Head(
        model.design == "corrected", float(model.roof[-1]), bias, np.ascontiguousarray(last[:, 0]), float(last_bias[0])
    )


@njit(nogil=True, cache=True, fastmath=FAST)
def seconds_of(total: Floats, head: Head) -> float:
    """Seconds of one set of pieces from the sum [width] of their vectors: `ComputeModel.seconds`."""
    width = len(head.last)
    weight = total[width]
    if weight <= 0.0:
        return 0.0
    scale = 1.0 / weight if head.weighted else 1.0
    found = head.last_bias
    for unit in range(width):
        found += max(total[unit] * scale + head.bias[unit], 0.0) * head.last[unit]
    if head.weighted:
        return float((head.base + weight) * math.exp(min(max(found, -CORRECTION), CORRECTION)))
    return float(max(found, 0.0))


class Network(NamedTuple):
    """Links as compiled loops want them; see `windrow.comm.links.Links`."""

    host: Ints
    """[ranks] from 0 on."""
    seconds_per_byte: Floats
    """[ranks, ranks] in an exchange of all."""
    latency_s: Floats
    """[ranks, ranks] likewise."""
    shared_seconds_per_byte: float


def network_of(links: "Links | None", size: int) -> Network:
    """The links between so many ranks as compiled loops want them; None: nothing takes any time."""
    if links is None:
        return Network(np.arange(size), np.zeros((size, size)), np.zeros((size, size)), 0.0)
    cost = links.all_to_all
    return Network(
        np.unique(links.hosts, return_inverse=True)[1].astype(np.int64),
        links.seconds_per_byte * cost.stretch,
        links.latency_s * max(cost.latency_factor, 1.0),
        links.shared_seconds_per_byte * cost.stretch,
    )


@njit(nogil=True, cache=True)
def exchange(network: Network, sent: Floats, starts: Floats) -> Floats:
    """Seconds of a ragged all-to-all: see `windrow.partition.tables.costs.exchange_seconds`."""
    host, theta, size = network.host, network.seconds_per_byte, len(starts)
    # A port carries what all ranks of its host send to others; inside a host each rank has a port of its own.
    inside, of_host, to_host = np.zeros(size), np.zeros(host.max() + 1), np.zeros((size, host.max() + 1))
    num_bytes = 0.0
    for source in range(size):
        for target in range(size):
            if source == target:
                continue
            num_bytes += sent[source, target]
            seconds = sent[source, target] * theta[source, target]
            if host[source] == host[target]:
                inside[source] += seconds
            else:
                of_host[host[source]] += seconds
                to_host[source, host[target]] += seconds
    if num_bytes == 0.0:
        return np.zeros(size)
    leaving = starts + np.maximum(of_host[host], inside)
    queued, taking, latency, last = np.zeros(size), np.zeros(size), np.zeros(size), np.zeros(size)
    takes_part = np.zeros(size, np.bool_)
    for source in np.argsort(-starts, kind="mergesort"):
        for target in range(size):
            if source == target:
                continue
            if host[source] == host[target]:
                arriving = sent[source, target] * theta[source, target]
            else:
                arriving = to_host[source, host[target]]
            queued[target] += arriving
            if arriving > 0.0:
                taking[target] = max(taking[target], starts[source] + queued[target])
            if sent[source, target] > 0.0:
                takes_part[source] = takes_part[target] = True
                latency[target] = max(latency[target], network.latency_s[source, target])
                last[target] = max(last[target], leaving[source] + network.latency_s[source, target])
    ends = np.where(takes_part, np.maximum(np.maximum(leaving, taking + latency), last), starts)
    took: Floats = np.maximum(ends, starts.min() + network.shared_seconds_per_byte * num_bytes) - starts
    return took


@njit(nogil=True, cache=True)
def exchanges(network: Network, compute: Floats, traffic: Floats) -> tuple[Floats, Floats, Floats]:
    """Seconds of each rank until ids, gradients and vectors are there: see `windrow.partition.tables.costs`.

    Args:
        network: between the ranks.
        compute: [ranks] seconds.
        traffic: [ranks, 3] bytes of ids, vectors and gradients that each rank exchanges with it.
    """
    size = len(compute)
    none, sent = np.zeros(size), np.empty((size, size))
    sent[:] = traffic[:, 0]
    ids = exchange(network, sent, none)
    sent[:] = traffic[:, 2]
    backward = exchange(network, sent, none)
    for source in range(size):
        sent[source] = traffic[source, 1]
    starts = compute + backward
    return ids, backward, exchange(network, sent, starts - starts.min())


class Pieces(NamedTuple):
    """What has to be known of pieces of tables to place them."""

    vectors: Floats
    """[pieces, width] what adds up."""
    seconds: Floats
    """[pieces] of each alone."""
    num_bytes: Ints
    """[pieces] of memory each."""
    traffic: Floats
    """[pieces, 3] bytes of ids, vectors and gradients that each rank exchanges with the owner."""
    landing: Floats
    """[pieces] seconds of their vectors at home, wherever they are."""

    def taken(self, places: Sequence[int] | Ints) -> "Pieces":
        """Some of them, in this order."""
        kept = np.asarray(places, np.int64)
        return Pieces(
            self.vectors[kept], self.seconds[kept], self.num_bytes[kept], self.traffic[kept], self.landing[kept]
        )

    def joined(self, other: "Pieces") -> "Pieces":
        """These, and then those."""
        return Pieces(
            np.concatenate([self.vectors, other.vectors]),
            np.concatenate([self.seconds, other.seconds]),
            np.concatenate([self.num_bytes, other.num_bytes]),
            np.concatenate([self.traffic, other.traffic]),
            np.concatenate([self.landing, other.landing]),
        )


class Ranks(NamedTuple):
    """What pieces are placed on."""

    network: Network
    """Between them."""
    head: Head
    """How fast they are."""
    first: Floats
    """[width] what each has already: replicated tables."""
    memory: float
    """Bytes that each has left."""
    per_core: float
    """Ranks that share a core, if more than 1."""


@njit(nogil=True, cache=True)
def in_turn(compute: Floats, per_core: float) -> Floats:
    """Seconds until ranks have computed, [ranks], where so many of them share a core.

    All cores are busy until the last rank is done, unless that alone takes longer; a rank that has little to do is done
    as soon as all would be that have as much.
    """
    everything = per_core * compute.mean()
    ends: Floats = np.minimum(per_core * compute, np.maximum(compute, everything))
    return ends


@njit(nogil=True, cache=True)
def total(pieces: Pieces, ranks: Ranks, owners: Ints) -> float:
    """Seconds of a step with each piece on its owner, [pieces]."""
    size = len(ranks.network.host)
    sums, traffic, compute = np.empty((size, len(ranks.first))), np.zeros((size, 3)), np.empty(size)
    sums[:] = ranks.first
    for piece, rank in enumerate(owners):
        sums[rank] += pieces.vectors[piece]
        traffic[rank] += pieces.traffic[piece]
    for rank in range(size):
        compute[rank] = seconds_of(sums[rank], ranks.head)
    compute = in_turn(compute, ranks.per_core)
    ids, backward, forward = exchanges(ranks.network, compute, traffic)
    return float(ids.max() + (compute + backward + forward).max() + pieces.landing.sum())


@njit(nogil=True, cache=True, fastmath=FAST)
def place_greedily(
    order: Ints, pieces: Pieces, ranks: Ranks, loads: Floats, cap: float, owners: Ints
) -> tuple[bool, float]:
    """Give each piece to the rank that computes least so far, among those with room for its bytes and its load.

    Args:
        order: pieces, the costliest first.
        pieces: all.
        ranks: where they may be.
        loads: [pieces] bytes that are exchanged for them.
        cap: on those of a rank.
        owners: [pieces] is written.

    Returns:
        Whether all pieces found a place, and the least cap with which that would have gone another way.
    """
    size = len(ranks.network.host)
    seconds, taken, load, sums = np.empty(size), np.zeros(size), np.zeros(size), np.empty((size, len(ranks.first)))
    sums[:] = ranks.first
    seconds[:] = seconds_of(ranks.first, ranks.head)
    other = np.inf
    for piece in order:
        best = -1
        for rank in range(size):
            if taken[rank] + pieces.num_bytes[piece] > ranks.memory:
                continue
            if load[rank] + loads[piece] > cap:
                other = min(other, load[rank] + loads[piece])
                continue
            if (
                best < 0
                or seconds[rank] < seconds[best]
                or (seconds[rank] == seconds[best] and taken[rank] < taken[best])
            ):
                best = rank
        if best < 0:
            return False, other
        owners[piece] = best
        taken[best] += pieces.num_bytes[piece]
        load[best] += loads[piece]
        sums[best] += pieces.vectors[piece]
        seconds[best] = seconds_of(sums[best], ranks.head)
    return True, other


@njit(nogil=True, cache=True)
def best_placement(order: Ints, pieces: Pieces, ranks: Ranks, caps: int, owners: Ints) -> float:
    """Place pieces greedily under each cap on what a rank exchanges, 1, 1.05, 1.1, ... times the mean, and without.

    Args:
        order: pieces, the costliest first.
        pieces: all.
        ranks: where they may be.
        caps: so many.
        owners: [pieces] of the best placement is written.

    Returns:
        Seconds of a step with it; infinite where the pieces do not fit into memory.
    """
    loads, found = pieces.traffic.sum(axis=1), np.empty(len(order), np.int64)
    mean, most = loads.sum() / len(ranks.network.host), 0.0
    for load in loads:
        most = max(most, load)
    best, other = np.inf, 0.0
    for number in range(caps + 1):
        # The costliest piece has to be somewhere.
        cap = max((1 + CAP_STEP * number) * mean, most) * (1 + 1e-9) if number < caps else np.inf
        if cap < other:
            continue
        fits, other = place_greedily(order, pieces, ranks, loads, cap, found)
        if fits:
            seconds = total(pieces, ranks, found)
            if seconds < best:
                best = seconds
                owners[:] = found
    return best
