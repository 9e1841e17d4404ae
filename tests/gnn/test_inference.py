"""Exact layer-wise inference against the whole graph as one block."""

import pytest
import torch

from windrow.comm.loopback import Loopback
from windrow.gnn.inference import exact_chunks, gather_predictions, infer_exactly
from windrow.gnn.message_passing import Block
from windrow.gnn.models import ModelOptions, build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.synthetic import community_graph
from windrow.partition.book import PartitionBook


def make_model(kind="graphsage"):
    options = ModelOptions(
        kind=kind, hidden=8, num_layers=2, dropout=0.5, normalise="layer", residual=True, heads=2
    )
    return build_model(options, in_features=6, out_features=3, seed=2)


def make_part(world, graph):
    assignment = torch.arange(graph.num_vertices).numpy() // 7 % world.size
    return PartitionedGraph.from_graph(
        graph, PartitionBook.from_assignment(assignment, world.size), world.rank
    )


@pytest.mark.parametrize("kind", ["graphsage", "gcn", "gat", "gin"])
def test_predictions_equal_the_whole_graph_in_one_piece(spmd, kind):
    graph = community_graph(100, 3, seed=3, num_features=6)
    with torch.no_grad():
        whole = Block.whole(graph.indptr, graph.indices)
        expected = make_model(kind)([whole, whole], graph.features)

    def body(world):
        part = make_part(world, graph)
        own = infer_exactly(world, part, make_model(kind), chunk_vertices=9)
        return gather_predictions(world, part, own)

    for predictions in spmd(body):
        torch.testing.assert_close(predictions, expected, rtol=1e-5, atol=1e-5)


def test_chunks_change_nothing():
    graph = community_graph(60, 3, seed=4, num_features=6)
    part = make_part(Loopback.single(), graph)
    done = []
    small = infer_exactly(
        Loopback.single(), part, make_model(), chunk_vertices=7, after_chunk=lambda: done.append(1)
    )
    assert len(done) == exact_chunks(part, make_model(), chunk_vertices=7) == 2 * 9
    torch.testing.assert_close(
        small, infer_exactly(Loopback.single(), part, make_model()), rtol=1e-5, atol=1e-6
    )


def test_predictions_come_in_the_users_order():
    graph = community_graph(40, 3, seed=5, num_features=6)

    def body(world):
        part = make_part(world, graph)
        start, stop = part.own_range
        return gather_predictions(world, part, part.original_ids[start:stop])

    for ids in Loopback.run(3, body):
        assert torch.equal(ids, torch.arange(40))
