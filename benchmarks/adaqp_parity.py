"""Full-graph training on parts equals one process: losses and gradients, epoch by epoch, and those of plain DGL.

Trains GCN and GraphSAGE on tolokers with all vertices at once for 20 epochs, on 1, 2 and 4 MPI ranks, on the graph as
it is and on a directed one (each edge kept in one of its two directions, chosen by a hash), without overlap, with it,
and with sums for destinations in place of rows. The reference is full-batch DGL in one process, from the same weights.
The activation is GELU: a rectifier's gradient jumps where rounding takes a number across zero.

    python benchmarks/adaqp_parity.py [--short]
"""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.harness.data_sets import to_dgl
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table
from benchmarks.parity import metis_book, read
from windrow.comm.connect import connect
from windrow.comm.random import hash_ids
from windrow.gnn.build import csc_from_edges, edges_of
from windrow.gnn.full_graph import FullGraphOptions, FullGraphTask
from windrow.gnn.graph import Graph
from windrow.gnn.models import GNN, ModelOptions, build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.training.trainer import Trainer

EPOCHS, SHORT_EPOCHS = 20, 5
SEED = 7
TOLERANCE = 1e-5
LEARNING_RATE = 1e-3
KINDS = ("gcn", "graphsage")
MODES = {
    "vanilla": FullGraphOptions(overlap=False, partial_sums=False, keep_first=False),
    "overlap": FullGraphOptions(partial_sums=False),
    "overlap, partial sums": FullGraphOptions(),
}
Gradients = list[list[list[float]]]
"""For each epoch and parameter its gradient, flat."""


def graph_of(*, directed: bool) -> Graph:
    """The graph, with self-loops, in the user's order."""
    graph = read()
    sources, destinations = edges_of(graph.indptr, graph.indices)
    sources, destinations = sources.long(), destinations.long()
    if directed:
        low, high = torch.minimum(sources, destinations), torch.maximum(sources, destinations)
        up = torch.from_numpy(hash_ids(SEED, (low * graph.num_vertices + high).numpy()) >> 63).bool()
        kept = (sources <= destinations) == up
        sources, destinations = sources[kept], destinations[kept]
    indptr, indices, _ = csc_from_edges(sources, destinations, graph.num_vertices, symmetrise=False, self_loops="add")
    return replace(graph, indptr=indptr, indices=indices)


def options_of(kind: Any) -> ModelOptions:
    """Three layers; GCN divides by the degree of the destination, which means the same on directed graphs."""
    return ModelOptions(kind=kind, hidden=32, num_layers=3, activation="gelu", gcn_normalisation="right")


def work(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Train every model in every mode on these ranks: losses, and gradients after each epoch."""
    torch.set_num_threads(1)
    found = []
    with connect("mpi", deadline_s=300) as world:
        for directed, kind in itertools.product((False, True), KINDS):
            graph = graph_of(directed=directed)
            part = PartitionedGraph.from_graph(graph, metis_book(graph, world.size), world.rank)
            for mode, options in MODES.items():
                model = build_model(options_of(kind), in_features=part.num_features, out_features=1, seed=SEED)
                with Trainer(
                    world, model, FullGraphTask(part, options), learning_rate=LEARNING_RATE, seed=SEED
                ) as trainer:
                    losses, gradients = [], []
                    for epoch in range(task["epochs"]):
                        losses.append(trainer.train_epoch(epoch))
                        gradients.append([_flat(parameter.grad) for parameter in model.parameters()])
                found.append(
                    {"directed": directed, "kind": kind, "mode": mode, "losses": losses, "gradients": gradients}
                )
    return found


def _flat(gradient: Tensor | None, *, turned: bool = False) -> list[float]:
    assert gradient is not None
    flat: list[float] = (gradient.t() if turned else gradient).flatten().tolist()
    return flat


def dgl_run(graph: Graph, kind: str, reference: GNN, epochs: int) -> tuple[list[float], Gradients]:
    """Full-batch training in plain DGL, from the same weights; gradients in the order of our parameters."""
    from dgl.nn import GraphConv, SAGEConv

    assert graph.features is not None
    assert graph.labels is not None
    dgl_graph = to_dgl(graph)
    widths = [graph.features.shape[1], *[options_of(kind).hidden] * 2, 1]
    layers = torch.nn.ModuleList(
        GraphConv(a, b, norm="right") if kind == "gcn" else SAGEConv(a, b, "mean") for a, b in pairwise(widths)
    )
    names = (
        {"linear.weight": "weight", "linear.bias": "bias"}
        if kind == "gcn"
        else {
            "self_linear.weight": "fc_self.weight",
            "self_linear.bias": "fc_self.bias",
            "neighbor_linear.weight": "fc_neigh.weight",
        }
    )
    pairs = [
        (theirs.get_parameter(their_name), ours.get_parameter(our_name), their_name == "weight")
        for theirs, ours in zip(layers, reference.layers, strict=True)
        for our_name, their_name in names.items()
    ]
    with torch.no_grad():
        for theirs, ours, turned in pairs:
            theirs.copy_(ours.t() if turned else ours)
    optimizer = torch.optim.AdamW(layers.parameters(), lr=LEARNING_RATE, weight_decay=0)
    losses, gradients = [], []
    for _ in range(epochs):
        hidden = graph.features
        for index, layer in enumerate(layers):
            hidden = layer(dgl_graph, hidden)
            if index + 1 < len(layers):
                hidden = functional.gelu(hidden)
        train = graph.train_ids
        loss = functional.binary_cross_entropy_with_logits(hidden[train, 0], graph.labels[train].float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        found = {id(ours): _flat(theirs.grad, turned=turned) for theirs, ours, turned in pairs}
        gradients.append([found[id(parameter)] for parameter in reference.parameters()])
    return losses, gradients


def largest_differences(run: Mapping[str, Any], losses: list[float], gradients: Gradients) -> tuple[float, float]:
    """Of losses, relative; of gradients, as a part of the largest entry of the same parameter's."""
    loss = max(abs(mine - theirs) / abs(theirs) for mine, theirs in zip(run["losses"], losses, strict=True))
    gradient = 0.0
    for mine, theirs in zip(run["gradients"], gradients, strict=True):
        for found, wanted in zip(map(torch.tensor, mine), map(torch.tensor, theirs), strict=True):
            gradient = max(gradient, float((found - wanted).abs().max() / wanted.abs().max()))
    return loss, gradient


def measure(program: Program) -> Findings:
    """Compare."""
    torch.set_num_threads(1)
    epochs = SHORT_EPOCHS if program.short else EPOCHS
    expected = {}
    for directed, kind in itertools.product((False, True), KINDS):
        graph = graph_of(directed=directed)
        assert graph.features is not None
        model = build_model(options_of(kind), in_features=graph.features.shape[1], out_features=1, seed=SEED)
        expected[directed, kind] = dgl_run(graph, kind, model, epochs)
    rows: list[dict[str, object]] = []
    figures: dict[str, float] = {}
    for size in (1, 2, 4):
        runs = program.on_ranks(size, {"epochs": epochs})
        found = [largest_differences(run, *expected[run["directed"], run["kind"]]) for run in runs]
        for run, (loss, gradient) in zip(runs, found, strict=True):
            rows.append(
                {
                    "ranks": size,
                    "graph": "directed" if run["directed"] else "undirected",
                    "model": run["kind"],
                    "mode": run["mode"],
                    "loss": loss,
                    "gradients": gradient,
                }
            )
        figures[f"largest_relative_difference_of_losses_{size}_ranks_ratio"] = max(loss for loss, _ in found)
        figures[f"largest_relative_difference_of_gradients_{size}_ranks_ratio"] = max(part for _, part in found)
    largest = max(figures.values())
    aim = Aim(f"losses and gradients of DGL in one process, {epochs} epochs: <= {TOLERANCE:g}", largest <= TOLERANCE)
    return Findings(
        figures=figures,
        aims={"dgl": aim},
        tables={"largest relative difference to DGL in one process": Table.from_rows(rows)},
    )


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work, ranks=True)
