"""Seconds of a whole training epoch over DGL's: sample, fetch features, forward, backward, update.

    python benchmarks/epoch.py [--short] [--data FOLDER]

Same graph, features, seeds per step, fanouts, model (three layers of GraphSAGE with the mean, dropout 0.5 on hidden
rows), optimiser, number of threads and allocator (`windrow.launch.rank_process`, which makes DGL faster too), in turn
in one process that is bound to as many cores as it has threads. DGL's loop is the one of its examples:
`NeighborSampler`, `DataLoader`, `SAGEConv`, `torch.nn.Dropout`. Of its index types, code paths, numbers of worker
processes and ways to fetch features the fastest two of a short trial are measured, and the faster of those counts.
int32 with fused=True is left out: its samples are wrong, see benchmarks/sampler.py. The short version trains on a
quarter of the vertices, tries fewer variants and measures the fastest alone.

The fastest are measured twice, with PyTorch's linear layers and with ours: the second ratio is what sampling, fetching
and message passing gain.
"""

import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.harness.compare import compare
from benchmarks.harness.data_sets import EGO_TWITTER, POWER_LAW, data_option, load_topology, save_topology
from benchmarks.harness.layers import give_our_layers
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table, comparison_from_json, comparison_to_json
from windrow.comm.loopback import Loopback
from windrow.comm.process import keep_freed_memory
from windrow.comm.random import hash_ids, stream_key
from windrow.gnn.graph import Graph
from windrow.gnn.models import ModelOptions, build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.task import NodeTask
from windrow.partition.book import PartitionBook
from windrow.training.trainer import Trainer

if TYPE_CHECKING:
    from benchmarks.harness.result import Comparison

OURS = "windrow"
OUR_LAYERS = ", our dense layers"
FANOUTS = (15, 10, 5)
BATCH_SIZE = 1024
FEATURES = 128
HIDDEN = 256
CLASSES = 16
DROPOUT = 0.5
LEARNING_RATE = 0.003
SEED = 7
AIM = 2.0
AIM_OUR_LAYERS = 1.5
TRAINED_SHARE = {EGO_TWITTER: 0.1, POWER_LAW: 0.02}
THREADS = (1, 2)

Epoch = Callable[[], float]
"""Trains one epoch; returns its mean loss."""


def measure(program: Program) -> Findings:
    """Measure each graph with each number of threads in a fresh process."""
    figures: dict[str, float] = {}
    aims: dict[str, Aim] = {}
    comparisons: dict[str, Comparison] = {}
    tables: dict[str, Table] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in TRAINED_SHARE:
            path = save_topology(name, program.options.data, Path(folder))
            if path is None:
                aims[name] = Aim(f"epoch >= {AIM:g}x (not measured: no {name}.npz, see --data)", met=False)
                continue
            for threads in THREADS:
                task = {"path": str(path), "threads": threads, "short": program.short}
                found = program.in_process(task, threads=threads)
                compared = comparison_from_json(found["comparison"])
                setting, key = f"{name}, {threads} thread(s)", f"{name}_threads_{threads}"
                comparisons[f"{setting}, {found['steps']} steps of {BATCH_SIZE}"] = compared
                for title in ("windrow by stage", "DGL's trial"):
                    rows = [{"what": what, "seconds": seconds} for what, seconds in found[title].items()]
                    tables[f"{setting}: {title}"] = Table.from_rows(rows)
                figures[f"{key}_windrow_epoch_seconds"] = compared.variants[OURS].median_s
                for whose, aim in (("", AIM), (OUR_LAYERS, AIM_OUR_LAYERS)):
                    theirs = [
                        name for name in compared.variants if name != OURS and name.endswith(OUR_LAYERS) == bool(whose)
                    ]
                    rival = min(theirs, key=lambda name: compared.variants[name].median_s)
                    gain, of = compared.ratio(OURS, rival), "_our_layers" if whose else ""
                    figures[f"{key}_dgl{of}_epoch_seconds"] = compared.variants[rival].median_s
                    figures[f"{key}{of}_ratio_median"] = gain.median
                    figures[f"{key}{of}_ratio_low"] = gain.low
                    figures[f"{key}{of}_ratio_high"] = gain.high
                    aims[f"{key}{of}"] = Aim(f"epoch{whose} >= {aim:g}x", gain.median >= aim)
    return Findings(figures=figures, aims=aims, comparisons=comparisons, tables=tables)


def load_graph(path: Path, *, short: bool) -> Graph:
    """Read what `save_topology` wrote and add random features, labels and training vertices."""
    share = TRAINED_SHARE[path.stem] / (4 if short else 1)
    indptr, indices = load_topology(path)
    num_vertices = len(indptr) - 1
    draws = torch.from_numpy(hash_ids(stream_key(SEED, 1), np.arange(num_vertices)).astype(np.int64))
    nobody = draws[:0]
    return Graph(
        indptr=indptr,
        indices=indices,
        features=torch.randn(num_vertices, FEATURES, generator=torch.Generator().manual_seed(SEED)),
        labels=draws % CLASSES,
        train_ids=draws.argsort()[: round(share * num_vertices)],
        validation_ids=nobody,
        test_ids=nobody,
        task="single-label",
        num_classes=CLASSES,
    )


def work(task: Mapping[str, Any]) -> dict[str, Any]:
    """Try the DGL variants on a few steps, then train whole epochs with ours and the fastest in turn."""
    threads, short = task["threads"], task["short"]
    # Threads and worker processes to come inherit it.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
    torch.set_num_threads(threads)
    keep_freed_memory()
    warnings.filterwarnings("ignore")
    graph = load_graph(Path(task["path"]), short=short)
    named = {str(variant): variant for variant in dgl_variants(threads, short=short)}
    trials = {name: dgl_epochs(graph, variant, steps=2 if short else 6) for name, variant in named.items()}
    tried = compare(trials, baseline=next(iter(trials)), repeats=1 if short else 3, warm_up=0 if short else 1).variants
    trials.clear()
    trial_seconds = {
        name: min(tried[name].seconds) for name in sorted(tried, key=lambda name: min(tried[name].seconds))
    }
    finalists = list(trial_seconds)[: 1 if short else 2]
    stages: list[dict[str, float]] = []
    variants = {OURS: windrow_epochs(graph, stages)}
    for name in finalists:
        variants[name] = dgl_epochs(graph, named[name])
        variants[name + OUR_LAYERS] = dgl_epochs(graph, named[name], our_layers=True)
    rounds = 4 if short else 9
    compared = compare(variants, baseline=OURS, repeats=rounds)
    return {
        "steps": -(-len(graph.train_ids) // BATCH_SIZE),
        "comparison": comparison_to_json(compared.against(compared.rival(OURS))),
        "windrow by stage": {key: float(np.mean([epoch[key] for epoch in stages[-rounds:]])) for key in stages[-1]},
        "DGL's trial": trial_seconds,
    }


def windrow_epochs(graph: Graph, stages: list[dict[str, float]]) -> Epoch:
    """Our epochs, one after another, on one rank; the stage times of each are added to `stages`."""
    options = ModelOptions(kind="graphsage", hidden=HIDDEN, num_layers=len(FANOUTS), dropout=DROPOUT)
    book = PartitionBook.from_assignment(np.zeros(graph.num_vertices, np.int32), 1)
    trainer = Trainer(
        Loopback.single(),
        build_model(options, in_features=FEATURES, out_features=CLASSES, seed=SEED),
        NodeTask(PartitionedGraph.from_graph(graph, book, 0), FANOUTS),
        epochs=1000,
        batch_size=BATCH_SIZE,
        learning_rate=LEARNING_RATE,
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
    return [Variant(*path, workers, how) for path, workers, how in product(paths, range(threads + 1), prefetched)]


def dgl_epochs(graph: Graph, variant: Variant, *, steps: int | None = None, our_layers: bool = False) -> Epoch:
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
    if our_layers:
        give_our_layers(model)
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


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work, add_options=data_option("graphs/ego_twitter.npz"))
