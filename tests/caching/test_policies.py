"""Every policy against sums over dense matrices."""

import dataclasses
from typing import get_args

import numpy as np
import pytest

from windrow.caching.policies import SIMULATED_EPOCHS, score_vertices
from windrow.caching.selection import PolicyName
from windrow.caching.vip import Demand, find_samplers, inclusion_probabilities
from windrow.comm.errors import RecipeError

SEEDS = [3, 8]


def make_demand(*, directed=True):
    generator = np.random.default_rng(5)
    listed = generator.random((40, 40)) < 0.06  # [whose list, entry]
    if not directed:
        listed |= listed.T
    listed[:, 39] = False
    indptr = np.concatenate([[0], np.cumsum(listed.sum(1))]).astype(np.int64)
    demand = Demand(
        indptr=indptr,
        indices=np.nonzero(listed)[1].astype(np.int32),
        own=(0, 10),
        seeds=np.array(SEEDS),
        steps=2,
        fanouts=(3, 2),
    )
    return demand, listed.T * 1.0


def on_seeds(value):
    values = np.zeros(40)
    values[SEEDS] = value
    return values


@pytest.mark.parametrize("directed", [True, False])
def test_degree_and_reachable_degree_and_halo(directed):
    demand, matrix = make_demand(directed=directed)
    degree = matrix.sum(1)
    assert np.array_equal(score_vertices("degree", demand, simulate=None), degree)
    one, two = matrix @ on_seeds(1.0), matrix @ matrix @ on_seeds(1.0)
    reached = (on_seeds(1.0) + one + two) > 0
    assert 0 < reached.sum() < 40
    assert np.array_equal(
        score_vertices("reachable-degree", demand, simulate=None), np.where(reached, degree, 0)
    )
    assert np.array_equal(score_vertices("halo", demand, simulate=None), one > 0)


def test_paths():
    demand, matrix = make_demand()
    step = np.eye(40) + matrix
    expected = step @ step @ on_seeds(1.0)
    assert np.array_equal(score_vertices("paths", demand, simulate=None), expected)


def test_reverse_pagerank():
    demand, matrix = make_demand()
    step = np.eye(40) + matrix / np.maximum(1, matrix.sum(0))
    expected = step @ step @ on_seeds(0.5)
    assert score_vertices("reverse-pagerank", demand, simulate=None) == pytest.approx(expected)


def test_vip():
    demand, _ = make_demand()
    assert np.array_equal(score_vertices("vip", demand, simulate=None), inclusion_probabilities(demand).total)


def test_simulation_gives_what_was_counted():
    demand, _ = make_demand()
    scores = score_vertices("simulation", demand, simulate=lambda epochs: np.arange(40) * epochs)
    assert scores.dtype == np.float64
    assert np.array_equal(scores, np.arange(40.0) * SIMULATED_EPOCHS)


def test_simulation_needs_a_sampler():
    with pytest.raises(RecipeError, match="simulation"):
        score_vertices("simulation", make_demand()[0], simulate=None)


def test_an_unknown_policy_is_refused():
    with pytest.raises(RecipeError, match="oracle"):
        score_vertices("oracle", make_demand()[0], simulate=None)


@pytest.mark.parametrize("policy", get_args(PolicyName))
def test_every_policy_scores_every_vertex(policy):
    demand, _ = make_demand()
    samplers = find_samplers(demand.indptr, demand.indices)

    def simulate(epochs):
        return np.full(40, epochs)

    scores = score_vertices(policy, demand, simulate=simulate, samplers=samplers)
    assert scores.shape == (40,)
    assert scores.min() >= 0
    assert np.array_equal(scores, score_vertices(policy, demand, simulate=simulate))


def test_without_seeds_nothing_is_expected():
    empty = dataclasses.replace(make_demand()[0], seeds=np.zeros(0, np.int64))
    for policy in ("vip", "reachable-degree", "halo", "paths", "reverse-pagerank"):
        assert not score_vertices(policy, empty, simulate=None).any()
