"""Compiled loops of `windrow.caching.vip`, whose text says what they compute together.

A row of `states` is what a vertex tells those that it lists; with H the number of hops::

    0              probability to be a seed
    1 .. H - 1     logarithm of the probability not to be found by hop 1, 2, .., less what finds its list anyway
    H              share of the list that those that list the vertex list as well
    H + 1 .. 2 H   probability that an entry is drawn, up to the hop at hand, by a vertex found at hop 0, 1, ..
"""

import math

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["begin_hop", "finish_hop", "pass_hop"]


@numba.njit(inline="always", cache=True)
def _share_drawn(fanout: int, degree: int) -> float:
    """Probability that one entry of a list of length `degree` is drawn in one hop."""
    return 1.0 if fanout < 0 or fanout >= degree else fanout / degree


@numba.njit(cache=True, nogil=True)
def begin_hop(
    first: int,
    last: int,
    fanouts: npt.NDArray[np.int64],
    hop: int,
    degrees: npt.NDArray[np.int64],
    states: npt.NDArray[np.float64],
) -> None:
    """Note how likely an entry of each vertex's list is drawn, up to a hop.

    Args:
        first: vertex to begin with.
        last: vertex to stop before.
        fanouts: int64 [H].
        hop: from 1.
        degrees: int64 [N], lengths of the lists.
        states: float64 [N, 2 H + 1]; columns H + 1 to H + hop are written.
    """
    num_hops = len(fanouts)
    for vertex in range(first, last):
        undrawn = 1.0
        for i in range(hop - 1, -1, -1):
            undrawn *= 1.0 - _share_drawn(fanouts[i], degrees[vertex])
            states[vertex, num_hops + 1 + i] = 1.0 - undrawn


@numba.njit(cache=True, nogil=True)
def pass_hop(
    first: int,
    last: int,
    fanouts: npt.NDArray[np.int64],
    hop: int,
    certain: float,
    degrees: npt.NDArray[np.int64],
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.integer],
    single: npt.NDArray[np.bool_] | None,
    states: npt.NDArray[np.float64],
    sent: npt.NDArray[np.float64],
    missed: npt.NDArray[np.float64],
    redundant: npt.NDArray[np.float64],
) -> None:
    """Add up, for each vertex, how those that list it find it in some hop up to this one.

    Args:
        first: vertex to begin with.
        last: vertex to stop before.
        fanouts: int64 [H].
        hop: from 1.
        certain: stands for the logarithm of 0; finite.
        degrees: int64 [N], lengths of the lists.
        indptr: int64 [N + 1], in whose lists each vertex stands.
        indices: int32 or int64 [E]; entries that repeat stand together.
        single: bool [E], entries that the vertex does not list itself; None where it lists all.
        states: float64 [N, 2 H + 1], see the top of this file.
        sent: float64 [N, H], logarithm of the probability that an entry of a vertex's list was not drawn by hop 1, ...
        missed: float64 [N], written: logarithm of the probability not to be found, seeds aside.
        redundant: float64 [N], written: the same, each term times the share of its list that the finder draws.
    """
    num_hops = len(fanouts)
    own = np.empty(num_hops)
    own_redundant = np.empty(num_hops)
    for vertex in range(first, last):
        for i in range(1, hop):
            own[i] = sent[vertex, i - 1]
            own_redundant[i] = own[i] * _share_drawn(fanouts[i - 1], degrees[vertex])
        total = 0.0
        repeated = 0.0
        entry = indptr[vertex]
        stop = indptr[vertex + 1]
        while entry < stop:
            other = indices[entry]
            comes_back = single is None or not single[entry]
            copies = 1
            entry += 1
            while entry < stop and indices[entry] == other:
                copies += 1
                entry += 1
            seed = states[other, 0]
            if other == vertex or (seed == 0.0 and states[other, hop - 1] == 0.0):
                continue
            overlap = states[other, num_hops]
            found = 0.0
            present = 0.0
            for i in range(hop):
                now_present = seed
                if i > 0:
                    exponent = states[other, i]
                    if comes_back:
                        exponent -= own[i] - overlap * own_redundant[i]
                    now_present = max(present, seed - (1.0 - seed) * math.expm1(min(0.0, exponent)))
                drawn = states[other, num_hops + 1 + i]
                if copies > 1:
                    drawn = 1.0 - (1.0 - drawn) ** copies
                found += (now_present - present) * drawn
                present = now_present
            term = certain if found >= 1.0 else math.log1p(-found)
            total += term
            repeated += term * states[other, num_hops + hop]
        missed[vertex] = total
        redundant[vertex] = repeated


@numba.njit(cache=True, nogil=True)
def finish_hop(
    first: int,
    last: int,
    fanouts: npt.NDArray[np.int64],
    hop: int,
    certain: float,
    missed: npt.NDArray[np.float64],
    redundant: npt.NDArray[np.float64],
    hops: npt.NDArray[np.float64],
    states: npt.NDArray[np.float64],
    sent: npt.NDArray[np.float64],
) -> None:
    """Turn what `pass_hop` added up into probabilities, and note what the next hop needs.

    Args:
        first: vertex to begin with.
        last: vertex to stop before.
        fanouts: int64 [H].
        hop: from 1.
        certain: as for `pass_hop`.
        missed: float64 [N], of `pass_hop`.
        redundant: float64 [N], of `pass_hop`.
        hops: float64 [H + 1, N], probability to be found by each hop; row `hop` is written.
        states: float64 [N, 2 H + 1]; column `hop` is written where there is a next hop.
        sent: float64 [N, H]; column hop - 1 is written.
    """
    num_hops = len(fanouts)
    for vertex in range(first, last):
        found = 0.0
        for i in range(hop):
            earlier = hops[i - 1, vertex] if i > 0 else 0.0
            found += (hops[i, vertex] - earlier) * states[vertex, num_hops + 1 + i]
        sent[vertex, hop - 1] = certain if found >= 1.0 else math.log1p(-found)
        seed = states[vertex, 0]
        # The sum can end a rounding above 1.
        found = min(1.0, seed - (1.0 - seed) * math.expm1(missed[vertex]))
        hops[hop, vertex] = max(hops[hop - 1, vertex], found)
        if hop < num_hops:
            states[vertex, hop] = missed[vertex] - states[vertex, num_hops] * redundant[vertex]
