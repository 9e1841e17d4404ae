"""windrow.gnn.demand: what a part's own minibatches need, against counting what they draw."""

import dataclasses
import tracemalloc

import numpy as np
import pytest
import torch

from windrow.caching.vip import inclusion_probabilities
from windrow.gnn.demand import bytes_for_priorities, demand_of, vertex_priorities
from windrow.gnn.graph import Graph
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.sampler import NeighborSampler
from windrow.gnn.seed_order import SeedOrder
from windrow.gnn.synthetic import community_graph, power_law_graph
from windrow.partition.book import PartitionBook, VertexOrder

PARTS = 3
ORDER = VertexOrder(fanouts=(4, 3), batch_size=20, seed_order="global")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return community_graph(400, 3, seed=2, num_features=2)


@pytest.fixture(scope="module")
def assignment() -> np.ndarray:
    return (np.arange(400) * 7 % 10 % PARTS).astype(np.int32)


def test_each_vertex_has_the_probability_of_its_owner(graph: Graph, assignment: np.ndarray) -> None:
    """The same from the graph once it is renumbered, where parts are ranges."""
    every = VertexOrder(fanouts=(-1, -1), batch_size=20, seed_order="global")
    found = vertex_priorities(graph, assignment, PARTS, every)
    book = PartitionBook.from_assignment(assignment, PARTS)
    steps = -(-len(graph.train_ids) // 20)
    for part in range(PARTS):
        view = PartitionedGraph.from_graph(graph, book, part)
        start, stop = view.own_range
        expected = inclusion_probabilities(demand_of(view, part, every.fanouts, steps)).total[start:stop]
        # How far lists overlap is estimated by draws that go by a vertex's number.
        assert found[book.new_to_old[start:stop]] == pytest.approx(expected, abs=0.05)


def test_what_comes_first_is_what_minibatches_draw_most(graph: Graph, assignment: np.ndarray) -> None:
    priorities = vertex_priorities(graph, assignment, PARTS, ORDER)
    plain = PartitionBook.from_assignment(assignment, PARTS)
    ordered = PartitionBook.from_assignment(assignment, PARTS, priorities)
    for rank in range(PARTS):
        counts = accesses(graph, ordered, rank)
        start, stop = ordered.part_range(rank)
        mine = counts[start:stop]
        best = np.sort(mine)[::-1]
        quarter = len(mine) // 4
        assert mine[:quarter].sum() > 0.93 * best[:quarter].sum()
        others = accesses(graph, plain, rank)[start:stop]
        assert others.sum() == mine.sum()
        assert mine[:quarter].sum() > 1.2 * others[:quarter].sum()


def accesses(graph: Graph, book: PartitionBook, rank: int, epochs: int = 30) -> np.ndarray:
    """How often each vertex is an input of a minibatch of a rank, by id of the partition."""
    view = PartitionedGraph.from_graph(graph, book, rank)
    order = SeedOrder(
        view.train_ids,
        view.original_ids,
        offsets=view.offsets,
        rank=rank,
        batch_size=ORDER.batch_size,
        seed=1,
    )
    sampler = NeighborSampler(
        view.indptr, view.indices, ORDER.fanouts, seed=1, original_ids=view.original_ids
    )
    counts = np.zeros(graph.num_vertices, np.int64)
    for epoch in range(epochs):
        for step in range(order.steps_per_epoch):
            minibatch = sampler.sample(order.seeds(epoch, step), epoch=epoch, step=step)
            counts[minibatch.input_ids.numpy()] += 1
    return counts


def test_progress_and_a_part_without_training_vertices(graph: Graph) -> None:
    assignment = np.zeros(400, np.int32)
    assignment[graph.test_ids.numpy()] = 1
    told: list[tuple[str, float]] = []
    found = vertex_priorities(graph, assignment, 2, ORDER, progress=lambda *report: told.append(report))
    assert told == [("ordering vertices", share) for share in (0.0, 0.5, 1.0)]
    assert not found[assignment == 1].any()
    assert (found[graph.train_ids.numpy()] > 0).all()
    assert ((found >= 0) & (found <= 1)).all()


def test_memory_is_what_was_estimated() -> None:
    undirected = power_law_graph(20_000, 200_000, seed=1)
    undirected = dataclasses.replace(undirected, train_ids=torch.arange(0, 20_000, 50))
    turned = undirected.indices.clone()
    turned[0] = (turned[0] + 7) % 20_000
    directed = dataclasses.replace(undirected, indices=turned)
    assignment = (np.arange(20_000) % 4).astype(np.int32)
    wide = dataclasses.replace(ORDER, fanouts=(15, 10, 5))
    vertex_priorities(directed, assignment, 4, wide)  # compiles, which takes memory too
    peaks = []
    for graph in (undirected, directed):
        tracemalloc.start()
        vertex_priorities(graph, assignment, 4, wide)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    estimate = bytes_for_priorities(directed, wide)
    assert 0.6 * estimate < peaks[0] < peaks[1] < 1.1 * estimate
    assert 0.9 * estimate < peaks[1]
