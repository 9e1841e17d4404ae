"""windrow.caching.selection: curves whose knee is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.caching.selection import knee_of_curve, least_that_suffices


def test_the_corner_of_a_hinge_is_its_knee():
    kept = np.arange(11)
    cost = np.where(kept <= 3, 100 - 30 * kept, 10 - (kept - 3))
    assert knee_of_curve(kept, cost) == 3


def test_a_power_law_has_its_knee_where_its_slope_is_that_of_the_line():
    kept = np.linspace(1, 100, 1000)
    knee = knee_of_curve(kept, 1 / kept)
    # The slope -1 / x**2 is that of the line from (1, 1) to (100, 1/100) at x = 10.
    assert kept[knee] == pytest.approx(10, abs=0.1)


@pytest.mark.parametrize(
    ("cost", "knee"),
    [([5, 5, 5], 0), ([6, 4, 2], 2), ([6, 5, 0], 2), ([3], 0), ([0.3, 0.2, 0.1], 2), ([4, 0, 0], 1)],
)
def test_curves_without_a_bend(cost, knee):
    assert knee_of_curve(range(len(cost)), cost) == knee


@given(
    st.lists(st.floats(0, 1e6), min_size=2, max_size=20),
    st.floats(1e-3, 1e3),
    st.floats(1e-3, 1e3),
)
def test_units_do_not_matter(costs, of_kept, of_cost):
    cost = np.sort(np.array(costs))[::-1]
    kept = np.arange(len(cost))
    below = 1 - kept / kept[-1] - (cost - cost[-1]) / max(cost[0] - cost[-1], 1e-300)
    one, other = knee_of_curve(kept, cost), knee_of_curve(kept * of_kept, cost * of_cost)
    assert below[one] == pytest.approx(below[other], abs=1e-6)


def test_the_first_that_is_nearly_as_good_as_the_best():
    cost = [10.0, 4.0, 2.02, 2.0, 2.0]
    assert least_that_suffices(cost, tolerance=0.0) == 3
    assert least_that_suffices(cost, tolerance=0.01) == 2
    assert least_that_suffices(cost, tolerance=9.0) == 0
    assert least_that_suffices([0.0, 0.0], tolerance=0.01) == 0
