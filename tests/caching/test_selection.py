"""Which remote rows are kept, how many, and what still travels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.caching.selection import (
    GIB_BYTES,
    CacheOptions,
    automatic_capacities,
    cache_capacity,
    choose_cached,
    expected_remote_rows,
    least_that_suffices,
    rows_that_fit,
    rows_worth_keeping,
)


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
    for capacity, expected in ((3, [4, 0, 5]), (2, [4, 0]), (99, [4, 0, 5, 6]), (0, [])):
        assert choose_cached(scores, (2, 4))[:capacity].tolist() == expected


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
    chosen = choose_cached(np.array(scores), own)[:capacity]
    assert chosen.dtype == np.int64
    assert chosen.tolist() == expected


def test_what_makes_sense_is_taken():
    assert CacheOptions().alpha == "auto"
    assert CacheOptions(alpha=3.5, policy="degree", memory_gib=0, gpu_share=0).alpha == 3.5


@pytest.mark.parametrize(
    ("memory_gib", "row_bytes", "rows"), [(1.0, 512, 1 << 21), (0.0, 4, 0), (1.5 / GIB_BYTES, 1, 1)]
)
def test_rows_that_fit(memory_gib, row_bytes, rows):
    assert rows_that_fit(memory_gib, row_bytes) == rows


def test_a_row_pays_where_it_would_travel_more_than_once():
    total = np.array([1.0, 0.3, 0.05, 0.0, 0.2, 0.1])
    assert rows_worth_keeping(total, (0, 1), steps=10, epochs=1) == 2  # 0.1 would travel once: no gain
    assert rows_worth_keeping(total, (0, 1), steps=10, epochs=3) == 4
    assert rows_worth_keeping(total, (1, 2), steps=10, epochs=1) == 2
    assert rows_worth_keeping(total, (0, 6), steps=10, epochs=1) == 0


@given(st.lists(st.floats(0, 1), min_size=4, max_size=30), st.integers(0, 3), st.integers(1, 20), st.integers(1, 20))
def test_no_other_number_of_rows_costs_fewer_transfers(probabilities, own, steps, epochs):
    total = np.array(probabilities)
    remote = np.sort(np.delete(total, own))[::-1]
    transfers = [count + steps * epochs * remote[count:].sum() for count in range(len(remote) + 1)]
    kept = rows_worth_keeping(total, (own, own + 1), steps=steps, epochs=epochs)
    assert transfers[kept] == pytest.approx(min(transfers))


@pytest.mark.parametrize(
    ("worthwhile", "affordable", "kept"),
    [
        ([50, 60], 1000, [50, 60]),  # all that pays
        ([50, 60], 55, [50, 55]),  # until the memory is full
        ([95, 85], 1000, [100, 100]),  # nearly everything: then everything, and no exchange
        ([95, 85], 99, [95, 85]),  # which does not fit
        ([95, 84], 1000, [95, 84]),
        ([0, 0], 1000, [0, 0]),
    ],
)
def test_automatic_capacities(worthwhile, affordable, kept):
    memory_gib = (8 * affordable + 7) / GIB_BYTES
    assert automatic_capacities(worthwhile, [100, 100], 8, memory_gib) == kept


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
        assert rows == pytest.approx(slow_rows(probabilities, ranking, OFFSETS, part, capacity, steps), abs=1e-9)
    by_capacity = found[np.argsort(capacities, kind="stable")].sum(1)
    assert (np.diff(by_capacity) <= 0).all()


def test_nothing_at_all_is_asked_for_where_everything_is_kept():
    total = np.random.default_rng(1).random(9)
    remote = np.array([8, 0, 7, 1, 6, 2])
    rows = expected_remote_rows(total, remote, OFFSETS, 1, [6, 100, 5], steps=7)
    assert rows[0].tolist() == rows[1].tolist() == [0.0] * 4


def test_the_first_that_is_nearly_as_good_as_the_best():
    cost = [10.0, 4.0, 2.02, 2.0, 2.0]
    assert least_that_suffices(cost, tolerance=0.0) == 3
    assert least_that_suffices(cost, tolerance=0.01) == 2
    assert least_that_suffices(cost, tolerance=9.0) == 0
    assert least_that_suffices([0.0, 0.0], tolerance=0.01) == 0
