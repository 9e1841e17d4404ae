import numpy as np
import pytest

from windrow.partition.balance_kernels import excess_change, fits, total_excess, weigh_parts


def setup(seed):
    generator = np.random.default_rng(seed)
    weights = generator.integers(0, 4, (20, 3)).astype(np.int32)
    assignment = generator.integers(0, 3, 20).astype(np.int32)
    return weights, assignment, np.array([9, 12, 10], np.int64)


def test_weigh_parts_sums_rows_and_skips_the_unassigned():
    weights, assignment, _ = setup(0)
    assignment[4] = -1
    expected = [weights[assignment == part].sum(axis=0) for part in range(3)]
    assert (weigh_parts(weights, assignment, 3) == expected).all()


@pytest.mark.parametrize("seed", range(5))
def test_excess_change_is_the_difference_of_totals(seed):
    weights, assignment, limits = setup(seed)
    before = weigh_parts(weights, assignment, 3)
    for vertex in range(20):
        for target in range(3):
            if target == assignment[vertex]:
                continue
            moved = assignment.copy()
            moved[vertex] = target
            difference = total_excess(weigh_parts(weights, moved, 3), limits) - total_excess(before, limits)
            change = excess_change(weights, before, limits, vertex, assignment[vertex], target)
            assert change == pytest.approx(difference, abs=1e-12)


def test_fits_ignores_constraints_without_weight():
    weights = np.array([[1, 0], [0, 2]], np.int32)
    full = np.array([[4, 9]], np.int64)
    limits = np.array([5, 5], np.int64)
    assert fits(weights, full, limits, 0, 0)
    assert not fits(weights, full, limits, 1, 0)
