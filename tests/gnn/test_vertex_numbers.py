"""Both ways to keep the numbers of vertices against a dictionary, sample after sample."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.gnn.sampler import (
    FIRST_SLOTS,
    HASHED_FROM_VERTICES,
    DirectNumbers,
    HashedNumbers,
    VertexNumbers,
    make_numbers,
)

NUM_VERTICES = 30_000


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 2**32), st.integers(0, 9_000)), min_size=1, max_size=5))
@pytest.mark.parametrize("kind", [DirectNumbers, HashedNumbers])
def test_numbers_equal_those_of_a_dictionary(
    kind: type[VertexNumbers], samples: list[tuple[int, int]]
) -> None:
    numbers = kind(NUM_VERTICES)  # type: ignore[call-arg]  # A protocol has no constructor.
    found = 0
    for seed, size in samples:
        generator = np.random.default_rng(seed)
        seeds = generator.choice(NUM_VERTICES, size // 3, replace=False)
        frontier = np.empty(len(seeds) + 2 * size + 1, np.int64)
        numbers.forget(found)
        assert numbers.place_seeds(seeds, frontier) == -1
        expected = {vertex: number for number, vertex in enumerate(seeds.tolist())}
        found = len(seeds)
        for _ in range(2):
            neighbors = generator.integers(0, NUM_VERTICES, size, dtype=np.int32)
            wanted = [expected.setdefault(vertex, len(expected)) for vertex in neighbors.tolist()]
            found = numbers.number(neighbors, frontier, found)
            assert neighbors.tolist() == wanted
        assert frontier[:found].tolist() == list(expected)


def test_memory_of_the_table_follows_the_sample_and_not_the_graph() -> None:
    numbers = HashedNumbers(2**31 - 2)
    assert len(numbers._table) == FIRST_SLOTS
    frontier = np.empty(20_001, np.int64)
    assert numbers.place_seeds(np.arange(20_000) * 100_000, frontier) == -1
    assert 4 * 20_000 <= len(numbers._table) <= 8 * 20_000


def test_the_size_of_the_graph_chooses() -> None:
    assert isinstance(make_numbers(1000), DirectNumbers)
    assert isinstance(make_numbers(HASHED_FROM_VERTICES), HashedNumbers)
    assert isinstance(make_numbers(1000, "hashed"), HashedNumbers)
    assert isinstance(make_numbers(HASHED_FROM_VERTICES, "direct"), DirectNumbers)
