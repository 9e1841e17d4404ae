"""The answer does not depend on the number of ranks, on what they talk through, nor on who computes it.

Trains GraphSAGE on tolokers for 20 steps, dropout included, with the same global minibatches on 1, 2 and 4 ranks of
Loopback, MPI and gloo, and compares the loss of every step with one rank's. Then, with all neighbours and the same
weights, with a plain single-process DGL training loop.

    python benchmarks/parity.py [--short]
"""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from benchmarks.harness.data_sets import to_dgl
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table
from windrow.comm.connect import connect
from windrow.comm.loopback import Loopback
from windrow.comm.world import World
from windrow.gnn.graph import Graph
from windrow.gnn.models import GNN, ModelOptions, build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.readers import GraphOptions, read_graph
from windrow.gnn.seed_order import SeedOrder
from windrow.gnn.task import NodeTask
from windrow.partition import PartitionBook, PartitionOptions, partition_graph
from windrow.training.trainer import Trainer

DATA = Path(__file__).parent.parent / "examples" / "data" / "tolokers.npz"
STEPS = 20
SEED = 7
TOLERANCE = 1e-5
BATCH_SIZE = 512
LEARNING_RATE = 1e-3
LAUNCHED = (("mpi", 1), ("mpi", 2), ("mpi", 4), ("gloo", 2), ("gloo", 4))

SAMPLED = ModelOptions(kind="graphsage", hidden=64, num_layers=2, dropout=0.2, normalise="layer", residual=True)
PLAIN = ModelOptions(kind="graphsage", hidden=64, num_layers=2)


def read() -> Graph:
    """The graph, in the user's order."""
    return read_graph(GraphOptions(path=str(DATA), format="npz", split=0, standardise="standard"))


def metis_book(graph: Graph, num_parts: int) -> PartitionBook:
    """A METIS partition, the same in every process (but METIS is not to be run in two threads at a time)."""
    options = PartitionOptions(num_parts=num_parts, restarts=1, refine_cycles=1)
    assignment = partition_graph(
        graph.indptr.numpy(),
        graph.indices.numpy(),
        options,
        train_ids=graph.train_ids.numpy(),
        validation_ids=graph.validation_ids.numpy(),
    )
    return PartitionBook.from_assignment(assignment, num_parts)


def make_trainer(world: World, graph: PartitionedGraph, options: ModelOptions, fanouts: tuple[int, ...]) -> Trainer:
    """The trainer that is to give the same losses everywhere."""
    model = build_model(options, in_features=graph.features.shape[1], out_features=graph.num_outputs, seed=SEED)
    return Trainer(
        world, model, NodeTask(graph, fanouts), epochs=5, batch_size=BATCH_SIZE, learning_rate=LEARNING_RATE, seed=SEED
    )


def losses_of(
    world: World, graph: Graph, book: PartitionBook, options: ModelOptions, fanouts: tuple[int, ...]
) -> list[float]:
    """Mean loss of each step over the global minibatch."""
    trainer = make_trainer(world, PartitionedGraph.from_graph(graph, book, world.rank), options, fanouts)
    trainer.model.train()
    losses = []
    for number in range(STEPS):
        epoch, step = divmod(number, trainer.steps_per_epoch)
        total = torch.tensor(trainer.train_step(epoch, step), dtype=torch.float64)
        world.all_reduce(total, stage="loss")
        losses.append(float(total) / trainer.task.global_batch_size(epoch, step))
    trainer.close()
    return losses


def loopback_losses(size: int, graph: Graph, options: ModelOptions, fanouts: tuple[int, ...]) -> list[float]:
    """`losses_of` on ranks that are threads of this process."""
    book = metis_book(graph, size)
    return Loopback.run(size, lambda world: losses_of(world, graph, book, options, fanouts))[0]


def work(task: Mapping[str, Any]) -> list[float]:
    """`losses_of` in a real job."""
    torch.set_num_threads(1)
    graph = read()
    with connect(task["backend"], deadline_s=300) as world:
        return losses_of(world, graph, metis_book(graph, world.size), SAMPLED, (10, 5))


def dgl_losses(graph: Graph, reference: GNN) -> list[float]:
    """A plain DGL training loop, all neighbours, from the same weights and the same minibatches."""
    import dgl
    from dgl.nn import SAGEConv

    assert graph.features is not None
    assert graph.labels is not None
    dgl_graph = to_dgl(graph).long()
    widths = [graph.features.shape[1], PLAIN.hidden, 1]
    layers = torch.nn.ModuleList(SAGEConv(a, b, "mean") for a, b in pairwise(widths))
    with torch.no_grad():
        for theirs, ours in zip(layers, reference.layers, strict=True):
            theirs.get_parameter("fc_self.weight").copy_(ours.get_parameter("self_linear.weight"))
            theirs.get_parameter("fc_self.bias").copy_(ours.get_parameter("self_linear.bias"))
            theirs.get_parameter("fc_neigh.weight").copy_(ours.get_parameter("neighbor_linear.weight"))
    optimizer = torch.optim.AdamW(layers.parameters(), lr=LEARNING_RATE, weight_decay=0)
    sampler = dgl.dataloading.MultiLayerFullNeighborSampler(PLAIN.num_layers)
    order = SeedOrder(graph.train_ids, None, offsets=[0, graph.num_vertices], rank=0, batch_size=BATCH_SIZE, seed=SEED)
    losses = []
    for number in range(STEPS):
        seeds = order.seeds(*divmod(number, order.steps_per_epoch))
        inputs, _, blocks = sampler.sample(dgl_graph, seeds)
        hidden = graph.features[inputs]
        for index, (layer, block) in enumerate(zip(layers, blocks, strict=True)):
            hidden = layer(block, hidden)
            if index == 0:
                hidden = functional.relu(hidden)
        loss = functional.binary_cross_entropy_with_logits(hidden[:, 0], graph.labels[seeds].float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def largest_difference(losses: list[float], reference: list[float]) -> float:
    """Largest relative difference over the steps."""
    return max(abs(mine - theirs) / abs(theirs) for mine, theirs in zip(losses, reference, strict=True))


def measure(program: Program) -> Findings:
    """Compare."""
    torch.set_num_threads(1)
    graph = read()
    reference = loopback_losses(1, graph, SAMPLED, (10, 5))
    differences = {
        f"loopback-{size}": largest_difference(loopback_losses(size, graph, SAMPLED, (10, 5)), reference)
        for size in (2, 4)
    }
    for backend, size in LAUNCHED:
        losses = program.on_ranks(size, {"backend": backend}, deadline_s=500)
        differences[f"{backend}-{size}"] = largest_difference(losses, reference)
    assert graph.features is not None
    plain = build_model(PLAIN, in_features=graph.features.shape[1], out_features=1, seed=SEED)
    dgl_reference = dgl_losses(graph, plain)
    for size in (1, 2):
        ours = loopback_losses(size, graph, PLAIN, (-1, -1))
        differences[f"dgl-against-loopback-{size}"] = largest_difference(ours, dgl_reference)

    rows = [{"run": name, "largest relative difference": value} for name, value in differences.items()]
    print(f"loss of step 1 {reference[0]:.6f}, of step {STEPS} {reference[-1]:.6f}")
    ranks = max(value for name, value in differences.items() if not name.startswith("dgl"))
    dgl = max(value for name, value in differences.items() if name.startswith("dgl"))
    return Findings(
        figures={
            "largest_relative_difference_between_ranks_ratio": ranks,
            "largest_relative_difference_to_dgl_ratio": dgl,
            "first_loss_nats": reference[0],
            "last_loss_nats": reference[-1],
        },
        aims={
            "ranks": Aim(f"1, 2, 4 ranks on Loopback, MPI, gloo: <= {TOLERANCE:g}", ranks <= TOLERANCE),
            "dgl": Aim(f"single-process DGL, all neighbours: <= {TOLERANCE:g}", dgl <= TOLERANCE),
        },
        tables={"largest relative difference of the loss": Table.from_rows(rows)},
    )


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work, ranks=True)
