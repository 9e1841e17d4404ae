"""How many remote rows are kept, and which."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.caching.selection import cache_capacity, choose_cached


@pytest.mark.parametrize(
    ("alpha", "num_vertices", "num_parts", "expected"),
    [
        (0, 100, 4, 0),
        (0.05, 100, 4, 1),
        (0.2, 1003, 4, 50),
        (1, 1003, 4, 250),
        (3, 100, 4, 75),
        (0.29, 100, 1, 29),
        (9, 100, 4, 100),
        (0.1, 0, 4, 0),
    ],
)
def test_capacity(alpha, num_vertices, num_parts, expected):
    assert cache_capacity(alpha, num_vertices, num_parts) == expected


def test_the_best_remote_vertices_are_chosen():
    scores = np.array([0.5, 0, 9, 9, 0.7, 0.5, 0.1])
    assert choose_cached(scores, (2, 4), 3).tolist() == [4, 0, 5]
    assert choose_cached(scores, (2, 4), 2).tolist() == [4, 0]
    assert choose_cached(scores, (2, 4), 99).tolist() == [4, 0, 5, 6]
    assert choose_cached(scores, (2, 4), 0).tolist() == []


@given(
    st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), max_size=12),
    st.integers(0, 12),
    st.integers(0, 12),
    st.integers(0, 13),
)
def test_it_is_the_start_of_a_stable_sort(scores, one_end, other_end, capacity):
    own = min(one_end, other_end), max(one_end, other_end)
    remote = [vertex for vertex, score in enumerate(scores) if score > 0 and not own[0] <= vertex < own[1]]
    expected = sorted(remote, key=lambda vertex: (-scores[vertex], vertex))[:capacity]
    chosen = choose_cached(np.array(scores), own, capacity)
    assert chosen.dtype == np.int64
    assert chosen.tolist() == expected
