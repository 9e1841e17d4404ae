"""Sampled edges per second over DGL's `NeighborSampler`: same graph, fanouts, batches and threads, in turn.

    python benchmarks/sampler.py [--short] [--data FOLDER]

Each number of threads is measured in a process of its own, because OpenMP reads its limit at start. The
column "busy cores" is processor time over wall time, so a limit that was not kept would show. With two threads
ours samples two batches at a time, each on one thread; for DGL the fastest of three ways counts. DGL also
returns the ids of the sampled edges, which ours leaves out. DGL variants that return wrong samples (int32 with
fused=True: too few edges from the second batch on) are named and left out.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from windrow.comm.random import Stream, hash_ids, stream_key
from windrow.gnn.build import csc_from_edges
from windrow.gnn.sampler import NeighborSampler
from windrow.gnn.synthetic import power_law_graph
from windrow.launch.benchmark import Aim, Ratio, conclude, interleave, ratio, short_flag, table

FANOUTS = [15, 10, 5]
BATCH = 1024
SEED = 7
AIM = 3.0
GRAPHS = ("ego_twitter", "power_law")
THREADS = (1, 2)
CHECKED_BATCHES = 6
WORKER_BATCHES = 24
WORKER_WARM_UP = 4

Sample = Callable[[Tensor, int], int]
"""Samples one batch of seeds, given its step; returns the number of edges."""


@dataclass
class Measurement:
    """What one variant did."""

    wrong: str = ""
    """What is wrong with its samples, or empty."""
    seconds_per_edge: list[float] = field(default_factory=list)
    windrow_seconds_per_edge: list[float] = field(default_factory=list)
    """Ours, entry by entry measured next to the list above."""
    busy_cores: float | None = None
    """Processor time over wall time; None where worker processes hide it."""


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
        measured = measure(options.measure, options.threads, repeats=12 if options.short else 60)
        print(json.dumps({name: asdict(measurement) for name, measurement in measured.items()}))
        return
    figures: dict[str, float] = {}
    aims: dict[str, Aim] = {}
    with tempfile.TemporaryDirectory() as folder:
        for graph in GRAPHS:
            path = Path(folder) / f"{graph}.npz"
            if graph == "ego_twitter" and not (options.data / "graphs" / "ego_twitter.npz").is_file():
                print(f"{graph}: not measured, no graphs/ego_twitter.npz in {options.data} (see --data)")
                aims[graph] = Aim(f"sampler >= {AIM:g}x DGL's per thread (not measured: no data)", met=False)
                continue
            save_graph(graph, options.data, path)
            for threads in THREADS:
                report(graph, threads, measure_in_process(path, threads, short=options.short), figures, aims)
    conclude("sampler", figures, aims, save_to=options.save)


def save_graph(name: str, data: Path, path: Path) -> None:
    """Write a graph's CSC arrays for the measuring processes."""
    if name == "ego_twitter":
        edges = np.load(data / "graphs" / "ego_twitter.npz", allow_pickle=False)["edges"]
        indptr, indices = csc_from_edges(edges[:, 0], edges[:, 1], int(edges.max()) + 1, symmetrise=True)
    else:
        graph = power_law_graph(1_000_000, 20_000_000, seed=SEED)
        indptr, indices = graph.indptr, graph.indices
    np.savez(path, indptr=indptr.numpy(), indices=indices.numpy())


def measure_in_process(path: Path, threads: int, *, short: bool) -> dict[str, Measurement]:
    """Run `measure` where OpenMP was limited from the start."""
    command = [sys.executable, __file__, "--measure", str(path), "--threads", str(threads)]
    limits = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    output = subprocess.run(
        command + ["--short"] * short, env=os.environ | limits, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return {name: Measurement(**values) for name, values in json.loads(output.splitlines()[-1]).items()}


def measure(path: Path, threads: int, *, repeats: int) -> dict[str, Measurement]:
    """Time all variants that use `threads` threads.

    Args:
        path: from `save_graph`.
        threads: batches at a time for ours; OpenMP threads, Python threads or worker processes for DGL.
        repeats: timed rounds; each samples `threads` batches with every variant.

    Returns:
        Variant name to measurement; ours is "windrow".
    """
    torch.set_num_threads(threads)
    arrays = np.load(path)
    indptr, indices = torch.from_numpy(arrays["indptr"]), torch.from_numpy(arrays["indices"])
    ours = NeighborSampler(indptr, indices, FANOUTS, seed=SEED)
    dgl_variants = dgl_samplers(indptr, indices)
    measured = {"windrow": Measurement()}
    samples: dict[str, list[Sample]] = {"windrow": [windrow_sample(ours)] * threads}
    batches = seed_batches(indptr.shape[0] - 1)
    checked = list(itertools.islice(batches, CHECKED_BATCHES))
    expected = sum(windrow_sample(ours)(*batch) for batch in checked)
    for name, (graph, make) in dgl_variants.items():
        wrong = fault(graph, make(), indptr, checked, expected)
        measured[f"DGL {name}"] = Measurement(wrong=wrong)
        if wrong:
            continue
        samples[f"DGL {name}"] = [dgl_sample(graph, make())]
        if threads > 1:
            measured[f"DGL {name}, Python threads"] = Measurement()
            samples[f"DGL {name}, Python threads"] = [dgl_sample(graph, make()) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        runs = {name: Run(pool, samples[name], indptr.shape[0] - 1, threads) for name in samples}
        for name, seconds in interleave(runs, repeats=repeats, warm_up=3).items():
            edges = runs[name].edges[-repeats:]
            measured[name].seconds_per_edge = [s / e for s, e in zip(seconds, edges, strict=True)]
            measured[name].busy_cores = sum(runs[name].processor_seconds[-repeats:]) / sum(seconds)
        for name in samples:
            measured[name].windrow_seconds_per_edge = measured["windrow"].seconds_per_edge
        fastest = min(
            (name for name in dgl_variants if f"DGL {name}" in samples),
            key=lambda name: float(np.median(measured[f"DGL {name}"].seconds_per_edge)),
        )
        label = f"DGL {fastest}, DataLoader" + (f", {threads} workers" if threads > 1 else "")
        graph, make = dgl_variants[fastest]
        measured[label] = data_loader(graph, make(), runs["windrow"], rounds=max(3, repeats // 6))
    return measured


class Run:
    """One variant as a function without arguments: each call samples the next batches of the same sequence."""

    def __init__(
        self, pool: ThreadPoolExecutor, samples: list[Sample], num_vertices: int, batches: int
    ) -> None:
        """Sample `batches` batches per call, one after another or, with several samplers, one on each thread."""
        self.pool = pool
        self.samples = samples
        self.batches = batches
        self.seeds = seed_batches(num_vertices)
        self.edges: list[int] = []
        self.processor_seconds: list[float] = []

    def __call__(self) -> None:
        """Sample, and note edges and processor time."""
        work = list(itertools.islice(self.seeds, self.batches))
        start = time.process_time()
        if len(self.samples) == 1:
            edges = sum(self.samples[0](seeds, step) for seeds, step in work)
        else:
            tasks = [self.pool.submit(sample, *task) for sample, task in zip(self.samples, work, strict=True)]
            edges = sum(task.result() for task in tasks)
        self.processor_seconds.append(time.process_time() - start)
        self.edges.append(edges)


def seed_batches(num_vertices: int) -> Iterator[tuple[Tensor, int]]:
    """Batches of distinct random vertices without end, the same for every variant, and their steps."""
    per_epoch = num_vertices // BATCH
    for epoch in itertools.count():
        draws = hash_ids(stream_key(SEED, Stream.SHUFFLE, epoch), np.arange(num_vertices))
        order = torch.from_numpy(np.argsort(draws))
        for step in range(per_epoch):
            yield order[step * BATCH : (step + 1) * BATCH], epoch * per_epoch + step


def windrow_sample(sampler: NeighborSampler) -> Sample:
    """Our sampler as a `Sample`."""
    return lambda seeds, step: edges_of(sampler.sample(seeds, epoch=0, step=step).blocks)


def dgl_sample(graph: Any, sampler: Any) -> Sample:
    """DGL's sampler, called without its DataLoader, as a `Sample`."""
    return lambda seeds, _step: dgl_edges(sampler.sample(graph, seeds.to(graph.idtype))[2])


def dgl_samplers(indptr: Tensor, indices: Tensor) -> dict[str, tuple[Any, Callable[[], Any]]]:
    """Name to (graph, sampler factory) for both index types and both of DGL's code paths."""
    warnings.filterwarnings("ignore")
    import dgl

    variants: dict[str, tuple[Any, Callable[[], Any]]] = {}
    for dtype in (torch.int64, torch.int32):
        arrays = (indptr.to(dtype), indices.to(dtype), torch.empty(0, dtype=dtype))
        graph = dgl.graph(("csc", arrays), num_nodes=indptr.shape[0] - 1).formats("csc")
        for fused in (True, False):

            def make(*, fused: bool = fused) -> Any:
                return dgl.dataloading.NeighborSampler(FANOUTS[::-1], fused=fused)

            variants[f"{str(dtype)[6:]} {'fused' if fused else 'plain'}"] = (graph, make)
    return variants


def fault(
    graph: Any, sampler: Any, indptr: Tensor, batches: list[tuple[Tensor, int]], expected_edges: int
) -> str:
    """Compare DGL's samples with what the fanouts ask for; say what is wrong, if anything is."""
    edges = 0
    for seeds, _ in batches:
        blocks = sampler.sample(graph, seeds.to(graph.idtype))[2]
        edges += dgl_edges(blocks)
        wanted = indptr.diff()[seeds].clamp(max=FANOUTS[0])
        if not blocks[-1].in_degrees().long().equal(wanted):
            return "seeds have too few or too many neighbours"
    # Later hops are random; their sizes vary by well under one percent from draw to draw.
    deviation = edges / expected_edges - 1
    return "" if abs(deviation) < 0.02 else f"{deviation:+.0%} edges"


def data_loader(graph: Any, sampler: Any, ours: Run, *, rounds: int) -> Measurement:
    """Time DGL's DataLoader, with worker processes where there are several threads, in turn with ours.

    Workers sample ahead while others are measured, so each round starts fresh workers, skips the first batches,
    times the rest until the workers have run dry, and then times ours.
    """
    import dgl

    measurement = Measurement()
    batches = WORKER_WARM_UP + WORKER_BATCHES
    seeds = torch.cat([seeds for seeds, _ in itertools.islice(seed_batches(graph.num_nodes()), batches)])
    for _ in range(rounds):
        loader = dgl.dataloading.DataLoader(
            graph,
            seeds.to(graph.idtype),
            sampler,
            batch_size=BATCH,
            num_workers=ours.batches if ours.batches > 1 else 0,
        )
        iterator = iter(loader)
        for _ in range(WORKER_WARM_UP):
            next(iterator)
        start = time.perf_counter()
        edges = sum(dgl_edges(blocks) for _, _, blocks in iterator)
        measurement.seconds_per_edge.append((time.perf_counter() - start) / edges)
        calls = WORKER_BATCHES // ours.batches
        start = time.perf_counter()
        for _ in range(calls):
            ours()
        seconds = time.perf_counter() - start
        measurement.windrow_seconds_per_edge.append(seconds / sum(ours.edges[-calls:]))
    return measurement


def edges_of(blocks: list[Any]) -> int:
    """Edges of our blocks."""
    return sum(block.num_edges for block in blocks)


def dgl_edges(blocks: list[Any]) -> int:
    """Edges of DGL's blocks."""
    return sum(block.num_edges() for block in blocks)


def report(
    graph: str,
    threads: int,
    measured: dict[str, Measurement],
    figures: dict[str, float],
    aims: dict[str, Aim],
) -> None:
    """Print the table of one graph and number of threads; add its figures and its aim."""
    rows = []
    ratios: dict[str, Ratio] = {}
    for name, measurement in measured.items():
        row: dict[str, object] = {"variant": name}
        if measurement.wrong:
            rows.append(row | {"note": f"WRONG, not timed: {measurement.wrong}"})
            continue
        seconds = measurement.seconds_per_edge
        row["M edges/s, median"] = 1e-6 / float(np.median(seconds))
        row["ns/edge, P90"] = 1e9 * float(np.percentile(seconds, 90))
        row["busy cores"] = "-" if measurement.busy_cores is None else f"{measurement.busy_cores:.2f}"
        if name != "windrow":
            ratios[name] = ratio(measurement.windrow_seconds_per_edge, seconds)
            row["windrow is faster by"] = str(ratios[name])
        rows.append(row)
    columns = {key: "" for row in rows for key in row}
    print(f"\n{graph}, {threads} thread(s), fanouts {FANOUTS} from the seeds outwards, batch {BATCH}")
    print(table([columns | row for row in rows]), flush=True)
    rival = min(ratios, key=lambda name: ratios[name].median)
    print(f"DGL's best: {rival}; windrow is faster by {ratios[rival]}", flush=True)
    key = f"{graph}_threads_{threads}"
    figures[f"{key}_windrow_edges_per_second"] = 1 / float(np.median(measured["windrow"].seconds_per_edge))
    figures[f"{key}_dgl_edges_per_second"] = 1 / float(np.median(measured[rival].seconds_per_edge))
    figures[f"{key}_ratio"] = ratios[rival].median
    figures[f"{key}_ratio_low_95"] = ratios[rival].low
    figures[f"{key}_ratio_high_95"] = ratios[rival].high
    aims[key] = Aim(f"sampler >= {AIM:g}x DGL's per thread", ratios[rival].median >= AIM)


if __name__ == "__main__":
    main()
