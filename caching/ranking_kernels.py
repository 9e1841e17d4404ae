"""The loops behind `windrow.caching.vip` and `windrow.caching.policies`.

Arrays: `indptr` [N + 1] and `indices` [E], the list of each vertex; `out_indptr`, `out_indices`, in whose lists each
vertex stands, ascending. Most loops do the vertices first..last - 1, each without
regard to others, so that threads can share them.

For inclusion probabilities, a row of `states` is what a vertex tells those that it lists; with H the number of hops::

    0              probability to be a seed
    1 .. H - 1     logarithm of the probability not to be found by hop 1, 2, .., less what finds its list anyway
    H              share of the list that those that list the vertex list as well

and a row of `drawn` is, for each list, which is a vertex's, or where edges have types that of one type, the probability
that an entry is drawn, up to the hop at hand, by a vertex found at hop 0, 1, .. .

`hop` counts from 1, and `certain` stands for the logarithm of 0.
"""

import math

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.inline_kernels import hash_id, mix64
from windrow.comm.random import GOLDEN

__all__ = ["add_from_samplers", "estimate_shared", "fingerprints", "mark_single_edges", "pass_hop"]

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.integer]
Longs = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]

_GOLDEN = np.uint64(GOLDEN)
_32 = np.uint64(32)
_LOW_HALF = np.uint64(0xFFFFFFFF)
_WINDOW = 64
"""Entries of a list that are searched: the lists of two hubs would take long."""


@numba.njit(cache=True, nogil=True)
def fingerprints(indptr: Longs, indices: Ids) -> tuple[np.uint64, np.uint64]:
    """Sum the hashes of all edges as they are, and turned round: equal where the graph is undirected."""
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
def mark_single_edges(
    first: int, last: int, indptr: Longs, indices: Ids, out_indptr: Longs, out_indices: Ids, single: Marks
) -> None:
    """Note beside `out_indices` which of those that list a vertex it does not list: nothing comes back to them."""
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
    indptr: Longs,
    indices: Ids,
    out_indptr: Longs,
    out_indices: Ids,
    shared: npt.NDArray[np.float32],
) -> None:
    """Estimate how often who lists a vertex also lists one of those that it lists.

    Receives in `shared` [N] the share of the pairs of different vertices, one that lists this one and one that it
    lists, where the first lists the second, from `num_draws` pairs that depend on the key and the vertex alone.
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
            source = out_indices[out_indptr[vertex] + np.int64(((draw & _LOW_HALF) * np.uint64(listed)) >> _32)]
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
def _expect_hit(values: Ids, start: int, stop: int, wanted: int, draw: np.uint64) -> float:
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


@numba.njit(cache=True, nogil=True)
def pass_hop(
    first: int,
    last: int,
    hop: int,
    certain: float,
    fanouts: Floats,
    degrees: Longs,
    indptr: Longs,
    indices: Ids,
    lists: Ids | None,
    single: Marks | None,
    states: Floats,
    drawn: Floats,
    sent: Floats,
    missed: Floats,
    redundant: Floats,
) -> None:
    """Add up, for each vertex, how those that list it find it in some hop up to this one.

    Entries of `indices` that repeat stand together; `lists` [E] says whose each is, None: its vertex's. `single` marks
    those that the vertex does not list itself; None where it lists all. `fanouts` [H] are inf for all neighbours,
    `degrees` [N] at least 1. `sent` [N, H] is the logarithm of the probability that an entry of a vertex's list was not
    drawn by hop 1, ... Written: `missed` [N], the logarithm of the probability not to be found, seeds aside;
    `redundant` [N], the same, each term times the share of its list that the finder draws.
    """
    num_hops = len(fanouts)
    own = np.empty(num_hops)
    own_redundant = np.empty(num_hops)
    for vertex in range(first, last):
        for i in range(1, hop):
            own[i] = sent[vertex, i - 1]
            own_redundant[i] = own[i] * min(1.0, fanouts[i - 1] / degrees[vertex])
        total = 0.0
        repeated = 0.0
        entry = indptr[vertex]
        stop = indptr[vertex + 1]
        while entry < stop:
            other = indices[entry]
            comes_back = single is None or not single[entry]
            one = entry
            entry += 1
            while entry < stop and indices[entry] == other:
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
                missing = 1.0
                for copy in range(one, entry):
                    missing *= 1.0 - drawn[other if lists is None else lists[copy], i]
                found += (now_present - present) * (1.0 - missing)
                present = now_present
            term = certain if found >= 1.0 else math.log1p(-found)
            total += term
            repeated += term * drawn[other if lists is None else lists[one], hop - 1]
        missed[vertex] = total
        redundant[vertex] = repeated


@numba.njit(cache=True, nogil=True)
def add_from_samplers(first: int, last: int, indptr: Longs, indices: Ids, values: Floats, sums: Floats) -> None:
    """Add up in `sums`, for each vertex, a value of every vertex that lists it: `indices` are the latter."""
    for vertex in range(first, last):
        total = 0.0
        for entry in range(indptr[vertex], indptr[vertex + 1]):
            total += values[indices[entry]]
        sums[vertex] = total
