"""Link prediction has the quality of PyTorch Geometric's: MRR and hits@10 on coauthor_physics.

34,493 authors, joined where they wrote a paper together; 5 % of the links validate, 10 % are tested. Their 8,415
keywords are projected at random to 128 numbers, the same for both. `windrow.gnn.LinkTask` on 2 ranks against a loop of
plain PyTorch Geometric in one process: two layers of GraphSAGE from the same first weights, all neighbours, no message
along a link that is being learnt, four uniform negatives for each, the same batch size, optimiser and number of epochs.
Tested links are ranked among 100 uniform negatives. Shuffles and negatives differ, by chance: the means over three
seeds, each with a split of its own, are to differ by no more than the standard error of PyTorch Geometric's mean. The
short version has larger batches and one epoch.

    python benchmarks/link_prediction.py [--short] [--data FOLDER]
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import windrow as wr
from benchmarks.harness.compare import mean_and_standard_error
from benchmarks.harness.data_sets import data_option
from benchmarks.harness.program import MissingDataError, Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table
from windrow import gnn
from windrow.gnn.build import edges_of
from windrow.gnn.readers import GraphOptions, read_graph

RANKS = 2
SEEDS = (0, 1, 2)
FEATURES, HIDDEN, OUTPUTS = 128, 64, 64
NEGATIVES, EVALUATION_NEGATIVES, K = 4, 100, 10
LEARNING_RATE = 0.003
PAIRS_PER_CHUNK = 4096
FIGURES = ("mrr", f"hits@{K}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """How much is trained, and what is asked for."""

    epochs: int
    batch_size: int


FULL = Form(epochs=3, batch_size=4096)
SHORT = Form(epochs=1, batch_size=8192)


def work(task: Mapping[str, Any]) -> object:
    """Train with one seed, as a rank of ours or as the one process of PyTorch Geometric; figures of the test links."""
    graph, links = gnn.split_links(read_graph(GraphOptions(path=task["graph"])), seed=task["seed"])
    train = windrow_figures if task["side"] == "windrow" else pyg_figures
    return train(graph, links, task)


def first_model(seed: int) -> nn.Module:
    """The model, with its first weights."""
    options = gnn.ModelOptions(hidden=HIDDEN, num_layers=2)
    return gnn.build_model(options, in_features=FEATURES, out_features=OUTPUTS, seed=seed)


def windrow_figures(graph: gnn.Graph, links: gnn.Links, task: Mapping[str, Any]) -> dict[str, float]:
    """A trainer and a task, as users write them."""
    with wr.connect() as world:
        links_task = gnn.LinkTask(
            gnn.partition(graph, world),
            links,
            (-1, -1),
            num_negatives=NEGATIVES,
            k=K,
            evaluation_negatives=EVALUATION_NEGATIVES,
        )
        options = {"epochs": task["epochs"], "batch_size": task["batch_size"], "learning_rate": LEARNING_RATE}
        with wr.Trainer(world, first_model(task["seed"]), links_task, seed=task["seed"], **options) as trainer:
            for epoch in range(task["epochs"]):
                trainer.train_epoch(epoch)
            return trainer.evaluate("test")["test"]


class PyGModel(nn.Module):
    """The model as a user of PyTorch Geometric writes it, with the first weights of ours."""

    def __init__(self, seed: int) -> None:
        from torch_geometric.nn import SAGEConv

        super().__init__()
        self.convs = nn.ModuleList([SAGEConv(FEATURES, HIDDEN), SAGEConv(HIDDEN, OUTPUTS)])
        ours: Any = first_model(seed)
        with torch.no_grad():
            for conv, layer in zip(self.convs, ours.layers, strict=True):
                conv.get_parameter("lin_l.weight").copy_(layer.neighbor_linear.weight)
                conv.get_parameter("lin_l.bias").copy_(layer.self_linear.bias)
                conv.get_parameter("lin_r.weight").copy_(layer.self_linear.weight)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Vectors of all vertices."""
        first, second = self.convs
        vectors: Tensor = second(first(x, edge_index).relu(), edge_index)
        return vectors


def pyg_figures(graph: gnn.Graph, links: gnn.Links, task: Mapping[str, Any]) -> dict[str, float]:
    """A plain loop; links of the minibatch leave the graph in both directions."""
    assert graph.features is not None
    model = PyGModel(task["seed"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    generator = torch.Generator().manual_seed(task["seed"])
    sources, targets = (ends.long() for ends in edges_of(graph.indptr, graph.indices))
    low, high = torch.minimum(sources, targets), torch.maximum(sources, targets)
    links_of_edges = torch.searchsorted(keys_of(links.train, graph), low * graph.num_vertices + high)
    edge_index = torch.stack([sources, targets])
    num_links = links.train.shape[1]

    def random_vertices(count: int, negatives: int) -> Tensor:
        return torch.randint(graph.num_vertices, (count, negatives), generator=generator)

    for _ in range(task["epochs"]):
        for chosen in torch.randperm(num_links, generator=generator).split(task["batch_size"]):
            stays = torch.ones(num_links, dtype=torch.bool)
            stays[chosen] = False
            vectors = model(graph.features, edge_index[:, stays[links_of_edges]])
            source, target = links.train[:, chosen]
            others = torch.cat([target.unsqueeze(1), random_vertices(len(chosen), NEGATIVES)], 1)
            scores = (vectors[others] @ vectors[source].unsqueeze(2)).squeeze(2)
            loss = functional.cross_entropy(scores, torch.zeros(len(chosen), dtype=torch.int64))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    reciprocals, hits = [], []
    with torch.no_grad():
        vectors = model(graph.features, edge_index)
        for pairs in links.test.split(PAIRS_PER_CHUNK, dim=1):
            others = torch.cat([pairs[1].unsqueeze(1), random_vertices(pairs.shape[1], EVALUATION_NEGATIVES)], 1)
            scores = (vectors[others] @ vectors[pairs[0]].unsqueeze(2)).squeeze(2)
            rank = 1 + (scores[:, 1:] > scores[:, :1]).sum(1) + 0.5 * (scores[:, 1:] == scores[:, :1]).sum(1)
            reciprocals.append(1 / rank)
            hits.append((rank <= K).double())
    return {"mrr": float(torch.cat(reciprocals).mean()), f"hits@{K}": float(torch.cat(hits).mean())}


def keys_of(links: Tensor, graph: gnn.Graph) -> Tensor:
    """One number for each link; `gnn.split_links` gives them ascending."""
    return links[0] * graph.num_vertices + links[1]


def save_projected(source: Path, path: Path) -> None:
    """Write the graph with few features: dense, the 8,415 of each vertex take 1.2 GB."""
    graph = read_graph(GraphOptions(path=str(source)))
    assert graph.features is not None
    projection = torch.randn(graph.features.shape[1], FEATURES, generator=torch.Generator().manual_seed(0))
    features = graph.features @ projection
    features = (features - features.mean(0)) / features.std(0)
    edges = torch.stack(edges_of(graph.indptr, graph.indices), 1)
    np.savez(path, edges=edges.numpy(), x=features.numpy())


def measure(program: Program) -> Findings:
    """Train with every seed by both."""
    form = SHORT if program.short else FULL
    source = program.options.data / "coauthor_physics.npz"
    if not source.is_file():
        raise MissingDataError(f"there is no {source}: examples/coauthor_physics.toml says how to make it")
    found: dict[str, list[dict[str, float]]] = {"windrow": [], "PyG": []}
    with tempfile.TemporaryDirectory(prefix="link-prediction-") as folder:
        path = Path(folder) / "graph.npz"
        save_projected(source, path)
        for seed in SEEDS:
            task = {"graph": str(path), "seed": seed, "epochs": form.epochs, "batch_size": form.batch_size}
            found["windrow"].append(program.on_ranks(RANKS, {"side": "windrow", **task}))
            found["PyG"].append(program.in_process({"side": "PyG", **task}, threads=RANKS))
    means = {
        (side, name): mean_and_standard_error([values[name] for values in of_seeds])
        for side, of_seeds in found.items()
        for name in FIGURES
    }
    differences = {name: means["windrow", name][0] - means["PyG", name][0] for name in FIGURES}
    errors = {name: means["PyG", name][1] for name in FIGURES}
    rows = [
        {"seed": seed, **{f"{side} {name}": found[side][place][name] for name in FIGURES for side in found}}
        for place, seed in enumerate(SEEDS)
    ]
    return Findings(
        figures={
            **{f"{side.lower()}_{name.replace('@', '_at_')}": value for (side, name), (value, _) in means.items()},
            **{f"{name.replace('@', '_at_')}_difference": value for name, value in differences.items()},
            **{f"{name.replace('@', '_at_')}_standard_error": value for name, value in errors.items()},
        },
        aims={
            name.replace("@", "_at_"): Aim(
                f"mean {name} within one standard error of PyTorch Geometric's", abs(differences[name]) <= errors[name]
            )
            for name in FIGURES
        },
        tables={"Test links": Table.from_rows(rows)},
    )


if __name__ == "__main__":
    data = data_option("coauthor_physics.npz", "graphs")
    run_benchmark(__file__, __doc__, measure, work=work, ranks=True, add_options=data)
