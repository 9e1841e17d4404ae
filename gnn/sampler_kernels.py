"""Compiled loops of the neighbour sampler; see `windrow.gnn.sampler` for what they compute together.

One hop is three passes, each free of branches that the processor cannot guess, so that many cache misses
are under way at once:

    look_up_vertices   list start, degree and hash of every vertex that the last hop found; where edges have types,
                       find_lists and look_up_lists, of each type's part of the vertex's list
    draw_neighbors     vertex ids of the sampled neighbours
    number_vertices    vertex ids -> local ids in first-seen order, new vertices appended to the frontier

The draw: word i of a vertex is ``mix64(hash + i * golden)``, i = 1, 2, ... (SplitMix64 started at the vertex's
hash), and a number below n is the high half of ``word * n`` (Lemire, Fast Random Integer Generation in an
Interval, ACM TOMACS 2019, without the rejection: the bias is below n / 2**64 < 2**-32 for n < 2**32).

Arrays: `indptr` [N + 1], `indices` and `edge_type` [E] of the graph; `frontier`, vertex ids by local id, with room for
one more than it can ever hold; `starts`, `degrees`, `inner_hashes` by list, which is a vertex's local id where edges
have no types; `block_indptr` [lists + 1]; `neighbors` [edges of the block].
"""

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.inline_kernels import mix64, prefetch
from windrow.comm.random import GOLDEN

__all__ = [
    "draw_neighbors",
    "edges_of_lists",
    "find_lists",
    "list_bounds",
    "look_up_lists",
    "look_up_vertices",
    "number_vertices",
    "place_seeds",
]

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(GOLDEN)
_32 = np.uint64(32)
_LOW_HALF = np.uint64(0xFFFFFFFF)
_ONE = np.uint64(1)
_SIX = np.uint64(6)
_63 = np.uint64(63)
_WORD_BITS = 64
# Entries between asking for memory and reading it. From 32 to 128 a whole sample took 6 to 12 % less time, 256 gained
# nothing.
_AHEAD = 128
# Destinations between the same. 16 to 256 took the same time, within 4 %.
_CHUNK = 64


@numba.njit(inline="always", cache=True)
def _bounded(word: np.uint64, limit: np.uint64) -> np.uint64:
    """Turn a random 64-bit word into a number below `limit` < 2**32: the high half of their 128-bit product."""
    return ((word >> _32) * limit + (((word & _LOW_HALF) * limit) >> _32)) >> _32


@numba.njit(cache=True, nogil=True)
def look_up_vertices(
    indptr: Longs,
    original_ids: Longs | None,
    frontier: Longs,
    first: int,
    last: int,
    starts: Longs,
    degrees: Longs,
    inner_hashes: Words,
) -> None:
    """Note what sampling needs to know of frontier vertices first..last-1; a cumulative frontier needs it once.

    `inner_hashes` receives ``mix64(original id + golden)``, the part of `hash_id` that no key enters; `original_ids` is
    None where ids are the original ones.
    """
    for local in range(first, last):
        ahead = frontier[min(local + _AHEAD, last - 1)]
        prefetch(indptr, ahead)
        if original_ids is not None:
            prefetch(original_ids, ahead)
        vertex = frontier[local]
        start = indptr[vertex]
        starts[local] = start
        degrees[local] = indptr[vertex + 1] - start
        if original_ids is None:
            inner_hashes[local] = mix64(np.uint64(vertex) + _GOLDEN)
        else:
            inner_hashes[local] = mix64(np.uint64(original_ids[vertex]) + _GOLDEN)


@numba.njit(inline="always", cache=True)
def _end_of_list(edge_type: npt.NDArray[np.int16], start: int, stop: int) -> int:
    """Where edges of the type of the first one end, in stop - start edges that are sorted by type."""
    own = edge_type[start]
    step = 1
    while start + step < stop and edge_type[start + step] == own:
        step *= 2
    low = start + step // 2
    high = min(start + step, stop)
    # The type ends behind `low`, and at `high` at the latest.
    while low + 1 < high:
        middle = (low + high) // 2
        if edge_type[middle] == own:
            low = middle
        else:
            high = middle
    return high


@numba.njit(cache=True, nogil=True)
def find_lists(
    indptr: Longs, edge_type: npt.NDArray[np.int16], frontier: Longs, first: int, last: int, list_ends: Longs
) -> None:
    """Count the types of the edges that enter frontier vertices first..last-1.

    Entry local + 1 of `list_ends` receives the number of lists up to that vertex, that of `first` being there.
    """
    for local in range(first, last):
        prefetch(indptr, frontier[min(local + _AHEAD, last - 1)])
        vertex = frontier[local]
        start = indptr[vertex]
        stop = indptr[vertex + 1]
        found = 0
        while start < stop:
            start = _end_of_list(edge_type, start, stop)
            found += 1
        list_ends[local + 1] = list_ends[local] + found


@numba.njit(cache=True, nogil=True)
def look_up_lists(
    indptr: Longs,
    edge_type: npt.NDArray[np.int16],
    original_ids: Longs | None,
    frontier: Longs,
    first: int,
    last: int,
    list_ends: Longs,
    starts: Longs,
    degrees: Longs,
    inner_hashes: Words,
    list_types: npt.NDArray[np.int16],
) -> None:
    """Note of each list of frontier vertices first..last-1 what `look_up_vertices` notes of a vertex, and its type.

    The hash of a list is that of its vertex and its type, so that a draw depends on no other type.
    """
    for local in range(first, last):
        vertex = frontier[local]
        start = indptr[vertex]
        own = np.uint64(vertex if original_ids is None else original_ids[vertex])
        of_vertex = mix64(own + _GOLDEN)
        for place in range(list_ends[local], list_ends[local + 1]):
            stop = _end_of_list(edge_type, start, indptr[vertex + 1])
            starts[place] = start
            degrees[place] = stop - start
            list_types[place] = edge_type[start]
            inner_hashes[place] = mix64(of_vertex + np.uint64(edge_type[start] + 1))
            start = stop


@numba.njit(cache=True, nogil=True)
def draw_neighbors(
    key: np.uint64,
    indices: npt.NDArray[np.integer],
    starts: Longs,
    degrees: Longs,
    inner_hashes: Words,
    block_indptr: Longs,
    taken: Words,
    neighbors: Ints,
    edge_places: Longs | None,
) -> None:
    """Sample neighbours without replacement, every subset of a list with the same probability: their vertex ids.

    `edge_places` [edges of the block] receives where each stands in `indices`; None where nobody asks.

    Floyd's algorithm (Bentley, Floyd: A sample of brilliance, CACM 1987): for last = n-k .. n-1 draw t in [0, last]
    and take t, or last where t is taken already. A bitmap says what is taken: one register for lists of up to 64
    neighbours, `taken` [largest degree // 64 + 1], all zero before and after, for longer ones. `key` is that of (seed,
    epoch, step, hop). Memory: 8 bytes for each edge of 64 destinations.
    """
    num_dst = len(block_indptr) - 1
    # Where the neighbours of a chunk stand in `indices`: reading them is then one loop, whose end is easy to guess.
    most = 0
    for chunk in range(0, num_dst, _CHUNK):
        most = max(most, block_indptr[min(chunk + _CHUNK, num_dst)] - block_indptr[chunk])
    places = np.empty(most, np.int64)
    for chunk in range(0, num_dst, _CHUNK):
        chunk_end = min(chunk + _CHUNK, num_dst)
        before = block_indptr[chunk]
        # First only places, which need no memory but ask for it; one loop, as a call would count references.
        for local in range(chunk, chunk_end):
            start = starts[local]
            degree = degrees[local]
            first = block_indptr[local] - before
            count = block_indptr[local + 1] - before - first
            if count == degree:
                prefetch(indices, start)
                for draw in range(count):
                    places[first + draw] = start + draw
                continue
            state = mix64(key ^ inner_hashes[local])
            first_limit = degree - count + 1
            if degree <= _WORD_BITS:
                word = np.uint64(0)
                for draw in range(count):
                    state += _GOLDEN
                    limit = np.uint64(first_limit + draw)
                    position = _bounded(mix64(state), limit)
                    position = limit - _ONE if (word >> position) & _ONE else position
                    word |= _ONE << position
                    prefetch(indices, start + np.int64(position))
                    places[first + draw] = start + np.int64(position)
                continue
            for draw in range(count):
                state += _GOLDEN
                limit = np.uint64(first_limit + draw)
                position = _bounded(mix64(state), limit)
                is_taken = (taken[position >> _SIX] >> (position & _63)) & _ONE
                position = limit - _ONE if is_taken else position
                taken[position >> _SIX] |= _ONE << (position & _63)
                prefetch(indices, start + np.int64(position))
                places[first + draw] = start + np.int64(position)
            for edge in range(first, first + count):
                taken[np.uint64(places[edge] - start) >> _SIX] = 0
        for edge in range(block_indptr[chunk_end] - before):
            neighbors[before + edge] = indices[places[edge]]
            if edge_places is not None:
                edge_places[before + edge] = places[edge]


def list_bounds(degrees: Longs, fanout: int) -> Longs:
    """Where the neighbours drawn from each of some lists begin in a block: [lists + 1]; a fanout of -1 takes all."""
    bounds = np.zeros(len(degrees) + 1, np.int64)
    np.cumsum(degrees if fanout < 0 else np.minimum(degrees, fanout), out=bounds[1:])
    return bounds


@numba.njit(cache=True, nogil=True)
def edges_of_lists(lists: Longs, block_indptr: Longs) -> Longs:
    """The edges of a block that come from some of its lists, list by list: int64 [edges of these]."""
    count = 0
    for number in lists:
        count += block_indptr[number + 1] - block_indptr[number]
    edges = np.empty(count, np.int64)
    place = 0
    for number in lists:
        for edge in range(block_indptr[number], block_indptr[number + 1]):
            edges[place] = edge
            place += 1
    return edges


@numba.njit(cache=True, nogil=True)
def place_seeds(seeds: Longs, first_seen: Ints, base: int, frontier: Longs) -> int:
    """Start a frontier with the seeds: -1, or the position of the first that is out of range or repeats an earlier one.

    Entry v of `first_seen` [N] becomes base + local id of v; entries below base belong to earlier samples.
    """
    num_vertices = len(first_seen)
    for local in range(len(seeds)):
        vertex = seeds[local]
        if vertex < 0 or vertex >= num_vertices or first_seen[vertex] >= base:
            return local
        first_seen[vertex] = base + local
        frontier[local] = vertex
    return -1


@numba.njit(cache=True, nogil=True)
def number_vertices(neighbors: Ints, first_seen: Ints, base: int, frontier: Longs, found: int) -> int:
    """Replace vertex ids by local ids in first-seen order and append new ones to the frontier; returns its length."""
    last = len(neighbors) - 1
    for edge in range(len(neighbors)):
        prefetch(first_seen, neighbors[min(edge + _AHEAD, last)])
        vertex = neighbors[edge]
        local = first_seen[vertex] - base
        is_new = local < 0
        local = found if is_new else local
        # Both writes happen every time: a branch here would be guessed wrong for every second edge.
        frontier[found] = vertex
        first_seen[vertex] = base + local
        neighbors[edge] = local
        found += is_new
    return found
