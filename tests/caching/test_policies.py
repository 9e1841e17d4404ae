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
def test_every_policy_is_its_formula(directed):
    demand, matrix = make_demand(directed=directed)
    degree, step = matrix.sum(1), np.eye(40) + matrix
    reached = step @ step @ on_seeds(1.0)
    assert 0 < (reached > 0).sum() < 40
    ranked = np.eye(40) + matrix / np.maximum(1, matrix.sum(0))
    expected = {
        "vip": inclusion_probabilities(demand)[-1],
        "degree": degree,
        "reachable-degree": np.where(reached > 0, degree, 0),
        "halo": matrix @ on_seeds(1.0) > 0,
        "paths": reached,
        "reverse-pagerank": ranked @ ranked @ on_seeds(0.5),
    }
    assert {*expected, "simulation"} == {*get_args(PolicyName)}
    samplers = find_samplers(demand.indptr, demand.indices)
    empty = dataclasses.replace(demand, seeds=np.zeros(0, np.int64))
    for policy, scores in expected.items():
        found = score_vertices(policy, demand, simulate=None, samplers=samplers)
        assert np.allclose(found, scores, rtol=1e-6 if policy == "reverse-pagerank" else 0, atol=0), policy
        assert policy == "degree" or not score_vertices(policy, empty, simulate=None, samplers=samplers).any()


def test_simulation_gives_what_was_counted():
    demand, _ = make_demand()
    samplers = find_samplers(demand.indptr, demand.indices)
    scores = score_vertices("simulation", demand, simulate=lambda epochs: np.arange(40) * epochs, samplers=samplers)
    assert scores.dtype == np.float64
    assert np.array_equal(scores, np.arange(40.0) * SIMULATED_EPOCHS)


def test_a_policy_without_a_sampler_is_refused():
    demand, _ = make_demand()
    with pytest.raises(RecipeError, match="simulation"):
        score_vertices("simulation", demand, simulate=None, samplers=find_samplers(demand.indptr, demand.indices))
