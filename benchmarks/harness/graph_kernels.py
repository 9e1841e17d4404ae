"""Compiled loops of `benchmarks.harness.power_law`."""

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.inline_kernels import hash_id, prefetch

__all__ = ["csc_from_pairs", "draw_features", "draw_pairs"]

Floats = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_TO_UNIT = 2.0**-53
_11 = np.uint64(11)
_16 = np.uint64(16)
_LOW_16 = np.uint64(0xFFFF)
_AHEAD = 32
"""Pairs between asking for memory and reading it: covers one trip to memory."""
_FOUR_PIECES_MEAN = 4 * (2**16 - 1) / 2
_FOUR_PIECES_DEVIATION = (4 * (2.0**32 - 1) / 12) ** 0.5
"""Mean and standard deviation of the sum of four numbers, each uniform in 0..2**16 - 1."""


@numba.njit(inline="always", cache=True)
def _uniform(key: np.uint64, position: int) -> float:
    """One number in [0, 1), as `benchmarks.harness.power_law` makes it."""
    return np.float64(hash_id(key, np.uint64(position)) >> _11) * _TO_UNIT


@numba.njit(inline="always", cache=True)
def _member(number: float, size: int, skew: float, capped: float, height: float) -> int:
    """Invert the distribution of density height * (max(x, capped) / capped) ** -skew on [0, 1), scaled to `size`."""
    below = capped * height
    if number < below:
        return min(int(number / height * size), size - 1)
    rise = (number - below) * (1 - skew) / (height * capped**skew)
    return min(int((capped ** (1 - skew) + rise) ** (1 / (1 - skew)) * size), size - 1)


@numba.njit(cache=True, nogil=True)
def draw_pairs(
    first: int,
    keys: Words,
    starts: Longs,
    community_of: npt.NDArray[np.int32],
    capped: Floats,
    heights: Floats,
    vertices: Longs,
    skew: float,
    mixing: float,
    decay: float,
    pairs: Longs,
) -> int:
    """Draw edges number first, first + 1, ... into `pairs`; those from a vertex to itself are left out.

    There are 5 `keys`, one for each of an edge's numbers. Community c has the places starts[c] .. starts[c + 1] - 1,
    which `vertices` shuffles; weights fall as rank ** -skew and are level at heights[c] for the first capped[c] of its
    members. The share `mixing` leaves its community; where `decay` is not 0, such edges end at a distance d on the
    ring of places with density d ** -decay, from half of their community's size on.

    Returns:
        How many pairs low * N + high were written.
    """
    num_vertices = len(vertices)
    written = 0
    for draw in range(first, first + len(pairs)):
        home = np.int64(community_of[np.int64(_uniform(keys[0], draw) * num_vertices)])
        size = starts[home + 1] - starts[home]
        away = home
        if _uniform(keys[1], draw) >= mixing:
            pass
        elif decay > 0:
            number = 2 * _uniform(keys[2], draw) - 1
            distance = size / 2 * max(abs(number), _TO_UNIT) ** (1 / (1 - decay))
            distance = min(distance, num_vertices / 2)
            place = (starts[home] + size // 2 + np.int64(np.copysign(distance, number))) % num_vertices
            away = np.int64(community_of[place])
        else:
            place = np.int64(_uniform(keys[2], draw) * (num_vertices - size))
            away = np.int64(community_of[place + size if place >= starts[home] else place])
        away_size = starts[away + 1] - starts[away]
        one = vertices[starts[home] + _member(_uniform(keys[3], draw), size, skew, capped[home], heights[home])]
        two = vertices[starts[away] + _member(_uniform(keys[4], draw), away_size, skew, capped[away], heights[away])]
        pairs[written] = min(one, two) * num_vertices + max(one, two)
        written += one != two
    return written


@numba.njit(cache=True, nogil=True)
def csc_from_pairs(pairs: Longs, indptr: Longs, indices: npt.NDArray[np.integer]) -> None:
    """Write a graph by destination, each undirected edge at both of its ends, each list ascending.

    `pairs` int64 [E / 2] are low * N + high with low < high, ascending without repeats; `indptr` [N + 1] and `indices`
    [E] are written. Two passes over the pairs, and no memory but the result.
    """
    num_vertices = len(indptr) - 1
    indptr[:] = 0
    last = len(pairs) - 1
    for edge in range(len(pairs)):
        prefetch(indptr, pairs[min(edge + _AHEAD, last)] % num_vertices)
        low = pairs[edge] // num_vertices
        indptr[low + 1] += 1
        indptr[pairs[edge] - low * num_vertices + 1] += 1
    for vertex in range(num_vertices):
        indptr[vertex + 1] += indptr[vertex]
    # Entry v is where the next neighbour of v goes. A vertex meets those below it first, since pairs ascend, and
    # both kinds in ascending order.
    for edge in range(len(pairs)):
        # First for where a list goes on, then for that place: five times as quick as to wait for both.
        prefetch(indptr, pairs[min(edge + 2 * _AHEAD, last)] % num_vertices)
        prefetch(indices, indptr[pairs[min(edge + _AHEAD, last)] % num_vertices])
        low = pairs[edge] // num_vertices
        high = pairs[edge] - low * num_vertices
        indices[indptr[low]] = high
        indptr[low] += 1
        indices[indptr[high]] = low
        indptr[high] += 1
    for vertex in range(num_vertices, 0, -1):
        indptr[vertex] = indptr[vertex - 1]
    indptr[0] = 0


@numba.njit(cache=True, nogil=True)
def draw_features(
    key: np.uint64, labels: Longs, directions: npt.NDArray[np.float32], features: npt.NDArray[np.float32]
) -> None:
    """Write noise plus the direction of each vertex's class into `features`, float32 [N, F].

    The noise of a number is the sum of the four pieces of its hash, scaled to mean 0 and variance 1: bell-shaped,
    within 3.5 of 0, and far quicker than a normal number.
    """
    num_features = features.shape[1]
    for vertex in range(len(labels)):
        label = labels[vertex]
        for column in range(num_features):
            word = hash_id(key, np.uint64(vertex * num_features + column))
            pieces = np.float64(word & _LOW_16)
            for _ in range(3):
                word >>= _16
                pieces += np.float64(word & _LOW_16)
            noise = (pieces - _FOUR_PIECES_MEAN) / _FOUR_PIECES_DEVIATION
            features[vertex, column] = noise + directions[label, column]
