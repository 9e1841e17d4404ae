"""windrow.caching.selection: against sums written out vertex by vertex."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.caching.selection import expected_remote_rows

OFFSETS = [0, 3, 6, 6, 9]
"""Four parts, one of them empty."""


def slow_rows(total, ranking, offsets, part, capacity, steps):
    kept = set(ranking[:capacity].tolist())
    rows = [0.0] * (len(offsets) - 1)
    for owner in range(len(rows)):
        for vertex in range(offsets[owner], offsets[owner + 1]):
            if owner != part and vertex not in kept:
                rows[owner] += steps * total[vertex]
    return rows


@given(
    st.lists(st.floats(0, 1), min_size=9, max_size=9),
    st.sampled_from([0, 1, 3]),
    st.permutations(range(9)),
    st.integers(0, 9),
    st.lists(st.integers(0, 12), min_size=1, max_size=6),
    st.integers(1, 50),
)
def test_sums_over_what_is_not_kept(total, part, order, length, capacities, steps):
    probabilities = np.array(total)
    own = range(OFFSETS[part], OFFSETS[part + 1])
    ranking = np.array([vertex for vertex in order if vertex not in own][:length], np.int64)
    found = expected_remote_rows(probabilities, ranking, OFFSETS, part, capacities, steps=steps)
    assert found.shape == (len(capacities), 4)
    for rows, capacity in zip(found, capacities, strict=True):
        assert rows == pytest.approx(
            slow_rows(probabilities, ranking, OFFSETS, part, capacity, steps), abs=1e-9
        )
    by_capacity = found[np.argsort(capacities, kind="stable")].sum(1)
    assert (np.diff(by_capacity) <= 0).all()


def test_nothing_at_all_is_asked_for_where_everything_is_kept():
    total = np.random.default_rng(1).random(9)
    remote = np.array([8, 0, 7, 1, 6, 2])
    rows = expected_remote_rows(total, remote, OFFSETS, 1, [6, 100, 5], steps=7)
    assert rows[0].tolist() == rows[1].tolist() == [0.0] * 4
    assert rows[2].tolist() == [0, 0, 0, 0] if total[2] == 0 else rows[2].sum() == pytest.approx(7 * total[2])


def test_the_drawing_of_the_documentation():
    total = np.zeros(10)
    total[[7, 2, 9, 4]] = [0.9, 0.5, 0.2, 0.1]
    rows = expected_remote_rows(total, np.array([7, 2, 9, 4]), [0, 2, 10], 0, range(5), steps=10)
    assert rows[:, 1] == pytest.approx([17, 8, 3, 1, 0])
    assert rows[:, 0].tolist() == [0] * 5
