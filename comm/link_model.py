"""How long collectives take on given links: pure functions, for planners and simulation.

Sources: the latency-bandwidth model of one message is Hockney's (Parallel Computing 20, 1994); the all-reduce is
Rabenseifner's as MPICH has it (Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in
MPICH, International Journal of High Performance Computing Applications 19, 2005).
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windrow.comm.links import Links

__all__ = [
    "SHORT_ALL_REDUCE_BYTES",
    "all_reduce_rounds",
    "predict_all_reduce",
    "predict_all_reduce_by_exchange",
    "predict_all_to_all",
    "wire_seconds",
]

SHORT_ALL_REDUCE_BYTES = 2048
"""Up to here MPICH doubles: every rank adds whole vectors, in half the rounds (MPIR_CVAR_ALLREDUCE_SHORT_MSG_SIZE)."""

ADD_SECONDS_PER_BYTE = 2e-10
"""Seconds to add one byte of a partial sum: a core that reads two streams and writes one at a good 10 GB/s."""

Matrix = NDArray[np.float64]


def wire_seconds(links: Links, sent: Matrix) -> float:
    """Seconds that bytes occupy the network when all messages start together, latencies left out.

    A network card sends one byte after another, and receives so too, both at the same time (full duplex). Its speed is
    that of its fastest link, so a slow receiver holds up its own bytes only. Ranks of one host share its card; within a
    host each rank is a port of its own. Beside the ports there may be something that all bytes pass. The busiest
    decides:

        max over p, q     of  theta[p, q] bytes[p, q]
        max over ports    of  least theta of the port * bytes that leave it;  the same for those that come in
        shared_seconds_per_byte * all bytes

    `sent` is [n, n] bytes from each rank to each, none of them negative, 0 on the diagonal. Cost: O(n^2).
    """
    host = np.unique(links.hosts, return_inverse=True)[1]
    across = host[:, None] != host[None, :]
    within = ~across & ~np.eye(links.size, dtype=bool)
    theta = links.seconds_per_byte
    ports = [
        max(_busiest_port(theta, sent, pairs, port), _busiest_port(theta.T, sent.T, pairs.T, port))
        for pairs, port in ((across, host), (within, np.arange(links.size)))
    ]
    return max(float((theta * sent).max()), *ports, links.shared_seconds_per_byte * float(sent.sum()))


def predict_all_to_all(links: Links, num_bytes: ArrayLike) -> float:
    """Seconds of a ragged all-to-all in which every rank starts all its messages at once.

        latency_factor * largest latency  +  max(0, stretch * wire_seconds - hidden)

    with the factors of `Links.all_to_all`, and no less than any of its messages alone. What the latency factor has
    above 1 is for the n - 1 messages of a rank; with fewer it is less, in proportion. On a uniform network that is
    only described this is ``gamma + (n - 1) theta m`` for m bytes to each of n - 1 peers.

    Args:
        links: of the network.
        num_bytes: [n, n] bytes from each rank to each; 0: no message. The diagonal does not travel.

    Raises:
        ValueError: not [n, n], or negative.
    """
    sent = np.array(num_bytes, dtype=np.float64)
    if sent.shape != (links.size, links.size):
        raise ValueError(
            f"num_bytes has shape {list(sent.shape)}, expected {[links.size] * 2}: bytes from each rank to each"
        )
    if not (sent >= 0).all():
        raise ValueError("num_bytes holds negative entries")
    np.fill_diagonal(sent, 0.0)
    if not sent.any():
        return 0.0
    cost = links.all_to_all
    messages = max((sent > 0).sum(axis=axis).max() for axis in (0, 1))
    share = float(messages) / (links.size - 1)
    factor = min(cost.latency_factor, 1.0) + share * max(0.0, cost.latency_factor - 1.0)
    wire = max(0.0, cost.stretch * wire_seconds(links, sent) - cost.hidden_s)
    alone = links.latency_s + np.maximum(0.0, links.seconds_per_byte * sent - links.hidden_s)
    return max(factor * _largest_latency(links, sent) + wire, float(alone[sent > 0].max()))


def predict_all_reduce(links: Links, num_bytes: float, *, encoded: bool = False) -> float:
    """Seconds of an all-reduce of so many bytes on the wire.

    What `Links.all_reduce` says where it was measured. Else by halving and doubling, as `all_reduce_rounds` lists its
    messages: for each round the largest latency, `wire_seconds`, and the additions. On a uniform network, for n a power
    of two and more than 2 KiB: ``2 log2(n) gamma + 2 (n - 1)/n m theta + (n - 1)/n m add``.

    What a codec has encoded no library adds up: all ranks exchange pieces (`windrow.comm.reduction`).

    It is 0 on one rank and for an empty vector.

    Raises:
        ValueError: a negative length.
    """
    if num_bytes < 0:
        raise ValueError(f"num_bytes = {num_bytes}: expected a length that is not negative")
    if num_bytes == 0 or links.size == 1:
        return 0.0
    if encoded:
        return predict_all_reduce_by_exchange(links, num_bytes, [[rank] for rank in range(links.size)])
    if links.all_reduce is not None:
        return float(links.all_reduce[num_bytes > SHORT_ALL_REDUCE_BYTES].seconds(num_bytes))
    return sum(
        _largest_latency(links, sent) + wire_seconds(links, sent) + ADD_SECONDS_PER_BYTE * added
        for sent, added in all_reduce_rounds(links.size, num_bytes)
    )


def predict_all_reduce_by_exchange(links: Links, num_bytes: float, groups: Sequence[Sequence[int]]) -> float:
    """Seconds of an all-reduce that is made of exchanges: within groups, between them, within them.

    Groups are the ranks of each host, as `windrow.comm.hierarchy` sums; or each rank alone, as `windrow.comm.reduction`
    does. `num_bytes` are those of the vector as it travels.
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
    return sum(wire) + ADD_SECONDS_PER_BYTE * added * num_bytes


def all_reduce_rounds(size: int, num_bytes: float) -> Iterator[tuple[Matrix, float]]:
    """The messages of an all-reduce of m bytes over n ranks, round by round, as MPICH sends them.

    Where n is no power of two, the first ranks pair up before (one hands its vector to the other) and after (it gets
    the sum back), so that a power of two takes part. Up to 2 KiB these double: log2 n rounds of whole vectors. Longer
    vectors are halved: log2 n rounds with m/2, m/4, ... bytes after which each rank has the sum of its own piece, then
    the same rounds backwards to gather the pieces.

    Yields:
        Of each round the [n, n] bytes that each rank sends to each, at most one message to and from a rank; and the
        bytes of the longest partial sum that a rank adds to its own afterwards.
    """
    power = 1 << (size.bit_length() - 1)
    rest = size - power
    # Of the first 2 * rest ranks the odd ones take part, and all behind them.
    active = np.array([*range(1, 2 * rest, 2), *range(2 * rest, size)])
    folded = np.arange(0, 2 * rest, 2)
    distances = [1 << step for step in range(power.bit_length() - 1)]
    if num_bytes <= SHORT_ALL_REDUCE_BYTES:
        steps = [(distance, num_bytes, num_bytes) for distance in distances]
    else:
        halves = [(distance, num_bytes / (2 * distance)) for distance in distances]
        steps = [(distance, part, part) for distance, part in halves]
        steps += [(distance, part, 0.0) for distance, part in reversed(halves)]

    def messages(sources: NDArray[np.int64], targets: NDArray[np.int64], part: float) -> Matrix:
        sent = np.zeros((size, size))
        sent[sources, targets] = part
        return sent

    if rest:
        yield messages(folded, folded + 1, num_bytes), num_bytes
    for distance, part, added in steps:
        yield messages(active, active[np.arange(power) ^ distance], part), added
    if rest:
        yield messages(folded + 1, folded, num_bytes), 0.0


def _busiest_port(theta: Matrix, sent: Matrix, pairs: NDArray[np.bool_], port: NDArray[np.int64]) -> float:
    """Seconds that the busiest port needs for what leaves it by these pairs; ``port[p]`` is that of rank p."""
    leaving = np.bincount(port, weights=np.where(pairs, sent, 0.0).sum(axis=1))
    fastest = np.full(len(leaving), np.inf)
    np.minimum.at(fastest, port, np.where(pairs, theta, np.inf).min(axis=1))
    return float((leaving * np.where(leaving > 0, fastest, 0.0)).max())


def _largest_latency(links: Links, sent: Matrix) -> float:
    return float(np.where(sent > 0, links.latency_s, 0.0).max())
