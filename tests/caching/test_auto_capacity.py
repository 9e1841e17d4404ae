"""windrow.caching.selection: what pays, and what fits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.caching.selection import (
    GIB_BYTES,
    automatic_capacities,
    rows_that_fit,
    rows_worth_keeping,
)


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


@given(
    st.lists(st.floats(0, 1), min_size=4, max_size=30),
    st.integers(0, 3),
    st.integers(1, 20),
    st.integers(1, 20),
)
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
