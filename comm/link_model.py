"""How long collectives take on given links: pure functions, for planners, bit assignment and simulation.

Sources: the latency-bandwidth model of one message is Hockney's (Parallel Computing 20, 1994); the all-reduce is
Rabenseifner's as MPICH has it (Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in
MPICH, International Journal of High Performance Computing Applications 19, 2005).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windrow.comm.hosts import relays
from windrow.comm.links import Links

__all__ = [
    "ReductionRound",
    "all_reduce_rounds",
    "predict_all_reduce",
    "predict_all_reduce_by_exchange",
    "predict_all_to_all",
    "predict_hierarchical_all_to_all",
    "reduction_latency_s",
    "reduction_seconds",
    "wire_seconds",
]

SHORT_ALL_REDUCE_BYTES = 2048
"""Up to here MPICH doubles: every rank adds whole vectors, in half the rounds (MPIR_CVAR_ALLREDUCE_SHORT_MSG_SIZE)."""

LENGTH_BYTES = 8
"""Of each message that is passed on, told beforehand."""


@dataclass(frozen=True)
class ReductionRound:
    """One step of an all-reduce, in which every rank has at most one message to send and one to receive."""

    num_bytes: NDArray[np.float64]
    """[n, n] bytes that each rank sends to each."""
    added_bytes: float
    """The longest partial sum that a rank adds to its own afterwards."""


def wire_seconds(links: Links, num_bytes: ArrayLike) -> float:
    """Seconds that bytes occupy the network when all messages start together, latencies left out.

    A network card sends one byte after another, and receives so too, both at the same time (full duplex). Its speed is
    that of its fastest link, so a slow receiver holds up its own bytes only. Ranks of one host share its card; within a
    host each rank is a port of its own. Beside the ports there may be something that all bytes pass. The busiest
    decides:

        max over p, q     of  theta[p, q] bytes[p, q]
        max over ports    of  least theta of the port * bytes that leave it;  the same for those that come in
        shared_seconds_per_byte * all bytes

    Args:
        links: of the network.
        num_bytes: [n, n] bytes from each rank to each; the diagonal does not travel.

    Returns:
        Seconds. Cost: O(n^2).

    Raises:
        ValueError: not [n, n], or negative.
    """
    sent = _byte_matrix(links, num_bytes)
    names = {name: number for number, name in enumerate(dict.fromkeys(links.hosts))}
    host = np.array([names[name] for name in links.hosts])
    across = host[:, None] != host[None, :]
    within = ~across & ~np.eye(links.size, dtype=bool)
    rank = np.arange(links.size)
    theta = links.seconds_per_byte
    ports = [
        max(_busiest_port(theta, sent, pairs, port), _busiest_port(theta.T, sent.T, pairs.T, port))
        for pairs, port in ((across, host), (within, rank))
    ]
    slowest_pair = float((theta * sent).max())
    return max(slowest_pair, *ports, links.shared_seconds_per_byte * float(sent.sum()))


def predict_all_to_all(links: Links, num_bytes: ArrayLike) -> float:
    """Seconds of a ragged all-to-all in which every rank starts all its messages at once.

        call + latency_factor * largest latency  +  max(0, stretch * wire_seconds - hidden)

    with the factors of `Links.all_to_all`, and no less than any of its messages alone. What the latency factor has
    above 1 is for the n - 1 messages of a rank; with fewer it is less, in proportion. On a uniform network that is
    only described this is ``gamma + (n - 1) theta m`` for m bytes to each of n - 1 peers.

    Args:
        links: of the network.
        num_bytes: [n, n] bytes from each rank to each. A pair without bytes has no message; the diagonal does not
            travel.

    Returns:
        Seconds until the last rank is done; 0 where nothing travels.

    Raises:
        ValueError: not [n, n], or negative.
    """
    sent = _byte_matrix(links, num_bytes)
    latency = _largest_latency(links, sent)
    if not sent.any():
        return 0.0
    cost = links.all_to_all
    wire = cost.stretch * wire_seconds(links, sent)
    messages = max((sent > 0).sum(axis=axis).max() for axis in (0, 1))
    share = float(messages) / (links.size - 1)
    factor = min(cost.latency_factor, 1.0) + share * max(0.0, cost.latency_factor - 1.0)
    together = cost.call_s + factor * latency + max(0.0, wire - cost.hidden_s)
    alone = links.latency_s + np.maximum(0.0, links.seconds_per_byte * sent - links.hidden_s)
    return max(together, float(alone[sent > 0].max()))


def predict_all_reduce(links: Links, num_bytes: float) -> float:
    """Seconds of an all-reduce by halving and doubling, as `all_reduce_rounds` lists its messages.

        call + latency_factor * sum over rounds of the largest latency
        + max(0, stretch * sum over rounds of (wire_seconds + add_seconds_per_byte * bytes added) - hidden)

    with the factors of `Links.all_reduce`. On a uniform network that is only described, for n a power of two and more
    than 2 KiB: ``2 log2(n) gamma + 2 (n - 1)/n m theta + (n - 1)/n m add``. A ring moves as many bytes in 2 (n - 1)
    rounds.

    Args:
        links: of the network.
        num_bytes: length of the vector, the same on every rank.

    Returns:
        Seconds; 0 on one rank and for an empty vector.

    Raises:
        ValueError: a negative length.
    """
    if num_bytes < 0:
        raise ValueError(f"num_bytes = {num_bytes}: expected a length that is not negative")
    if num_bytes == 0:
        return 0.0
    rounds = all_reduce_rounds(links.size, num_bytes)
    cost = links.all_reduce
    wire = cost.stretch * reduction_seconds(links, rounds)
    latency = cost.latency_factor * reduction_latency_s(links, rounds)
    return cost.call_s + latency + max(0.0, wire - cost.hidden_s)


def predict_hierarchical_all_to_all(links: Links, num_bytes: ArrayLike, groups: Sequence[Sequence[int]]) -> float:
    """Seconds of an all-to-all within hosts and then between them, as `windrow.comm.hierarchy` has it.

    Args:
        links: of the network.
        num_bytes: [n, n] bytes from each rank to each.
        groups: the ranks of each host.

    Returns:
        Seconds of its three exchanges, each as `predict_all_to_all` has it: lengths, within hosts, between hosts.

    Raises:
        ValueError: not [n, n], or negative.
    """
    sent = _byte_matrix(links, num_bytes)
    relay = relays(groups)
    target = np.broadcast_to(np.arange(links.size), sent.shape)
    source = target.T
    leaves = ~_same_group(groups)
    lengths, within = np.zeros_like(sent), np.zeros_like(sent)
    np.add.at(lengths, (source[leaves], relay[leaves]), LENGTH_BYTES)
    np.add.at(within, (source, relay), sent)
    between = np.zeros_like(sent)
    np.add.at(between, (relay[leaves], target[leaves]), sent[leaves])
    return sum(predict_all_to_all(links, step) for step in (lengths, within, between))


def predict_all_reduce_by_exchange(links: Links, num_bytes: float, groups: Sequence[Sequence[int]]) -> float:
    """Seconds of an all-reduce that is made of exchanges: within groups, between them, within them.

    Args:
        links: of the network.
        num_bytes: of the vector, as it travels.
        groups: the ranks of each host, as `windrow.comm.hierarchy` sums; or each rank alone, as
            `windrow.comm.reduction` does.
    """
    columns = min(map(len, groups))
    within, between = np.zeros((2, links.size, links.size))
    for group in groups:
        within[np.ix_(group, group[:columns])] = num_bytes / columns
    for place in range(columns):
        column = [group[place] for group in groups]
        between[np.ix_(column, column)] = num_bytes / columns / len(groups)
    largest = max(map(len, groups))
    added = (largest - 1) / columns + (1 - 1 / len(groups)) / columns
    wire = [predict_all_to_all(links, step) for step in (within, within.T, between, between)]
    return sum(wire) + links.add_seconds_per_byte * added * num_bytes


def _same_group(groups: Sequence[Sequence[int]]) -> NDArray[np.bool_]:
    size = sum(map(len, groups))
    same = np.zeros((size, size), dtype=np.bool_)
    for group in groups:
        same[np.ix_(group, group)] = True
    return same


def reduction_latency_s(links: Links, rounds: list[ReductionRound]) -> float:
    """Seconds that rounds take for next to nothing: each the latency of its slowest message."""
    return sum(_largest_latency(links, step.num_bytes) for step in rounds)


def reduction_seconds(links: Links, rounds: list[ReductionRound]) -> float:
    """Seconds that rounds spend on the wire and with adding, latencies left out."""
    return sum(wire_seconds(links, step.num_bytes) + links.add_seconds_per_byte * step.added_bytes for step in rounds)


def all_reduce_rounds(size: int, num_bytes: float) -> list[ReductionRound]:
    """The messages of an all-reduce, round by round, as MPICH sends them.

    `MPIWorld` sums long vectors in pieces that travel together; their bytes are the same, and their latencies overlap.

    Where n is no power of two, the first ranks pair up before (one hands its vector to the other) and after (it gets
    the sum back), so that a power of two takes part. Up to 2 KiB these double: log2 n rounds of whole vectors. Longer
    vectors are halved: log2 n rounds with m/2, m/4, ... bytes after which each rank has the sum of its own piece, then
    the same rounds backwards to gather the pieces.

    Args:
        size: number of ranks, n.
        num_bytes: length of the vector, m.

    Returns:
        The rounds: log2 n for short vectors, 2 log2 n for long ones, and two more where n is no power of two.
    """
    power = 1 << (size.bit_length() - 1)
    rest = size - power
    # Of the first 2 * rest ranks the odd ones take part, and all behind them.
    active = np.array([*range(1, 2 * rest, 2), *range(2 * rest, size)])
    distances = [1 << step for step in range(power.bit_length() - 1)]

    def exchange(distance: int, part: float, added: float) -> ReductionRound:
        return _round(size, active, active[np.arange(power) ^ distance], part, added)

    if num_bytes <= SHORT_ALL_REDUCE_BYTES:
        rounds = [exchange(distance, num_bytes, num_bytes) for distance in distances]
    else:
        pieces = [(distance, num_bytes / (2 * distance)) for distance in distances]
        rounds = [exchange(distance, piece, piece) for distance, piece in pieces]
        rounds += [exchange(distance, piece, 0.0) for distance, piece in reversed(pieces)]
    if rest == 0:
        return rounds
    folded = np.arange(0, 2 * rest, 2)
    before = _round(size, folded, folded + 1, num_bytes, num_bytes)
    return [before, *rounds, _round(size, folded + 1, folded, num_bytes, 0.0)]


def _round(
    size: int, sources: NDArray[np.int64], targets: NDArray[np.int64], part: float, added: float
) -> ReductionRound:
    num_bytes = np.zeros((size, size))
    num_bytes[sources, targets] = part
    return ReductionRound(num_bytes, added)


def _busiest_port(
    theta: NDArray[np.float64], sent: NDArray[np.float64], pairs: NDArray[np.bool_], port: NDArray[np.int64]
) -> float:
    """Seconds that the busiest port needs for what leaves it by these pairs; ``port[p]`` is that of rank p."""
    leaving = np.bincount(port, weights=np.where(pairs, sent, 0.0).sum(axis=1))
    fastest = np.full(len(leaving), np.inf)
    np.minimum.at(fastest, port, np.where(pairs, theta, np.inf).min(axis=1))
    return float((leaving * np.where(leaving > 0, fastest, 0.0)).max())


def _largest_latency(links: Links, sent: NDArray[np.float64]) -> float:
    return float(np.where(sent > 0, links.latency_s, 0.0).max())


def _byte_matrix(links: Links, num_bytes: ArrayLike) -> NDArray[np.float64]:
    sent = np.array(num_bytes, dtype=np.float64)
    if sent.shape != (links.size, links.size):
        raise ValueError(
            f"num_bytes has shape {list(sent.shape)}, expected {[links.size] * 2}: bytes from each rank to each"
        )
    if not (sent >= 0).all():
        raise ValueError("num_bytes holds negative entries")
    np.fill_diagonal(sent, 0.0)
    return sent
