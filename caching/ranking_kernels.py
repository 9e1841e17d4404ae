"""The loops behind `windrow.caching.vip` and `windrow.caching.policies`.

For inclusion probabilities, a row of `states` is what a vertex tells those that it lists; with H the number of hops::

    0              probability to be a seed
    1 .. H - 1     logarithm of the probability not to be found by hop 1, 2, .., less what finds its list anyway
    H              share of the list that those that list the vertex list as well
    H + 1 .. 2 H   probability that an entry is drawn, up to the hop at hand, by a vertex found at hop 0, 1, ..
"""

import math

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.inline_kernels import hash_id, mix64
from windrow.comm.random import GOLDEN

__all__ = [
    "add_from_samplers",
    "begin_hop",
    "estimate_shared",
    "fingerprints",
    "finish_hop",
    "mark_single_edges",
    "pass_hop",
    "transpose",
]

_GOLDEN = np.uint64(GOLDEN)
_32 = np.uint64(32)
_LOW_HALF = np.uint64(0xFFFFFFFF)
_WINDOW = 64
"""Entries of a list that are searched: the lists of two hubs would take long."""


@numba.njit(cache=True, nogil=True)
def fingerprints(
    indptr: npt.NDArray[np.int64], indices: npt.NDArray[np.integer]
) -> tuple[np.uint64, np.uint64]:
    """Sum the hashes of all edges as they are, and turned round: equal where the graph is undirected.

    Args:
        indptr: int64 [N + 1].
        indices: int32 or int64 [E].

    Returns:
        Both sums, modulo 2**64.
    """
    forward = np.uint64(0)
    backward = np.uint64(0)
    for vertex in range(len(indptr) - 1):
        mixed = mix64(np.uint64(vertex) + _GOLDEN)
        for edge in range(indptr[vertex], indptr[vertex + 1]):
            other = np.uint64(indices[edge])
            forward += mix64(mixed ^ other)
            backward += mix64(mix64(other + _GOLDEN) ^ np.uint64(vertex))
    return forward, backward


@numba.njit(cache=True, nogil=True)
def transpose(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.integer],
    out_indptr: npt.NDArray[np.int64],
    out_indices: npt.NDArray[np.integer],
) -> None:
    """List, for each vertex, in whose lists it stands.

    Args:
        indptr: int64 [N + 1].
        indices: int32 or int64 [E].
        out_indptr: int64 [N + 1] of zeros, receives where each vertex's new list starts.
        out_indices: [E], receives the new lists, ascending.
    """
    num_vertices = len(indptr) - 1
    for edge in range(len(indices)):
        out_indptr[indices[edge] + 1] += 1
    for vertex in range(num_vertices):
        out_indptr[vertex + 1] += out_indptr[vertex]
    for vertex in range(num_vertices):
        for edge in range(indptr[vertex], indptr[vertex + 1]):
            other = indices[edge]
            out_indices[out_indptr[other]] = vertex
            out_indptr[other] += 1
    # Filling has moved every start to the next one's.
    for vertex in range(num_vertices, 0, -1):
        out_indptr[vertex] = out_indptr[vertex - 1]
    out_indptr[0] = 0


@numba.njit(cache=True, nogil=True)
def mark_single_edges(
    first: int,
    last: int,
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.integer],
    out_indptr: npt.NDArray[np.int64],
    out_indices: npt.NDArray[np.integer],
    single: npt.NDArray[np.bool_],
) -> None:
    """Note which of the vertices that list a vertex are not listed by it: nothing comes back from it to them.

    Args:
        first: vertex to begin with.
        last: vertex to stop before.
        indptr: int64 [N + 1], the lists.
        indices: int32 or int64 [E].
        out_indptr: int64 [N + 1], in whose lists each vertex stands.
        out_indices: int32 or int64 [E].
        single: bool [E], beside `out_indices`; written.
    """
    listed_by = np.full(len(indptr) - 1, -1, np.int64)
    for vertex in range(first, last):
        for edge in range(indptr[vertex], indptr[vertex + 1]):
            listed_by[indices[edge]] = vertex
        for edge in range(out_indptr[vertex], out_indptr[vertex + 1]):
            single[edge] = listed_by[out_indices[edge]] != vertex


@numba.njit(cache=True, nogil=True)
def estimate_shared(
    first: int,
    last: int,
    num_draws: int,
    key: np.uint64,
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.integer],
    out_indptr: npt.NDArray[np.int64],
    out_indices: npt.NDArray[np.integer],
    shared: npt.NDArray[np.float32],
) -> None:
    """Estimate how often who lists a vertex also lists one of those that it lists.

    Args:
        first: vertex to begin with.
        last: vertex to stop before.
        num_draws: pairs to draw for each vertex.
        key: of the draws; those of a vertex depend on it and the vertex alone.
        indptr: int64 [N + 1], the lists.
        indices: int32 or int64 [E].
        out_indptr: int64 [N + 1], in whose lists each vertex stands.
        out_indices: int32 or int64 [E].
        shared: float32 [N], written from `first` to `last`: share of the pairs of different vertices, one that lists
            this one and one that it lists, where the first lists the second.
    """
    for vertex in range(first, last):
        degree = indptr[vertex + 1] - indptr[vertex]
        listed = out_indptr[vertex + 1] - out_indptr[vertex]
        shared[vertex] = 0
        if degree == 0 or listed == 0:
            continue
        word = hash_id(key, np.uint64(vertex))
        pairs = 0
        found = 0.0
        for _ in range(num_draws):
            word += _GOLDEN
            draw = mix64(word)
            target = indices[indptr[vertex] + np.int64(((draw >> _32) * np.uint64(degree)) >> _32)]
            source = out_indices[
                out_indptr[vertex] + np.int64(((draw & _LOW_HALF) * np.uint64(listed)) >> _32)
            ]
            if target == source:
                continue
            if source == vertex:
                continue
            if target == vertex:
                continue
            pairs += 1
            # Whichever list is shorter.
            if indptr[source + 1] - indptr[source] <= out_indptr[target + 1] - out_indptr[target]:
                found += _expect_hit(indices, indptr[source], indptr[source + 1], target, draw)
            else:
                found += _expect_hit(out_indices, out_indptr[target], out_indptr[target + 1], source, draw)
        if pairs:
            shared[vertex] = min(1.0, found / pairs)


@numba.njit(cache=True, nogil=True)
def _expect_hit(
    values: npt.NDArray[np.integer], start: int, stop: int, wanted: int, draw: np.uint64
) -> float:
    """Whether a value is in a list; of a long list a window is searched, and a hit weighs as much more."""
    length = stop - start
    offset = np.int64(0)
    if length > _WINDOW:
        offset = np.int64(mix64(draw) % np.uint64(length))
    for step in range(min(length, _WINDOW)):
        position = offset + step
        if position >= length:
            position -= length
        if values[start + position] == wanted:
            return max(1.0, length / _WINDOW)
    return 0.0


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


@numba.njit(cache=True, nogil=True)
def add_from_samplers(
    first: int,
    last: int,
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.integer],
    values: npt.NDArray[np.float64],
    sums: npt.NDArray[np.float64],
) -> None:
    """Add up, for each vertex, a value of every vertex that lists it.

    Args:
        first: vertex to begin with.
        last: vertex to stop before.
        indptr: int64 [N + 1], in whose lists each vertex stands.
        indices: int32 or int64 [E].
        values: float64 [N].
        sums: float64 [N], written from `first` to `last`.
    """
    for vertex in range(first, last):
        total = 0.0
        for entry in range(indptr[vertex], indptr[vertex + 1]):
            total += values[indices[entry]]
        sums[vertex] = total
