"""Programs of a user's own: models of PyTorch Geometric, DGL and plain torch, on a graph in memory and in a store."""

from collections.abc import Callable, Sequence
from dataclasses import replace
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
from windrow.gnn.partitioning import graph_to_store
from windrow.gnn.synthetic import community_graph, typed_community_graph
from windrow.gnn.vertex_data import VertexSplit
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
    graph = community_graph(240, CLASSES, seed=1, average_degree=8, num_features=FEATURES)
    known = torch.rand(graph.num_edges, 3, generator=torch.Generator().manual_seed(2))
    return replace(graph, edge_weight=known[:, 0].contiguous(), edge_attr=known[:, 1:].contiguous())


class GraphConvNet(nn.Module):
    """Two GraphConv of PyTorch Geometric, with edge weights."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import GraphConv

        self.convs = nn.ModuleList([GraphConv(FEATURES, HIDDEN, aggr="mean"), GraphConv(HIDDEN, CLASSES, aggr="mean")])

    def forward(self, blocks: Sequence[Block], x: Tensor) -> Tensor:
        for conv, block in zip(self.convs, blocks, strict=True):
            x = conv((x.relu(), x[: block.num_dst].relu()), block.edge_index, block.edge_weight)
        return x


class MessageMLP(nn.Module):
    """Messages from features of sources and of edges, averaged."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs + 2, outputs)

    def forward(self, x: Tensor | tuple[Tensor, Tensor], edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
        assert edge_attr is not None
        sources, targets = x if isinstance(x, tuple) else (x, x)
        messages: Tensor = self.linear(torch.cat([sources[edge_index[0]], edge_attr], 1))
        return messages.new_zeros(len(targets), messages.shape[1]).index_add(0, edge_index[1], messages) / 8


class AttributeNet(nn.Module):
    """Two of these."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([MessageMLP(FEATURES, HIDDEN), MessageMLP(HIDDEN, CLASSES)])

    def forward(self, blocks: Sequence[Block], x: Tensor) -> Tensor:
        for conv, block in zip(self.convs, blocks, strict=True):
            x = conv((x.relu(), x[: block.num_dst].relu()), block.edge_index, block.edge_attr)
        return x


def weighted_gcn() -> nn.Module:
    """Ours."""
    options = gnn.ModelOptions(kind="gcn", hidden=HIDDEN, num_layers=2, edge_weights=True)
    return gnn.build_model(options, in_features=FEATURES, out_features=CLASSES, seed=0)


class GCNConvNet(nn.Module):
    """The same in PyTorch Geometric, with the weights of a `weighted_gcn`."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import GCNConv

        options = {"add_self_loops": False}
        self.convs = nn.ModuleList([GCNConv(FEATURES, HIDDEN, **options), GCNConv(HIDDEN, CLASSES, **options)])
        ours: Any = weights_of(weighted_gcn())
        with torch.no_grad():
            for conv, layer in zip(self.convs, ours.layers, strict=True):
                conv.lin.weight.copy_(layer.linear.weight)  # type: ignore[union-attr]
                conv.bias.copy_(layer.linear.bias)  # type: ignore[union-attr]


SAGE = PyGNet, lambda: weights_of(PyGNet()), lambda graph: ()
GRAPH_CONV = GraphConvNet, lambda: weights_of(GraphConvNet()), lambda graph: (graph.edge_weight,)
ATTRIBUTES = AttributeNet, lambda: weights_of(AttributeNet()), lambda graph: (graph.edge_attr,)
GCN = weighted_gcn, GCNConvNet, lambda graph: (graph.edge_weight,)


@pytest.mark.parametrize(
    ("make", "make_plain", "known_of_edges"),
    [pytest.param(*case, id=case[0].__name__) for case in (SAGE, GRAPH_CONV, ATTRIBUTES, GCN)],
)
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.parallel(2))])
def test_losses_are_those_of_a_plain_loop_of_pytorch_geometric(
    ranks: int, make: Any, make_plain: Any, known_of_edges: Any
) -> None:
    pytest.importorskip("torch_geometric")
    graph = make_graph()
    assert graph.features is not None
    assert graph.labels is not None
    edge_index = torch.stack([graph.indices.long(), torch.arange(240).repeat_interleave(graph.indptr.diff())])
    with torch.random.fork_rng():
        plain, ours = make_plain(), weights_of(make())

    def outputs() -> Tensor:
        x = graph.features
        for number, conv in enumerate(plain.convs):
            # A `GNN` has no activation before its first layer.
            x = conv(x if number == 0 and make is weighted_gcn else x.relu(), edge_index, *known_of_edges(graph))
        return x

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
                loss = nn.functional.cross_entropy(outputs()[seeds], graph.labels[seeds])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total = torch.tensor(trainer.train_step(epoch, step), dtype=torch.float64)
                world.all_reduce(total, stage="loss")
                assert float(total) / len(seeds) == pytest.approx(loss.item(), rel=1e-5)
            torch.testing.assert_close(trainer.predict(), outputs(), rtol=1e-3, atol=1e-3)


def test_a_graph_of_pytorch_geometric() -> None:
    data = pytest.importorskip("torch_geometric.data").Data
    graph = make_graph()
    sources = graph.indices.long()
    targets = torch.arange(240).repeat_interleave(graph.indptr.diff())
    masks = {"train_mask": graph.train_ids, "val_mask": graph.validation_ids, "test_mask": graph.test_ids}
    filled = {name: torch.zeros(240, dtype=torch.bool).index_fill(0, ids, True) for name, ids in masks.items()}
    edges = {"edge_weight": graph.edge_weight, "edge_attr": graph.edge_attr}
    index = torch.stack([sources, targets])
    taken = gnn.from_pyg(data(x=graph.features, edge_index=index, y=graph.labels, **edges, **filled))
    single = Loopback.single()
    found = [losses_of(single, gnn.partition(each, single), PlainNet) for each in (taken, graph)]
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
    other.edata["weight"], other.edata["feat"] = graph.edge_weight, graph.edge_attr
    single = Loopback.single()
    taken = gnn.partition(gnn.from_dgl(other), single)
    graph_to_store(graph, tmp_path / "store", PartitionOptions(num_parts=1))
    stored = gnn.open_store(tmp_path / "store", single)
    found = [losses_of(single, part, PlainNet) for part in (taken, stored)]
    assert found[0] == pytest.approx(found[1], rel=1e-4)
    assert (stored.num_features, stored.num_outputs) == (FEATURES, CLASSES)


class PlainNet(nn.Module):
    """One linear map of the sum over neighbours, with weights and features of edges."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)

    def forward(self, blocks: Sequence[Block], x: Tensor) -> Tensor:
        for block in blocks:
            source, destination = block.edge_index
            assert block.edge_weight is not None
            assert block.edge_attr is not None
            messages = x[source] * block.edge_weight.unsqueeze(1) + block.edge_attr.repeat(1, 3)
            x = x[: block.num_dst].index_add(0, destination, messages) / 9
        output: Tensor = self.linear(x)
        return output


class HeteroNet(nn.Module):
    """Two HeteroConv of PyTorch Geometric, over the graph's types of edges."""

    def __init__(self, edges: Sequence[tuple[str, str, str]], columns: int) -> None:
        super().__init__()
        from torch_geometric.nn import HeteroConv, SAGEConv

        self.convs = nn.ModuleList(
            HeteroConv({edge: SAGEConv((inputs, inputs), outputs) for edge in edges}, aggr="sum")
            for inputs, outputs in ((columns, HIDDEN), (HIDDEN, CLASSES))
        )

    def forward(self, blocks: Sequence[Block], x: Tensor) -> Tensor:
        for conv, whole in zip(self.convs, blocks, strict=True):
            block, x = whole.with_sources(x)
            rows = {name: each.relu() for name, each in block.typed.split(x).items()}
            found = conv(rows, block.typed.edge_index)
            width = next(iter(found.values())).shape[1]
            zeros = {name: each.new_zeros(len(each), width) for name, each in rows.items()}
            x = block.typed.join(zeros | found)
        return x


def test_outputs_of_hetero_data_do_not_depend_on_who_shares_a_minibatch() -> None:
    """Few papers cite, and five are alone: blocks without an edge of a type, or without any."""
    pytest.importorskip("torch_geometric")
    chance = torch.Generator().manual_seed(1)
    papers = torch.arange(40)
    split = VertexSplit(*papers.split((20, 10, 10)))
    graph = gnn.assemble_typed_graph(
        {
            "author": gnn.VertexRows(30, torch.rand(30, FEATURES, generator=chance)),
            "paper": gnn.VertexRows(40, torch.rand(40, FEATURES, generator=chance), papers % CLASSES, split),
        },
        {
            ("author", "writes", "paper"): (torch.arange(80) % 30, torch.arange(80) % 35),
            ("paper", "cites", "paper"): (torch.arange(10), torch.arange(10) + 1),
        },
        symmetrise=True,
    )
    assert graph.types is not None
    world = Loopback.single()
    part = gnn.partition(graph, world)
    with torch.random.fork_rng():
        model = weights_of(HeteroNet(graph.types.edges, part.num_features))
    found = []
    for size in (100, 7, 1):
        task = gnn.NodeTask(part, (-1, -1), evaluation=gnn.EvaluationOptions(method="sampled", batch_size=size))
        with wr.Trainer(world, model, task, batch_size=size) as trainer:
            found.append(trainer.predict())
    torch.testing.assert_close(found[1:], [found[0]] * 2)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.parallel(2))])
def test_a_module_of_hetero_data(ranks: int) -> None:
    pytest.importorskip("torch_geometric")
    graph = typed_community_graph(120, CLASSES, seed=1)
    assert graph.types is not None
    assert graph.features is not None
    assert graph.labels is not None
    with torch.random.fork_rng():
        plain, ours = (weights_of(HeteroNet(graph.types.edges, 16)) for _ in range(2))
    kinds = graph.types.of(torch.arange(graph.num_vertices))
    whole = Block.whole(graph.indptr, graph.indices)
    whole = replace(whole, edge_type=graph.edge_type, source_types=kinds, types=graph.types)
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.01)
    with wr.connect() as world:
        assert world.size == ranks
        task = gnn.NodeTask(gnn.partition(graph, world, PartitionOptions(method="random")), (-1, -1))
        with wr.Trainer(world, ours, task, epochs=3, batch_size=20, learning_rate=0.01, weight_decay=0.0) as trainer:
            for step in range(trainer.steps_per_epoch):
                own = task.graph.original_ids[task.seeds(0, step).seeds]
                seeds = torch.cat(world.all_gather(own, stage="seeds"))
                loss = nn.functional.cross_entropy(plain([whole] * 2, graph.features)[seeds], graph.labels[seeds])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total = torch.tensor(trainer.train_step(0, step), dtype=torch.float64)
                world.all_reduce(total, stage="loss")
                assert float(total) / len(seeds) == pytest.approx(loss.item(), rel=1e-5)

        full = gnn.FullGraphTask(gnn.partition(graph, world, PartitionOptions(method="random")), num_layers=2)
        with torch.random.fork_rng():
            plain, ours = (weights_of(HeteroNet(graph.types.edges, 16)) for _ in range(2))
        with wr.Trainer(world, ours, full, epochs=1, learning_rate=0.01) as trainer:
            expected = nn.functional.cross_entropy(
                plain([whole] * 2, graph.features)[graph.train_ids], graph.labels[graph.train_ids]
            )
            assert trainer.train_epoch(0) == pytest.approx(expected.item(), rel=1e-5)
