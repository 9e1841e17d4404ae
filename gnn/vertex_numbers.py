"""The numbers that a sample gives to vertices in the order in which it sees them: two ways to keep them.

Both keep base + local id for a vertex, and smaller entries are left from earlier samples: raising the base past all
entries forgets them at no cost, until the numbers run out.
"""

from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from windrow.gnn.vertex_numbers_kernels import (
    number_directly,
    number_hashed,
    place_seeds_directly,
    place_seeds_hashed,
    refill,
)

__all__ = ["DirectNumbers", "HashedNumbers", "NumbersKind", "VertexNumbers", "make_numbers"]

NumbersKind = Literal["auto", "direct", "hashed"]
"""How numbers are kept: by the size of the graph, in an array of all vertices, or in a table of the sampled ones."""

HASHED_FROM_VERTICES = 1 << 26
"""Vertices from which on "auto" takes the table. Nanoseconds of a whole sample per edge, fanouts 15, 10, 5 from 1024
seeds, array against table, in turn on one core of an AMD EPYC (2 MiB L2, 32 MiB L3): 9.2 and 13.6 for 1 million
vertices, 19.6 and 24.0 for 10 million, 20.9 and 23.0 for 30 million, 24.4 and 23.8 for 100 million. From here on an
array would take 256 MiB and more of every thread, for nothing."""

LARGEST_INT32 = 2**31 - 1
FIRST_SLOTS = 1 << 12
"""Slots of a new table; a power of two."""
SLOTS_PER_VERTEX = 4
"""Least slots of the table for each vertex in it. With 2 a sample took 3 % less time where all fits into the cache, and
10 to 15 % more where it does not, which is what the table is for."""


class VertexNumbers(Protocol):
    """Numbers of the vertices of one sample after another."""

    def forget(self, numbered: int) -> None:
        """Forget all numbers.

        Args:
            numbered: how many vertices may have one.
        """

    def place_seeds(self, seeds: npt.NDArray[np.int64], frontier: npt.NDArray[np.int64]) -> int:
        """Number the seeds 0, 1, ...; nothing else has a number yet.

        Args:
            seeds: int64 [B].
            frontier: int64 [at least B], receives the seeds.

        Returns:
            -1, or the position of the first seed that is out of range or repeats an earlier one.
        """

    def number(self, neighbors: npt.NDArray[np.int32], frontier: npt.NDArray[np.int64], found: int) -> int:
        """Replace vertex ids by numbers; those that have none yet get the next.

        Args:
            neighbors: int32 [edges], vertex ids, replaced by numbers.
            frontier: int64 [at least min(found + edges, N) + 1], vertex ids by number; new ones are appended.
            found: vertices in the frontier so far.

        Returns:
            Vertices in the frontier now.
        """


class DirectNumbers:
    """Keeps numbers in an array of all vertices: 4 bytes for each vertex of the graph."""

    def __init__(self, num_vertices: int) -> None:
        """Make an array for N vertices."""
        self.base = 1
        self._first_seen: npt.NDArray[np.int32] = np.zeros(num_vertices, np.int32)

    def forget(self, numbered: int) -> None:
        """See `VertexNumbers`."""
        self.base += numbered
        if self.base > LARGEST_INT32 - len(self._first_seen):
            self._first_seen.fill(0)
            self.base = 1

    def place_seeds(self, seeds: npt.NDArray[np.int64], frontier: npt.NDArray[np.int64]) -> int:
        """See `VertexNumbers`."""
        return place_seeds_directly(seeds, self._first_seen, self.base, frontier)

    def number(self, neighbors: npt.NDArray[np.int32], frontier: npt.NDArray[np.int64], found: int) -> int:
        """See `VertexNumbers`."""
        return number_directly(neighbors, self._first_seen, self.base, frontier, found)


class HashedNumbers:
    """Keeps numbers in a table with open addressing: 32 to 64 bytes for each vertex of the largest sample so far."""

    def __init__(self, num_vertices: int) -> None:
        """Make a small table for samples of a graph of N vertices; it grows with them."""
        self.base = 1
        self._num_vertices = num_vertices
        self._make_table(FIRST_SLOTS)

    def forget(self, numbered: int) -> None:
        """See `VertexNumbers`."""
        self.base += numbered
        if self.base > LARGEST_INT32 - self._num_vertices:
            self._table.fill(0)
            self.base = 1

    def place_seeds(self, seeds: npt.NDArray[np.int64], frontier: npt.NDArray[np.int64]) -> int:
        """See `VertexNumbers`."""
        if len(seeds) > self._most:
            self._make_table(2 ** (SLOTS_PER_VERTEX * len(seeds)).bit_length())
        return place_seeds_hashed(seeds, self._num_vertices, self._table, self._shift, self.base, frontier)

    def number(self, neighbors: npt.NDArray[np.int32], frontier: npt.NDArray[np.int64], found: int) -> int:
        """See `VertexNumbers`."""
        edge = 0
        while True:
            edge, found = number_hashed(
                neighbors, edge, self._table, self._shift, self.base, frontier, found, self._most
            )
            if edge == len(neighbors):
                return found
            self._make_table(2 * len(self._table))
            refill(frontier, found, self._table, self._shift, self.base)

    def _make_table(self, slots: int) -> None:
        self._table: npt.NDArray[np.int64] = np.zeros(slots, np.int64)
        self._shift = np.uint64(65 - slots.bit_length())
        self._most = slots // SLOTS_PER_VERTEX


def make_numbers(num_vertices: int, kind: NumbersKind = "auto") -> VertexNumbers:
    """Choose how numbers are kept.

    Args:
        num_vertices: N.
        kind: "auto" chooses by N.

    Returns:
        Working memory for one thread, without numbers.
    """
    if kind == "auto":
        kind = "direct" if num_vertices < HASHED_FROM_VERTICES else "hashed"
    return DirectNumbers(num_vertices) if kind == "direct" else HashedNumbers(num_vertices)
