"""Full-graph training on parts against one process that has the whole graph."""

import dataclasses

import pytest
import torch

from windrow.gnn.build import assemble_graph
from windrow.gnn.full_graph import FullGraphOptions, FullGraphTask
from windrow.gnn.message_passing import Block
from windrow.gnn.models import ModelOptions, build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.synthetic import community_graph
from windrow.gnn.task import loss_sum
from windrow.gnn.vertex_data import VertexSplit
from windrow.partition.book import PartitionBook
from windrow.training.dropout import DropoutContext
from windrow.training.trainer import Trainer

NUM_VERTICES = 90
UNDIRECTED = community_graph(NUM_VERTICES, 3, seed=3, num_features=6)


def directed_graph():
    chance = torch.Generator().manual_seed(4)
    source, destination = torch.randint(NUM_VERTICES, (2, 600), generator=chance)
    return assemble_graph(
        source,
        destination,
        NUM_VERTICES,
        features=UNDIRECTED.features,
        labels=UNDIRECTED.labels,
        split=VertexSplit(UNDIRECTED.train_ids, UNDIRECTED.validation_ids, UNDIRECTED.test_ids),
        symmetrise=False,
    )


DIRECTED = directed_graph()
WEIGHTED = dataclasses.replace(
    DIRECTED, edge_weight=torch.rand(DIRECTED.num_edges, generator=torch.Generator().manual_seed(1))
)


def make_part(world, graph):
    assignment = torch.arange(NUM_VERTICES) * 7 % world.size
    book = PartitionBook.from_assignment(assignment.numpy(), world.size)
    return PartitionedGraph.from_graph(graph, book, world.rank)


def make_model(kind, graph, **more):
    options = ModelOptions(kind=kind, hidden=8, num_layers=3, heads=2, **{"dropout": 0.3, **more})
    return build_model(options, in_features=6, out_features=graph.num_classes, seed=2)


def one_process(model, graph, epochs):
    """Losses by epoch, and weights at the end, of plain PyTorch on the whole graph as one block."""
    degrees = graph.indptr.diff()
    whole = Block.whole(graph.indptr, graph.indices)
    if model.needs_edge_weights:
        whole = dataclasses.replace(whole, edge_weight=graph.edge_weight)
        degrees = torch.segment_reduce(graph.edge_weight, "sum", offsets=graph.indptr, initial=0)
    whole = dataclasses.replace(whole, source_degrees=degrees)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for epoch in range(epochs):
        context = DropoutContext(seed=0, epoch=epoch, step=0, row_ids=torch.arange(NUM_VERTICES))
        output = model([whole] * 3, graph.features, context)[graph.train_ids]
        loss = loss_sum(graph.task, output, graph.labels[graph.train_ids]) / len(graph.train_ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        return losses, model([whole] * 3, graph.features)


OPTIONS = [
    FullGraphOptions(overlap=False, partial_sums=False, keep_first=False),
    FullGraphOptions(overlap=True, partial_sums=False),
    FullGraphOptions(),
]


@pytest.mark.parametrize("options", OPTIONS, ids=["vanilla", "overlap", "partial sums"])
@pytest.mark.parametrize("kind", ["graphsage", "gcn", "gat", "gin"])
@pytest.mark.parametrize("graph", [UNDIRECTED, DIRECTED], ids=["undirected", "directed"])
def test_parts_learn_what_one_process_learns(spmd, graph, kind, options):
    expected, outputs = one_process(make_model(kind, graph), graph, 4)

    def body(world):
        task = FullGraphTask(make_part(world, graph), options)
        with Trainer(world, make_model(kind, graph), task, learning_rate=0.01, seed=0) as trainer:
            losses = [trainer.train_epoch(epoch) for epoch in range(4)]
            return losses, task.predict()

    for losses, predicted in spmd(body):
        assert losses == pytest.approx(expected, rel=1e-5)
        torch.testing.assert_close(predicted, outputs, rtol=1e-4, atol=1e-4)
