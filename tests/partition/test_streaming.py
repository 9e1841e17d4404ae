import numpy as np
import pytest

from windrow.partition.partitioners import fennel_assignment
from windrow.partition.refine import balance_limits


@pytest.mark.parametrize("passes", [1, 4])
@pytest.mark.parametrize("num_parts", [2, 7])
@pytest.mark.parametrize("seed", range(3))
def test_keeps_one_unit_constraint_within_its_limit(random_csc, seed, num_parts, passes):
    indptr, indices = random_csc(seed, 500, 2000)
    weights = np.ones((500, 1), np.int32)
    assignment = fennel_assignment(indptr, indices, weights, num_parts, imbalance=0.05, passes=passes)
    limit = balance_limits(weights, num_parts, 0.05)[0]
    assert np.bincount(assignment, minlength=num_parts).max() <= limit


@pytest.mark.parametrize("seed", range(3))
def test_roles_that_exclude_each_other_are_all_balanced(random_csc, seed):
    indptr, indices = random_csc(seed, 600, 2400)
    roles = np.random.default_rng(seed).integers(0, 3, 600)
    weights = np.stack([roles == role for role in range(3)], axis=1).astype(np.int32)
    assignment = fennel_assignment(indptr, indices, weights, 4, imbalance=0.03)
    limits = balance_limits(weights, 4, 0.03)
    for role in range(3):
        assert np.bincount(assignment[roles == role], minlength=4).max() <= limits[role]


def test_restreaming_keeps_cliques_together(ring_of_cliques):
    graph = ring_of_cliques(16, 8)
    weights = np.ones((128, 1), np.int32)
    streamed = fennel_assignment(graph.indptr, graph.indices, weights, 2, imbalance=0.05)
    dealt = (np.arange(128) % 2).astype(np.int32)
    assert graph.cut(streamed) < graph.cut(dealt) / 4


def test_progress_rises_to_one(random_csc):
    seen = []
    indptr, indices = random_csc(0, 300, 600)
    fennel_assignment(
        indptr,
        indices,
        np.ones((300, 1), np.int32),
        2,
        imbalance=0.05,
        progress=lambda *step: seen.append(step),
    )
    shares = [share for _, share in seen]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
