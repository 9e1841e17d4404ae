"""windrow.gnn.explain_full_graph: what is predicted is what travels."""

import dataclasses

import pytest
import torch

from windrow.comm.errors import RecipeError
from windrow.comm.links import NetworkDescription, described_links
from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter
from windrow.comm.wire import WireOptions
from windrow.gnn.explain_full_graph import FormatEstimate, LayerRows, describe_full_graph, explain_full_graph
from windrow.gnn.full_graph import FullGraphOptions, FullGraphTask
from windrow.gnn.models import ModelOptions, build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.synthetic import community_graph
from windrow.partition.book import PartitionBook
from windrow.recsys import EmbeddingCollection, EmbeddingConfig
from windrow.training.trainer import Trainer

PARTS = 3
GRAPH = community_graph(90, 3, seed=3, num_features=6)
BOOK = PartitionBook.from_assignment((torch.arange(90) * 7 % PARTS).numpy(), PARTS)

OPTIONS = {
    "plain": FullGraphOptions(partial_sums=False, keep_first=False, order="aggregate"),
    "fewest": FullGraphOptions(),
    "project": FullGraphOptions(order="project"),
    "recompute": FullGraphOptions(recompute=True),
    "stale": FullGraphOptions(method="stale"),
    "sampled": FullGraphOptions(method="boundary_sampling", boundary_share=0.4),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(("kind", "residual"), [("graphsage", False), ("gcn", True), ("gat", True), ("gin", False)])
def test_bytes_are_those_of_a_run(kind, residual, options):
    if kind == "gat" and options.method == "boundary_sampling":
        pytest.skip("gat needs all sources")
    check_bytes(GRAPH, ModelOptions(kind=kind, hidden=8, num_layers=3, heads=2, residual=residual), options)


@pytest.mark.parametrize("residual", [False, True])
def test_bytes_are_those_of_a_run_on_sparse_features(residual):
    sparse = dataclasses.replace(GRAPH, features=torch.eye(90))
    check_bytes(sparse, ModelOptions(kind="gcn", hidden=8, num_layers=2, residual=residual), FullGraphOptions())


@pytest.mark.parametrize("options", [OPTIONS["fewest"], OPTIONS["plain"]], ids=["fewest", "plain"])
def test_bytes_are_those_of_a_run_that_learns_rows_of_vertices(options):
    check_bytes(GRAPH, ModelOptions(kind="graphsage", hidden=8, num_layers=2), options, learnt_columns=3)


def check_bytes(graph, shape, options, *, learnt_columns=0):
    whole = PartitionedGraph.from_graph(graph, BOOK, 0)
    found = explain_full_graph(whole, shape, options, learnt_columns=learnt_columns)

    def sent(world, messages, wire):
        part, embedding = PartitionedGraph.from_graph(graph, BOOK, world.rank), None
        if learnt_columns:
            config = EmbeddingConfig(part.num_vertices, learnt_columns, "vertex")
            plan = part.plan_of_rows("vertex", learnt_columns)
            embedding = EmbeddingCollection([config], world=world, plan=plan, wire=wire, row_ids=part.original_ids)
        columns = graph.features.shape[1] + learnt_columns
        model = build_model(shape, in_features=columns, out_features=3, seed=2)
        task = FullGraphTask(part, messages, embedding=embedding)
        with Trainer(world, model, task, wire=wire, seed=0) as trainer:
            trainer.train_epoch(0)
            world.meter.reset()
            trainer.train_epoch(1)
            return task.traffic().bytes_sent, world.meter.totals().bytes_reduced

    def body(world):
        world.meter = Meter()
        plain, short = WireOptions(), WireOptions(vectors="bf16", gradients="bf16")
        four = FullGraphOptions(**{name: getattr(options, name) for name in options.__slots__} | {"messages": "int4"})
        return [sent(world, options, plain), sent(world, options, short), sent(world, four, plain)]

    runs = Loopback.run(PARTS, body)
    predicted = {one.messages: one.bytes_sent for one in found.formats}
    for number, name in enumerate(("fp32", "bf16", "int4")):
        assert sum(run[number][0] for run in runs) == predicted[name]
    loss_bytes = 8
    assert runs[0][0][1] == found.gradient_bytes + loss_bytes


def test_it_is_laid_out():
    part = PartitionedGraph.from_graph(GRAPH, BOOK, 0)
    links = described_links(NetworkDescription(nodes=PARTS, rate="1mbit"))
    options = FullGraphOptions(messages="adaptive", widths=(4, 8))
    found = explain_full_graph(part, ModelOptions(hidden=8), options, links=links)
    assert isinstance(found.layers[0], LayerRows)
    assert isinstance(found.formats[0], FormatEstimate)
    assert found.partial_sums_rows < found.source_rows
    printed = describe_full_graph(found, options, WireOptions(sums="fp8"), network="a network")
    assert "once in a run" in printed
    assert "adaptive messages are between int4 and int8" in printed
    assert "network: a network" in printed
    assert 'sums = "fp8"' in printed
    chosen = explain_full_graph(part, ModelOptions(), FullGraphOptions(method="auto"), links=links)
    assert chosen.choice.startswith("method: exact, since rows of 128 columns")
    assert chosen.choice in describe_full_graph(chosen, FullGraphOptions(method="auto"), WireOptions(), network="")
    skipping = FullGraphOptions(method="skip_broadcasts")
    assert "at most" in describe_full_graph(chosen, skipping, WireOptions(), network="")
    with pytest.raises(RecipeError, match='method = "feature_slices"'):
        explain_full_graph(part, ModelOptions(), FullGraphOptions(method="feature_slices"))
