"""Programs of a user's own: models of PyTorch Geometric, DGL and plain torch, on a graph in memory and in a store."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import windrow as wr
from windrow import gnn
from windrow.comm.loopback import Loopback
from windrow.comm.world import World
from windrow.gnn.message_passing import Block
from windrow.gnn.synthetic import community_graph
from windrow.launch.partitioning import graph_to_store
from windrow.partition import PartitionOptions

FEATURES, CLASSES, HIDDEN = 6, 3, 8


def weights_of(module: nn.Module) -> nn.Module:
    """The same weights wherever a module is made."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.4, generator=generator)
    return module


class PyGNet(nn.Module):
    """Two SAGEConv of PyTorch Geometric."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import SAGEConv

        self.convs = nn.ModuleList([SAGEConv(FEATURES, HIDDEN), SAGEConv(HIDDEN, CLASSES)])

    def forward(self, blocks: Sequence[Block], x: Tensor) -> Tensor:
        for conv, block in zip(self.convs, blocks, strict=True):
            x = conv((x.relu(), x[: block.num_dst].relu()), block.edge_index)
        return x


class DGLNet(nn.Module):
    """Two SAGEConv of DGL."""

    def __init__(self) -> None:
        super().__init__()
        from dgl.nn import SAGEConv

        self.convs = nn.ModuleList([SAGEConv(FEATURES, HIDDEN, "mean"), SAGEConv(HIDDEN, CLASSES, "mean")])

    def forward(self, blocks: Sequence[Block], x: Tensor) -> Tensor:
        for conv, block in zip(self.convs, blocks, strict=True):
            x = conv(block.to_dgl(), (x.relu(), x[: block.num_dst].relu()))
        return x


def losses_of(world: World, part: gnn.PartitionedGraph, make: Callable[[], nn.Module]) -> list[float]:
    with torch.random.fork_rng():
        model = weights_of(make())
    task = gnn.NodeTask(part, (-1, -1), loss=nn.functional.cross_entropy)
    with wr.Trainer(world, model, task, epochs=2, batch_size=60, learning_rate=0.01) as trainer:
        return [trainer.train_epoch(epoch) for epoch in range(2)]


def make_graph() -> gnn.Graph:
    return community_graph(240, CLASSES, seed=1, average_degree=8, num_features=FEATURES)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.parallel(2))])
def test_losses_are_those_of_a_plain_loop_of_pytorch_geometric(ranks: int) -> None:
    pytest.importorskip("torch_geometric")
    graph = make_graph()
    assert graph.features is not None
    assert graph.labels is not None
    edge_index = torch.stack([graph.indices.long(), torch.arange(240).repeat_interleave(graph.indptr.diff())])
    with torch.random.fork_rng():
        plain, ours = weights_of(PyGNet()), weights_of(PyGNet())
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01, weight_decay=0.01)
    with wr.connect() as world:
        assert world.size == ranks
        task = gnn.NodeTask(gnn.partition(graph, world, PartitionOptions(method="random")), (-1, -1))
        options = {"epochs": 7, "batch_size": 40, "learning_rate": 0.01, "weight_decay": 0.01}
        with wr.Trainer(world, ours, task, **options) as trainer:
            for number in range(20):
                epoch, step = divmod(number, trainer.steps_per_epoch)
                own = task.graph.original_ids[task.seeds(epoch, step).seeds]
                seeds = torch.cat(world.all_gather(own, stage="seeds"))
                x = graph.features
                for conv in plain.convs:  # type: ignore[union-attr]
                    x = conv(x.relu(), edge_index)
                loss = nn.functional.cross_entropy(x[seeds], graph.labels[seeds])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total = torch.tensor(trainer.train_step(epoch, step), dtype=torch.float64)
                world.all_reduce(total, stage="loss")
                assert float(total) / len(seeds) == pytest.approx(loss.item(), rel=1e-5)


def test_a_graph_of_pytorch_geometric() -> None:
    data = pytest.importorskip("torch_geometric.data").Data
    graph = make_graph()
    sources = graph.indices.long()
    targets = torch.arange(240).repeat_interleave(graph.indptr.diff())
    masks = {"train_mask": graph.train_ids, "val_mask": graph.validation_ids, "test_mask": graph.test_ids}
    filled = {name: torch.zeros(240, dtype=torch.bool).index_fill(0, ids, True) for name, ids in masks.items()}
    taken = gnn.from_pyg(data(x=graph.features, edge_index=torch.stack([sources, targets]), y=graph.labels, **filled))
    single = Loopback.single()
    found = [losses_of(single, gnn.partition(each, single), PyGNet) for each in (taken, graph)]
    assert found[0] == pytest.approx(found[1], rel=1e-4)


@pytest.mark.parametrize(("make", "library"), [(PyGNet, "torch_geometric"), (DGLNet, "dgl")])
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.parallel(2))])
def test_layers_of_other_libraries(make: Any, library: str, ranks: int) -> None:
    pytest.importorskip(library)
    single = Loopback.single()
    expected = losses_of(single, gnn.partition(make_graph(), single), make)
    assert expected[1] < expected[0]
    with wr.connect() as world:
        assert world.size == ranks
        assert losses_of(world, gnn.partition(make_graph(), world), make) == pytest.approx(expected, rel=1e-5)


def test_a_graph_of_another_library_and_one_from_a_store(tmp_path: Path) -> None:
    dgl = pytest.importorskip("dgl")
    graph = make_graph()
    other = dgl.graph(("csc", (graph.indptr, graph.indices.long(), [])), num_nodes=240)
    masks = {"train_mask": graph.train_ids, "val_mask": graph.validation_ids, "test_mask": graph.test_ids}
    for name, ids in masks.items():
        other.ndata[name] = torch.zeros(240, dtype=torch.bool).index_fill(0, ids, True)
    other.ndata["feat"], other.ndata["label"] = graph.features, graph.labels
    single = Loopback.single()
    taken = gnn.partition(gnn.from_dgl(other), single)
    graph_to_store(graph, tmp_path / "store", PartitionOptions(num_parts=1))
    stored = gnn.open_store(tmp_path / "store", single)
    found = [losses_of(single, part, PlainNet) for part in (taken, stored)]
    assert found[0] == pytest.approx(found[1], rel=1e-4)
    assert (stored.num_features, stored.num_outputs) == (FEATURES, CLASSES)


class PlainNet(nn.Module):
    """One linear map of the sum over neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)

    def forward(self, blocks: Sequence[Block], x: Tensor) -> Tensor:
        for block in blocks:
            source, destination = block.edge_index
            x = x[: block.num_dst].index_add(0, destination, x[source]) / 9
        output: Tensor = self.linear(x)
        return output
