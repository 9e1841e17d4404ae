"""Compiled loops of `windrow.gnn.vertex_numbers`: one pair for each of its maps, and both pairs give the same."""

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.prefetch_kernels import prefetch
from windrow.comm.random import GOLDEN

__all__ = [
    "number_directly",
    "number_hashed",
    "place_seeds_directly",
    "place_seeds_hashed",
    "refill",
]

# Entries between asking for memory and reading it. From 32 to 128 a whole sample took 6 to 12 % less time, 256 gained
# nothing.
_AHEAD = 128
_GOLDEN = np.uint64(GOLDEN)
_32 = np.int64(32)
_ONE = np.uint64(1)
_LOW_HALF = np.int64(0xFFFFFFFF)


@numba.njit(cache=True, nogil=True)
def place_seeds_directly(
    seeds: npt.NDArray[np.int64],
    first_seen: npt.NDArray[np.int32],
    base: int,
    frontier: npt.NDArray[np.int64],
) -> int:
    """Start a frontier with the seeds.

    Args:
        seeds: int64 [B].
        first_seen: int32 [N]; entry v becomes base + local id of v. Entries below base belong to earlier samples.
        base: number that marks this sample.
        frontier: int64 [at least B], receives the seeds.

    Returns:
        -1, or the position of the first seed that is out of range or repeats an earlier one.
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
def number_directly(
    neighbors: npt.NDArray[np.int32],
    first_seen: npt.NDArray[np.int32],
    base: int,
    frontier: npt.NDArray[np.int64],
    found: int,
) -> int:
    """Replace vertex ids by local ids in first-seen order.

    Args:
        neighbors: int32 [edges], vertex ids, replaced by local ids.
        first_seen: int32 [N], see `place_seeds_directly`.
        base: number that marks this sample.
        frontier: int64 [at least found + edges + 1], vertex ids by local id; new ones are appended.
        found: vertices in the frontier so far.

    Returns:
        Vertices in the frontier now.
    """
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


@numba.njit(inline="always", cache=True)
def _home(vertex: np.int64, shift: np.uint64) -> np.uint64:
    """Slot where the search for a vertex begins: the top bits of a product (Knuth, volume 3, section 6.4)."""
    return (np.uint64(vertex) * _GOLDEN) >> shift


@numba.njit(inline="always", cache=True)
def _slot(table: npt.NDArray[np.int64], shift: np.uint64, base: int, vertex: np.int64) -> np.uint64:
    """Slot that holds a vertex, or the one that is to hold it."""
    slot = _home(vertex, shift)
    # One condition, which rarely holds: whether a slot is free or holds the vertex, no processor can guess.
    while ((table[slot] & _LOW_HALF) >= base) & ((table[slot] >> _32) != vertex):
        slot = (slot + _ONE) & (np.uint64(len(table)) - _ONE)
    return slot


@numba.njit(cache=True, nogil=True)
def place_seeds_hashed(
    seeds: npt.NDArray[np.int64],
    num_vertices: int,
    table: npt.NDArray[np.int64],
    shift: np.uint64,
    base: int,
    frontier: npt.NDArray[np.int64],
) -> int:
    """Do what `place_seeds_directly` does, in a table.

    Args:
        seeds: int64 [B], B below the length of the table.
        num_vertices: N.
        table: int64, a power of two: vertex * 2**32 + base + local id. Where the lower half is below base, the slot
            is free.
        shift: 64 less the logarithm of the table's length.
        base: number that marks this sample.
        frontier: int64 [at least B], receives the seeds.

    Returns:
        -1, or the position of the first seed that is out of range or repeats an earlier one.
    """
    for local in range(len(seeds)):
        vertex = seeds[local]
        if vertex < 0 or vertex >= num_vertices:
            return local
        slot = _slot(table, shift, base, vertex)
        if (table[slot] & _LOW_HALF) >= base:
            return local
        table[slot] = (vertex << _32) | (base + local)
        frontier[local] = vertex
    return -1


@numba.njit(cache=True, nogil=True)
def number_hashed(
    neighbors: npt.NDArray[np.int32],
    first: int,
    table: npt.NDArray[np.int64],
    shift: np.uint64,
    base: int,
    frontier: npt.NDArray[np.int64],
    found: int,
    most: int,
) -> tuple[int, int]:
    """Do what `number_directly` does, in a table, until this has as many vertices as it should.

    Args:
        neighbors: int32 [edges], vertex ids, replaced by local ids from `first` on.
        first: edge to begin with.
        table: see `place_seeds_hashed`.
        shift: see `place_seeds_hashed`.
        base: number that marks this sample.
        frontier: int64 [at least found + edges - first + 1], vertex ids by local id; new ones are appended.
        found: vertices in the frontier so far.
        most: vertices in the frontier at which to stop; below the length of the table.

    Returns:
        (edge to go on with, vertices in the frontier now).
    """
    last = len(neighbors) - 1
    for edge in range(first, len(neighbors)):
        prefetch(table, _home(np.int64(neighbors[min(edge + _AHEAD, last)]), shift))
        if found >= most:
            return edge, found
        vertex = np.int64(neighbors[edge])
        slot = _slot(table, shift, base, vertex)
        local = (table[slot] & _LOW_HALF) - base
        is_new = local < 0
        local = found if is_new else local
        # Both writes happen every time: a branch here would be guessed wrong for every second edge.
        frontier[found] = vertex
        table[slot] = (vertex << _32) | (base + local)
        neighbors[edge] = local
        found += is_new
    return len(neighbors), found


@numba.njit(cache=True, nogil=True)
def refill(
    frontier: npt.NDArray[np.int64], found: int, table: npt.NDArray[np.int64], shift: np.uint64, base: int
) -> None:
    """Put the vertices of a frontier into a new table.

    Args:
        frontier: int64, vertex ids by local id.
        found: vertices in the frontier.
        table: see `place_seeds_hashed`; all slots free.
        shift: see `place_seeds_hashed`.
        base: number that marks this sample.
    """
    for local in range(found):
        prefetch(table, _home(frontier[min(local + _AHEAD, found - 1)], shift))
        table[_slot(table, shift, base, frontier[local])] = (frontier[local] << _32) | (base + local)
