"""Each compiled loop that numbers vertices against a dictionary."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.gnn import sampler_kernels as kernels

SHIFT = np.uint64(64 - 5)
"""Of a table of 32 slots."""


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 50))
def test_number_directly_equals_a_dictionary(vertices: list[int], base: int) -> None:
    first_seen = np.zeros(10, np.int32)
    frontier = np.full(2 + len(vertices) + 1, -1, np.int64)
    assert kernels.place_seeds_directly(np.array([3, 7]), first_seen, base, frontier) == -1
    neighbors = np.array(vertices, np.int32)
    found = kernels.number_directly(neighbors, first_seen, base, frontier, 2)
    numbers = {3: 0, 7: 1}
    expected = [numbers.setdefault(vertex, len(numbers)) for vertex in vertices]
    assert neighbors.tolist() == expected
    assert frontier[:found].tolist() == list(numbers)
    assert found == len(numbers)


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, 2, 3, 1000, 2**31 - 2]) | st.integers(0, 40), max_size=60),
    st.integers(5, 50) | st.just(2**31 - 40),
    st.integers(3, 31),
)
def test_number_hashed_equals_a_dictionary_up_to_where_it_stops(
    vertices: list[int], base: int, most: int
) -> None:
    # Left from earlier samples: numbers below base, of the same and of other vertices.
    table = np.arange(32, dtype=np.int64) << 32 | np.arange(32) % 5
    frontier = np.full(2 + len(vertices) + 1, -1, np.int64)
    seeds = np.array([3, 7])
    assert kernels.place_seeds_hashed(seeds, 2**31 - 1, table, SHIFT, base, frontier) == -1
    neighbors = np.array(vertices, np.int32)
    edge, found = kernels.number_hashed(neighbors, 0, table, SHIFT, base, frontier, 2, most)
    numbers = {3: 0, 7: 1}
    expected = [numbers.setdefault(vertex, len(numbers)) for vertex in vertices[:edge]]
    assert neighbors.tolist() == expected + vertices[edge:]
    assert frontier[:found].tolist() == list(numbers)
    assert found == len(numbers) <= most
    assert edge == len(vertices) or found == most
    # A new table made of the frontier goes on in the same way.
    larger = np.zeros(128, np.int64)
    kernels.refill(frontier, found, larger, SHIFT - np.uint64(2), base)
    edge, found = kernels.number_hashed(
        neighbors, edge, larger, SHIFT - np.uint64(2), base, frontier, found, 127
    )
    assert edge == len(vertices)
    assert neighbors.tolist() == [numbers.setdefault(vertex, len(numbers)) for vertex in vertices]
    assert frontier[:found].tolist() == list(numbers)


@pytest.mark.parametrize(
    ("seeds", "refused"), [([0, 4, 9], -1), ([], -1), ([2, -1], 1), ([10], 0), ([5, 6, 5], 2)]
)
def test_the_first_bad_seed_is_pointed_at(seeds: list[int], refused: int) -> None:
    first_seen: npt.NDArray[np.int32] = np.full(10, 99, np.int32)
    frontier = np.empty(3, np.int64)
    given_seeds = np.array(seeds, np.int64)
    assert kernels.place_seeds_directly(given_seeds, first_seen, 100, frontier) == refused
    table = np.full(32, 99, np.int64)
    assert kernels.place_seeds_hashed(given_seeds, 10, table, SHIFT, 100, frontier) == refused
