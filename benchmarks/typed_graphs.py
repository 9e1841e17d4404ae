"""Graphs with types have the quality of PyTorch Geometric's, and are trained faster than by DGL's loader.

    planted   papers, authors and venues with communities (`windrow.gnn.synthetic.typed_community_graph`): a paper's
              community, accuracy
    frappe    a click log as a graph of users, items, times of day and weather, without features: the country of a user,
              accuracy; each vertex has a row that is learnt
    rate      the planted graph, larger: seconds of an epoch in one process, one step of R-GCN after another

Quality: two layers of R-GCN, and of R-GAT on the planted graph, from the same first weights, on 2 ranks against a plain
loop of PyTorch Geometric's ``HeteroConv`` in one process, which computes the whole graph for each minibatch; all
neighbours, the same batch size, optimiser and number of epochs. Shuffles differ, by chance: the mean of the differences
is to be no further below zero than its standard error. A third row samples 5 neighbours of each type.

Rate: epochs of windrow, and of DGL's ``NeighborSampler``, ``DataLoader`` with 0 to 2 workers and ``HeteroGraphConv``,
in turn on the same threads: the same fanouts, widths and batch size; the fastest of DGL counts.

    python benchmarks/typed_graphs.py [--short] [--only PART] [--data FOLDER]
"""

import gzip
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import windrow as wr
from benchmarks.harness.compare import compare, mean_and_standard_error
from benchmarks.harness.data_sets import data_option, to_hetero_data
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Comparison, Findings, Table, comparison_from_json, comparison_to_json
from windrow import gnn, recsys
from windrow.comm.loopback import Loopback
from windrow.comm.world import World
from windrow.gnn.build import VertexRows, assemble_typed_graph
from windrow.gnn.synthetic import typed_community_graph
from windrow.gnn.types import GraphTypes

RANKS, THREADS = 2, 2
SEEDS = 5
CLASSES, HIDDEN, HEADS, DIM = 8, 32, 4, 32
LEARNING_RATE = 0.01
FANOUTS = (5, 5)
RATE_FANOUTS, RATE_HIDDEN, RATE_BATCH = (10, 10), 128, 1024
FILES = {"planted": "", "frappe": "frappe", "rate": ""}
KINDS = {"planted": ("rgcn", "rgat"), "frappe": ("rgcn",)}
SIDES = ("pyg", "windrow", "windrow, sampled")


def frappe_graph(data: Path) -> gnn.Graph:
    """Users, items and two circumstances of use, joined where a user used an item in them."""
    rows = []
    for part in ("validation", "test"):
        with gzip.open(data / "frappe" / f"frappe.{part}.libfm.gz", "rt") as file:
            words = (line.split() for line in file)
            rows += [[int(one.partition(":")[0]) for one in fields] for label, *fields in words if float(label) > 0]
    columns = np.array(rows).T
    user, item, daytime, weather = (np.unique(columns[place], return_inverse=True)[1] for place in (0, 1, 2, 7))
    countries: dict[int, Counter[int]] = defaultdict(Counter)
    for one, country in zip(user.tolist(), columns[8].tolist(), strict=True):
        countries[one][country] += 1
    known = [countries[one].most_common(1)[0][0] for one in range(len(countries))]
    labels = torch.from_numpy(np.unique(known, return_inverse=True)[1])
    vertices = {"user": VertexRows(len(labels), labels=labels)}
    vertices |= {
        name: VertexRows(int(ids.max()) + 1)
        for name, ids in (("item", item), ("daytime", daytime), ("weather", weather))
    }
    edges = {
        ("user", "uses", "item"): (user, item),
        ("item", "used_at", "daytime"): (item, daytime),
        ("item", "used_in", "weather"): (item, weather),
    }
    return assemble_typed_graph(vertices, edges, random_split_options=gnn.SplitOptions(kind="fractions"))


def graph_of(task: Mapping[str, Any]) -> gnn.Graph:
    """The graph of a part; the planted one with another chance for each seed."""
    if task["part"] == "frappe":
        return frappe_graph(Path(task["data"]))
    return typed_community_graph(task["papers"], CLASSES, seed=task["seed"])


def first_model(graph: gnn.Graph, kind: str, seed: int) -> gnn.GNN:
    """The model, with its first weights."""
    options = gnn.ModelOptions(kind=kind, hidden=HIDDEN, num_layers=2, heads=HEADS)  # type: ignore[arg-type]
    columns = DIM if graph.features is None else graph.features.shape[1]
    outputs = graph.num_classes
    return gnn.build_model(options, in_features=columns, out_features=outputs, seed=seed, types=graph.types)


def learnt_rows(world: World, part: gnn.PartitionedGraph, seed: int) -> "recsys.EmbeddingCollection | None":
    """Rows of vertices, where there are no features."""
    if part.num_features:
        return None
    return recsys.EmbeddingCollection(
        [recsys.EmbeddingConfig(part.num_vertices, DIM, "vertex")],
        world=world,
        plan=part.plan_of_rows("vertex", DIM),
        optimizer=recsys.TableOptions(optimizer="adam", learning_rate=LEARNING_RATE),
        seed=seed,
        row_ids=part.original_ids,
    )


def train_ours(graph: gnn.Graph, task: Mapping[str, Any], fanouts: tuple[int, int]) -> float:
    """A trainer and a task, as users write them."""
    with wr.connect() as world:
        part = gnn.partition(graph, world)
        seed, options = task["seed"], {"epochs": task["epochs"], "batch_size": task["batch_size"]}
        node_task = gnn.NodeTask(part, fanouts, embedding=learnt_rows(world, part, seed))
        model = first_model(graph, task["kind"], seed)
        options |= {"learning_rate": LEARNING_RATE, "weight_decay": 0.0}
        with wr.Trainer(world, model, node_task, seed=seed, **options) as trainer:
            for epoch in range(task["epochs"]):
                trainer.train_epoch(epoch)
            return float(trainer.evaluate("test")["test"]["accuracy"])


class PyGModel(nn.Module):
    """The model as a user of PyTorch Geometric writes it, with the first weights of ours."""

    def __init__(self, types: GraphTypes, ours: Any) -> None:
        from torch_geometric.nn import GATConv, HeteroConv, SAGEConv

        super().__init__()
        self.own, self.convs = nn.ModuleList(), nn.ModuleList()
        for layer in ours.layers:
            outputs, inputs = layer.self_weight.shape[1:]
            convs: dict[Any, nn.Module] = {}
            for place, edge in enumerate(types.edges):
                if hasattr(layer, "heads"):
                    concat = layer.combine == "concatenate"
                    columns = outputs // layer.heads if concat else outputs
                    conv: Any = GATConv(
                        (inputs, inputs), columns, layer.heads, concat=concat, add_self_loops=False, bias=False
                    )
                    with torch.no_grad():
                        conv.lin_src.weight.copy_(layer.relation_weight[place])
                        conv.att_src.copy_(layer.source_attention[place].unsqueeze(0))
                else:
                    conv = SAGEConv((inputs, inputs), outputs, root_weight=False, bias=False)
                    with torch.no_grad():
                        conv.lin_l.weight.copy_(layer.relation_weight[place])
                convs[edge] = conv
            self.convs.append(HeteroConv(convs, aggr="sum"))
            linears = nn.ModuleDict({name: nn.Linear(inputs, outputs) for name in types.vertices})
            with torch.no_grad():
                for place, name in enumerate(types.vertices):
                    linears[name].get_parameter("weight").copy_(layer.self_weight[place])
                    linears[name].get_parameter("bias").zero_()
            self.own.append(linears)

    def forward(self, rows: dict[str, Tensor], edge_index: Mapping[Any, Tensor]) -> dict[str, Tensor]:
        """Outputs of all vertices."""
        for number, (linears, conv) in enumerate(zip(self.own, self.convs, strict=True)):
            found = conv(rows, edge_index)
            own: Any = linears
            rows = {name: own[name](each) + found[name] for name, each in rows.items()}
            if number < len(self.convs) - 1:
                rows = {name: each.relu() for name, each in rows.items()}
        return rows


def train_pyg(graph: gnn.Graph, task: Mapping[str, Any]) -> float:
    """A plain loop."""
    assert graph.types is not None
    assert graph.labels is not None
    seed = task["seed"]
    model = PyGModel(graph.types, first_model(graph, task["kind"], seed))
    edge_index = to_hetero_data(graph).edge_index_dict
    weights, inputs = list(model.parameters()), graph.features
    if inputs is None:
        single = Loopback.single()
        collection = learnt_rows(single, gnn.partition(graph, single), seed)
        assert collection is not None
        # The same first rows: one part has the user's order.
        inputs = nn.Parameter(collection.start_rows(torch.arange(graph.num_vertices)).finish().detach().clone())
        weights.append(inputs)
    optimizer = torch.optim.Adam(weights, lr=LEARNING_RATE)
    generator = torch.Generator().manual_seed(seed)
    numbers = {name: one.number for name, one in graph.types.vertices.items()}

    def outputs() -> Tensor:
        found = model(dict(zip(numbers, inputs.split(list(numbers.values())), strict=True)), edge_index)
        return torch.cat([found[name] for name in numbers])

    for _ in range(task["epochs"]):
        shuffled = graph.train_ids[torch.randperm(len(graph.train_ids), generator=generator)]
        # Of nearly equal size, as ours.
        for seeds in shuffled.tensor_split(-(-len(shuffled) // task["batch_size"])):
            loss = functional.cross_entropy(outputs()[seeds], graph.labels[seeds])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        predicted = outputs()[graph.test_ids].argmax(1)
    return float((predicted == graph.labels[graph.test_ids]).double().mean())


class DGLModel(nn.Module):
    """Two layers of R-GCN as a user of DGL writes them."""

    def __init__(self, vertices: Iterable[str], edges: Iterable[str], widths: tuple[int, ...]) -> None:
        from dgl.nn import GraphConv, HeteroGraphConv

        super().__init__()
        convs = {name: {"norm": "right", "bias": False, "allow_zero_in_degree": True} for name in edges}
        self.convs, self.own = nn.ModuleList(), nn.ModuleList()
        for inputs, outputs in pairwise(widths):
            made = {name: GraphConv(inputs, outputs, **options) for name, options in convs.items()}
            self.convs.append(HeteroGraphConv(made, aggregate="sum"))
            self.own.append(nn.ModuleDict({name: nn.Linear(inputs, outputs) for name in vertices}))

    def forward(self, blocks: list[Any], rows: dict[str, Tensor]) -> Tensor:
        """Blocks and input rows to logits of papers."""
        for number, (linears, conv, block) in enumerate(zip(self.own, self.convs, blocks, strict=True)):
            maps: Any = linears
            own = {name: maps[name](rows[name][: block.num_dst_nodes(name)]) for name in block.dsttypes}
            found = conv(block, rows)
            rows = {name: each + found[name] if name in found else each for name, each in own.items()}
            if number == 0:
                rows = {name: each.relu() for name, each in rows.items()}
        return rows["paper"]


def dgl_epoch(graph: gnn.Graph, workers: int) -> Callable[[], object]:
    """DGL's training loop."""
    import dgl

    assert graph.types is not None
    assert graph.features is not None
    assert graph.labels is not None
    data = to_hetero_data(graph)
    numbers = {name: one.number for name, one in graph.types.vertices.items()}
    dgl_graph = dgl.heterograph({edge: tuple(data[edge].edge_index) for edge in graph.types.edges}, numbers)
    dgl_graph = dgl_graph.formats("csc")
    first = graph.types.range_of("paper")[0]
    loader = dgl.dataloading.DataLoader(
        dgl_graph,
        {"paper": graph.train_ids - first},
        dgl.dataloading.NeighborSampler(list(RATE_FANOUTS[::-1])),
        batch_size=RATE_BATCH,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    features = dict(zip(numbers, graph.features.split(list(numbers.values())), strict=True))
    labels = graph.labels[first:]
    edges = [name for _, name, _ in graph.types.edges]
    model = DGLModel(numbers, edges, (graph.features.shape[1], RATE_HIDDEN, graph.num_classes)).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)

    def run() -> None:
        for inputs, seeds, blocks in loader:
            rows = {name: features[name][ids] for name, ids in inputs.items()}
            loss = functional.cross_entropy(model(blocks, rows), labels[seeds["paper"]])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return run


def work(task: Mapping[str, Any]) -> Any:
    """Train once, and give the test accuracy; or time epochs."""
    graph = graph_of(task)
    if task["part"] != "rate":
        if task["side"] == "pyg":
            return train_pyg(graph, task)
        return train_ours(graph, task, FANOUTS if "sampled" in task["side"] else (-1, -1))
    single = Loopback.single()
    options = gnn.ModelOptions(kind="rgcn", hidden=RATE_HIDDEN, num_layers=2)
    assert graph.features is not None
    model = gnn.build_model(
        options, in_features=graph.features.shape[1], out_features=CLASSES, seed=0, types=graph.types
    )
    trainer = wr.Trainer(
        single,
        model,
        gnn.NodeTask(gnn.partition(graph, single), RATE_FANOUTS),
        epochs=100,
        batch_size=RATE_BATCH,
        learning_rate=LEARNING_RATE,
        weight_decay=0.0,
    )
    epochs = iter(range(100))
    with trainer:
        variants: dict[str, Callable[[], object]] = {"windrow": lambda: trainer.train_epoch(next(epochs))}
        variants |= {f"DGL, {workers} workers": dgl_epoch(graph, workers) for workers in range(THREADS + 1)}
        comparison = compare(variants, baseline="DGL, 0 workers", repeats=task["repeats"])
    return comparison_to_json(comparison.against(comparison.rival("windrow")))


def measure(program: Program) -> Findings:
    """Train everything, and time."""
    short = program.short
    figures: dict[str, float] = {}
    aims: dict[str, Aim] = {}
    comparisons: dict[str, Comparison] = {}
    rows: list[dict[str, object]] = []
    parts = [part for part, file in FILES.items() if not file or (program.options.data / file).exists()]
    seeds = range(1 if short else SEEDS)
    for part in program.chosen(parts, short=3):
        base = {"part": part, "data": str(program.options.data), "papers": 2_000 if short else 6_000, "batch_size": 200}
        if part == "rate":
            task = {**base, "papers": 20_000 if short else 100_000, "seed": 0, "repeats": 2 if short else 5}
            comparison = comparison_from_json(program.in_process(task, threads=THREADS))
            comparisons["epoch"] = comparison
            figures["over_dgl"] = comparison.ratio("windrow").median
            aims["rate"] = Aim(
                f"an epoch is faster than with the fastest of DGL's loaders (here {figures['over_dgl']:.2f} times)",
                figures["over_dgl"] >= 1,
            )
            continue
        for kind in KINDS[part]:
            found: dict[str, list[float]] = {side: [] for side in SIDES}
            for seed in seeds:
                for side in SIDES:
                    epochs = 2 if short else 6
                    task = {**base, "kind": kind, "seed": seed, "side": side, "epochs": epochs}
                    if side == "pyg":
                        found[side].append(program.in_process(task, threads=THREADS))
                    else:
                        found[side].append(program.on_ranks(RANKS, task))
            for side, accuracies in found.items():
                differences = [a - b for a, b in zip(accuracies, found["pyg"], strict=True)]
                mean, error = mean_and_standard_error(differences) if len(seeds) > 1 else (differences[0], 0.0)
                key = f"{part}_{kind}_{side}".replace(", ", "_")
                figures |= {f"{key}_accuracy": fmean(accuracies), f"{key}_less_pyg": mean, f"{key}_error": error}
                rows.append(
                    {
                        "data": part,
                        "layers": kind,
                        "side": side,
                        "accuracy": fmean(accuracies),
                        "less PyG": mean,
                        "standard error": error,
                    }
                )
                if side == "windrow":
                    aims[f"{part}_{kind}"] = Aim(
                        f"{part}, {kind}: PyG's accuracy, or less by at most a standard error (here {mean:+.4f})",
                        mean >= -error,
                    )
    tables = {"quality": Table.from_rows(rows)} if rows else {}
    return Findings(figures=figures, aims=aims, tables=tables, comparisons=comparisons)


if __name__ == "__main__":
    frappe = data_option("Frappe", "recsys")
    run_benchmark(__file__, __doc__, measure, work=work, ranks=True, parts=tuple(FILES), add_options=frappe)
