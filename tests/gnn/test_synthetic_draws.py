"""Numbers that generators of graphs draw."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from windrow.gnn.synthetic import below, distinct, shuffled, uniform

POSITIONS = np.arange(20_000)


def test_uniform_numbers_fill_the_unit_interval_evenly() -> None:
    numbers = uniform(POSITIONS, 1, 2)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = np.histogram(numbers, 20, (0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 19 + 5 * np.sqrt(2 * 19)


def test_a_number_depends_on_its_position_seed_and_purpose_alone() -> None:
    numbers = uniform(POSITIONS, 1, 2)
    assert np.array_equal(uniform(POSITIONS[5:9], 1, 2), numbers[5:9])
    for other in (uniform(POSITIONS, 2, 2), uniform(POSITIONS, 1, 3)):
        assert abs(np.corrcoef(numbers, other)[0, 1]) < 0.03


def test_integers_are_below_their_limit_and_reach_it() -> None:
    assert np.array_equal(np.unique(below(7, POSITIONS, 1, 2)), np.arange(7))


def test_shuffled_is_a_permutation_that_moves_things() -> None:
    order = shuffled(1000, 1, 2)
    assert np.array_equal(np.sort(order), np.arange(1000))
    assert abs(np.corrcoef(order, np.arange(1000))[0, 1]) < 0.1
    assert not np.array_equal(order, shuffled(1000, 2, 2))


@given(st.lists(st.integers(-5, 5)))
def test_distinct_equals_a_sorted_set(keys: list[int]) -> None:
    assert distinct(np.array(keys, np.int64)).tolist() == sorted(set(keys))
