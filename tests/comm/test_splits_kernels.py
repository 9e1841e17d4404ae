"""The compiled loops, each against one line of NumPy."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from windrow.comm.rows_kernels import find_owners, sort_by_owner

COUNTS = arrays(np.int64, st.integers(1, 9), elements=st.integers(0, 5))


@settings(deadline=None)
@given(COUNTS, st.data())
def test_owners_are_found_and_counted(counts, data):
    offsets = np.concatenate([[0], np.cumsum(counts)])
    ids = data.draw(arrays(np.int64, st.integers(0, 30), elements=st.integers(-1, int(offsets[-1]))))
    owner, found = np.empty(len(ids), np.int32), np.zeros(len(counts), np.int64)
    grouped, bad_position = find_owners(ids, offsets, owner, found)
    outside = np.flatnonzero((ids < 0) | (ids >= offsets[-1]))
    if len(outside):
        assert bad_position == outside[0]
        return
    expected = np.searchsorted(offsets[1:], ids, side="right")
    assert bad_position == -1
    np.testing.assert_array_equal(owner, expected)
    np.testing.assert_array_equal(found, np.bincount(expected, minlength=len(counts)))
    assert grouped == bool((np.diff(expected) >= 0).all())


@settings(deadline=None)
@given(arrays(np.int32, st.integers(0, 30), elements=st.integers(0, 5)))
def test_counting_sort_equals_the_stable_argsort(owner):
    order = np.empty(len(owner), np.int64)
    sort_by_owner(owner, np.bincount(owner, minlength=6), order)
    np.testing.assert_array_equal(order, np.argsort(owner, kind="stable"))
