"""Seconds of a whole training epoch over DGL's: sample, fetch features, forward, backward, update.

    python benchmarks/epoch.py [--short] [--data FOLDER]

Same graph, features, seeds per step, fanouts, model (three layers of GraphSAGE with the mean, dropout 0.5 on hidden
rows), optimiser, number of threads and allocator (`windrow.launch.memory`, which makes DGL faster too), in turn in one
process that is bound to as many cores as it has threads. DGL's loop is the one of its examples: `NeighborSampler`,
`DataLoader`, `SAGEConv`, `torch.nn.Dropout`. Of its index types, code paths, numbers of worker processes and ways to
fetch features the fastest two of a short trial are measured, and the faster of those counts. int32 with fused=True is
left out: its samples are wrong, see benchmarks/sampler.py. The short version trains on a quarter of the vertices,
tries fewer variants and measures the fastest alone.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from windrow.comm.loopback import Loopback
from windrow.comm.random import hash_ids, stream_key
from windrow.gnn.build import csc_from_edges
from windrow.gnn.graph import Graph
from windrow.gnn.models import ModelOptions, build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.synthetic import power_law_graph
from windrow.gnn.trainer import MinibatchTrainer, SamplerOptions, TrainingOptions
from windrow.launch.benchmark import Aim, conclude, interleave, ratio, short_flag, table
from windrow.launch.memory import keep_freed_memory
from windrow.partition.book import PartitionBook

FANOUTS = (15, 10, 5)
BATCH_SIZE = 1024
FEATURES = 128
HIDDEN = 256
CLASSES = 16
DROPOUT = 0.5
LEARNING_RATE = 0.003
SEED = 7
AIM = 1.5
TRAINED_SHARE = {"ego_twitter": 0.1, "power_law": 0.02}
THREADS = (1, 2)

Epoch = Callable[[], float]
"""Trains one epoch; returns its mean loss."""


@dataclass
class Measurement:
    """What was measured on one graph with one number of threads."""

    steps: int
    """Steps of an epoch."""
    trial_seconds: dict[str, float]
    """DGL variant to seconds of a few steps."""
    epoch_seconds: dict[str, list[float]]
    """Seconds of each epoch of "windrow" and of DGL's fastest variants; entry i of each is of round i."""
    stage_seconds: dict[str, float]
    """Ours: stage to seconds of a mean epoch."""


def main() -> None:
    """Parse, measure each graph and number of threads in a fresh process, print and conclude."""
    parser = short_flag(__doc__.splitlines()[0])
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(__file__).resolve().parents[2] / "shared" / "data",
        help="folder that holds graphs/ego_twitter.npz",
    )
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(asdict(measure(options.measure, options.threads, short=options.short))))
        return
    figures: dict[str, float] = {}
    aims: dict[str, Aim] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in TRAINED_SHARE:
            path = Path(folder) / f"{name}.npz"
            if name == "ego_twitter" and not (options.data / "graphs" / "ego_twitter.npz").is_file():
                aims[name] = Aim(f"epoch >= {AIM:g}x (not measured: no {name}.npz, see --data)", met=False)
                continue
            save_graph(name, options.data, path)
            for threads in THREADS:
                report(name, threads, measure_in_process(path, threads, short=options.short), figures, aims)
    conclude("epoch", figures, aims, save_to=options.save)


def save_graph(name: str, data: Path, path: Path) -> None:
    """Write a graph's CSC arrays for the measuring processes."""
    if name == "ego_twitter":
        edges = np.load(data / "graphs" / "ego_twitter.npz")["edges"] - 1  # the file counts from 1
        indptr, indices = csc_from_edges(edges[:, 0], edges[:, 1], int(edges.max()) + 1, symmetrise=True)
    else:
        graph = power_law_graph(1_000_000, 20_000_000, seed=SEED)
        indptr, indices = graph.indptr, graph.indices
    np.savez(path, indptr=indptr.numpy(), indices=indices.numpy())


def load_graph(path: Path, *, short: bool) -> Graph:
    """Read what `save_graph` wrote and add random features, labels and training vertices."""
    share = TRAINED_SHARE[path.stem] / (4 if short else 1)
    arrays = np.load(path)
    num_vertices = len(arrays["indptr"]) - 1
    draws = torch.from_numpy(hash_ids(stream_key(SEED, 1), np.arange(num_vertices)).astype(np.int64))
    nobody = draws[:0]
    return Graph(
        indptr=torch.from_numpy(arrays["indptr"]),
        indices=torch.from_numpy(arrays["indices"]),
        features=torch.randn(num_vertices, FEATURES, generator=torch.Generator().manual_seed(SEED)),
        labels=draws % CLASSES,
        train_ids=draws.argsort()[: round(share * num_vertices)],
        validation_ids=nobody,
        test_ids=nobody,
        task="single-label",
        num_classes=CLASSES,
    )


def measure_in_process(path: Path, threads: int, *, short: bool) -> Measurement:
    """Run `measure` where OpenMP was limited from the start."""
    command = [sys.executable, __file__, "--measure", str(path), "--threads", str(threads)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    output = subprocess.check_output(command + ["--short"] * short, env=environment, text=True)
    return Measurement(**json.loads(output.splitlines()[-1]))


def measure(path: Path, threads: int, *, short: bool) -> Measurement:
    """Try the DGL variants on a few steps, then train whole epochs with ours and the fastest in turn."""
    # Threads and worker processes to come inherit it.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
    torch.set_num_threads(threads)
    keep_freed_memory()
    warnings.filterwarnings("ignore")
    graph = load_graph(path, short=short)
    named = {str(variant): variant for variant in dgl_variants(threads, short=short)}
    trials = {name: dgl_epochs(graph, variant, steps=2 if short else 6) for name, variant in named.items()}
    samples = interleave(trials, repeats=1 if short else 3, warm_up=0 if short else 1)
    trial_seconds = {name: min(seconds) for name, seconds in samples.items()}
    finalists = sorted(trial_seconds, key=trial_seconds.__getitem__)[: 1 if short else 2]
    trials.clear()
    stages: list[dict[str, float]] = []
    variants = {"windrow": windrow_epochs(graph, stages)}
    variants |= {name: dgl_epochs(graph, named[name]) for name in finalists}
    rounds = 4 if short else 9
    return Measurement(
        steps=-(-len(graph.train_ids) // BATCH_SIZE),
        trial_seconds=trial_seconds,
        epoch_seconds=interleave(variants, repeats=rounds),
        stage_seconds={key: float(np.mean([epoch[key] for epoch in stages[-rounds:]])) for key in stages[-1]},
    )


def windrow_epochs(graph: Graph, stages: list[dict[str, float]]) -> Epoch:
    """Our epochs, one after another, on one rank; the stage times of each are added to `stages`."""
    options = ModelOptions(kind="graphsage", hidden=HIDDEN, num_layers=len(FANOUTS), dropout=DROPOUT)
    book = PartitionBook.from_assignment(np.zeros(graph.num_vertices, np.int32), 1)
    trainer = MinibatchTrainer(
        Loopback.single(),
        PartitionedGraph.from_graph(graph, book, 0),
        build_model(options, in_features=FEATURES, out_features=CLASSES, seed=SEED),
        sampler_options=SamplerOptions(fanouts=FANOUTS),
        options=TrainingOptions(epochs=1000, batch_size=BATCH_SIZE, learning_rate=LEARNING_RATE),
        seed=SEED,
    )

    def run() -> float:
        trainer.stopwatch.reset()
        loss = trainer.train_epoch(len(stages))
        stages.append(trainer.stopwatch.seconds)
        return loss

    return run


class DGLGraphSAGE(nn.Module):
    """The same model as a user of DGL writes it."""

    def __init__(self) -> None:
        from dgl.nn import SAGEConv

        super().__init__()
        widths = [FEATURES] + [HIDDEN] * (len(FANOUTS) - 1) + [CLASSES]
        self.layers = nn.ModuleList(SAGEConv(a, b, "mean") for a, b in pairwise(widths))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, blocks: list[Any], hidden: Tensor) -> Tensor:
        """Blocks and input rows to logits."""
        for index, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            hidden = layer(block, hidden)
            if index < len(self.layers) - 1:
                hidden = self.dropout(functional.relu(hidden))
        return hidden


class Variant(NamedTuple):
    """One way to use DGL."""

    dtype: torch.dtype
    fused: bool
    workers: int
    prefetched: bool

    def __str__(self) -> str:
        path, features = "fused" if self.fused else "plain", "prefetched" if self.prefetched else "indexed"
        return f"DGL {str(self.dtype)[6:]} {path}, {self.workers} workers, features {features}"


def dgl_variants(threads: int, *, short: bool) -> list[Variant]:
    """Those to try, with up to as many worker processes as threads."""
    paths = [(torch.int64, False), (torch.int32, False)] + [(torch.int64, True)] * (not short)
    prefetched = (False,) if short else (False, True)
    return [
        Variant(*path, workers, how) for path, workers, how in product(paths, range(threads + 1), prefetched)
    ]


def dgl_epochs(graph: Graph, variant: Variant, *, steps: int | None = None) -> Epoch:
    """DGL's training loop, with a model of its own; only the first `steps` steps of an epoch where given."""
    import dgl

    features, labels = graph.features, graph.labels
    assert features is not None
    assert labels is not None
    dtype = variant.dtype
    arrays = (graph.indptr.to(dtype), graph.indices.to(dtype), torch.empty(0, dtype=dtype))
    dgl_graph = dgl.graph(("csc", arrays), num_nodes=graph.num_vertices).formats("csc")
    dgl_graph.ndata["x"], dgl_graph.ndata["y"] = features, labels
    wanted = {"prefetch_node_feats": ["x"], "prefetch_labels": ["y"]} if variant.prefetched else {}
    seeds = graph.train_ids if steps is None else graph.train_ids[: steps * BATCH_SIZE]
    loader = dgl.dataloading.DataLoader(
        dgl_graph,
        seeds.to(dtype),
        dgl.dataloading.NeighborSampler(list(FANOUTS[::-1]), fused=variant.fused, **wanted),
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=variant.workers,
        persistent_workers=variant.workers > 0,
    )
    model = DGLGraphSAGE().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0)

    def run() -> float:
        total = 0.0
        for inputs, seeds, blocks in loader:
            rows = blocks[0].srcdata["x"] if variant.prefetched else features[inputs]
            targets = blocks[-1].dstdata["y"] if variant.prefetched else labels[seeds]
            loss = functional.cross_entropy(model(blocks, rows), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(seeds)
        return total / len(graph.train_ids)

    return run


def report(
    graph: str, threads: int, measured: Measurement, figures: dict[str, float], aims: dict[str, Aim]
) -> None:
    """Print the tables of one graph and number of threads; add its figures and its aim."""
    ours = measured.epoch_seconds["windrow"]
    ratios = {
        name: ratio(ours, seconds) for name, seconds in measured.epoch_seconds.items() if name != "windrow"
    }
    print(f"\n{graph}, {threads} thread(s), {measured.steps} steps of {BATCH_SIZE}, fanouts {FANOUTS}")
    rows = []
    for name, seconds in measured.epoch_seconds.items():
        row = {"variant": name, "epoch s, median": float(np.median(seconds))}
        rows.append(row | {"windrow is faster by": str(ratios.get(name, ""))})
    print(table(rows))
    print("windrow by stage, s:", ", ".join(f"{k} {v:.3f}" for k, v in measured.stage_seconds.items()))
    trials = sorted(measured.trial_seconds.items(), key=lambda item: item[1])
    print("DGL's trial, s:", "; ".join(f"{name[4:]} {seconds:.2f}" for name, seconds in trials), flush=True)
    rival = min(ratios, key=lambda name: ratios[name].median)
    key = f"{graph}_threads_{threads}"
    figures[f"{key}_windrow_epoch_seconds"] = float(np.median(ours))
    figures[f"{key}_dgl_epoch_seconds"] = float(np.median(measured.epoch_seconds[rival]))
    for name, value in asdict(ratios[rival]).items():
        figures[f"{key}_ratio_{name}"] = value
    aims[key] = Aim(f"epoch >= {AIM:g}x", ratios[rival].median >= AIM)


if __name__ == "__main__":
    main()
