"""Counting what sampling asks for, and what analysis says it will ask for."""

import numpy as np
import pytest
import torch

from windrow.caching.vip import Demand, inclusion_probabilities
from windrow.gnn.demand import count_accesses
from windrow.gnn.sampler import NeighborSampler
from windrow.gnn.seed_order import SeedOrder
from windrow.gnn.synthetic import community_graph, power_law_graph

FANOUTS = (4, 3, 2)
SEED = 5


def sampling(graph, train_ids, *, own, batch_size):
    """Sampler and seeds of the part that holds the first `own` vertices."""
    order = SeedOrder(
        train_ids,
        offsets=[0, own, graph.num_vertices],
        rank=0,
        batch_size=batch_size,
        scheme="local",
        seed=SEED,
    )
    return NeighborSampler(graph.indptr, graph.indices, FANOUTS, seed=SEED), order


def test_every_input_row_of_every_minibatch_is_counted():
    graph = community_graph(60, 3, seed=1)
    sampler, order = sampling(graph, torch.arange(0, 60, 2), own=30, batch_size=8)
    expected = np.zeros(60, np.int64)
    for epoch in (2, 3):
        for step in range(order.steps_per_epoch):
            for vertex in sampler.sample(order.seeds(epoch, step), epoch=epoch, step=step).input_ids.tolist():
                expected[vertex] += 1
    counts = count_accesses(sampler, order, range(2, 4))
    assert counts.dtype == np.int64
    assert np.array_equal(counts, expected)
    assert not count_accesses(sampler, order, range(0)).any()


@pytest.mark.parametrize(
    "graph",
    [
        community_graph(1500, 30, seed=2, average_degree=10, homophily=0.9),
        power_law_graph(1500, 12_000, seed=2),
    ],
    ids=["communities", "power law"],
)
def test_analysis_predicts_the_counts(graph):
    own, epochs = 700, 150
    train_ids = torch.arange(0, graph.num_vertices, 6)
    sampler, order = sampling(graph, train_ids, own=own, batch_size=40)
    steps = order.steps_per_epoch
    measured = count_accesses(sampler, order, range(epochs)) / (epochs * steps)
    predicted = inclusion_probabilities(
        Demand(
            indptr=graph.indptr.numpy(),
            indices=graph.indices.numpy(),
            own=(0, own),
            seeds=train_ids[train_ids < own].numpy(),
            steps=steps,
            fanouts=FANOUTS,
        )
    ).total
    assert predicted[own:].sum() == pytest.approx(measured[own:].sum(), rel=0.05)
    # Vertex by vertex the counts of 1000 minibatches scatter by at most 0.016 around their means.
    assert np.abs(predicted - measured).mean() < 0.02
    assert np.corrcoef(predicted[own:], measured[own:])[0, 1] > 0.97
    assert not measured[predicted == 0].any()
