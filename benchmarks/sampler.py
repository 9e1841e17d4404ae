"""Sampled edges per second over DGL's `NeighborSampler`: same graph, fanouts, batches and threads, in turn.

    python benchmarks/sampler.py [--short] [--data FOLDER]

Each number of threads is measured in a process of its own, because OpenMP reads its limit at start. The column
"busy cores" is processor time over wall time, so a limit that was not kept would show. With two threads ours samples
two batches at a time, each on one thread; for DGL the fastest of three ways counts. DGL also returns the ids of the
sampled edges, which ours leaves out. DGL variants that return wrong samples are shown and never count.
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
from windrow.launch.benchmark import Aim, conclude, interleave, ratio, short_flag, table

FANOUTS = [15, 10, 5]
BATCH = 1024
SEED = 7
AIM = 3.0
GRAPHS = ("ego_twitter", "power_law")
THREADS = (1, 2)
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
    busy_cores: float = 0.0
    interleaved: bool = True


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
        measured = measure(options.measure, options.threads, repeats=15 if options.short else 60)
        print(json.dumps({name: asdict(measurement) for name, measurement in measured.items()}))
        return
    figures: dict[str, float] = {}
    aims: dict[str, Aim] = {}
    with tempfile.TemporaryDirectory() as folder:
        for graph in GRAPHS:
            path = Path(folder) / f"{graph}.npz"
            if graph == "ego_twitter" and not (options.data / "graphs" / "ego_twitter.npz").is_file():
                print(f"{graph}: not measured, no graphs/ego_twitter.npz in {options.data} (see --data)")
                continue
            save_graph(graph, options.data, path)
            for threads in THREADS:
                report(graph, threads, measure_in_process(path, threads, options.short), figures, aims)
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


def measure_in_process(path: Path, threads: int, short: bool) -> dict[str, Measurement]:
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
    expected = edges_of(ours.sample(next(batches)[0], epoch=0, step=0).blocks)
    for name, (graph, make) in dgl_variants.items():
        wrong = fault(graph, make(), indptr, expected)
        measured[f"DGL {name}, OpenMP"] = Measurement(wrong=wrong)
        samples[f"DGL {name}, OpenMP"] = [dgl_sample(graph, make())]
        if threads > 1 and not wrong:
            measured[f"DGL {name}, Python threads"] = Measurement()
            samples[f"DGL {name}, Python threads"] = [dgl_sample(graph, make()) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        runs = {name: Run(pool, samples[name], indptr.shape[0] - 1, threads) for name in samples}
        for name, seconds in interleave(runs, repeats=repeats, warm_up=3).items():
            edges = runs[name].edges[-repeats:]
            measured[name].seconds_per_edge = [s / e for s, e in zip(seconds, edges, strict=True)]
            measured[name].busy_cores = sum(runs[name].processor_seconds[-repeats:]) / sum(seconds)
    for name, (graph, make) in dgl_variants.items():
        if not measured[f"DGL {name}, OpenMP"].wrong:
            label = f"DGL {name}, DataLoader" + (f", {threads} workers" if threads > 1 else "")
            measured[label] = data_loader(graph, make(), threads, rounds=2 if repeats < 30 else 6)
    return measured


class Run:
    """One variant as a function without arguments: each call samples the next batches of the same sequence."""

    def __init__(self, pool: ThreadPoolExecutor, samples: list[Sample], num_vertices: int, batches: int) -> None:
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
    return lambda seeds, step: dgl_edges(sampler.sample(graph, seeds.to(graph.idtype))[2])


def dgl_samplers(indptr: Tensor, indices: Tensor) -> dict[str, tuple[Any, Callable[[], Any]]]:
    """Name to (graph, sampler factory) for both index types and both of DGL's code paths."""
    warnings.filterwarnings("ignore")
    import dgl

    variants: dict[str, tuple[Any, Callable[[], Any]]] = {}
    for dtype in (torch.int64, torch.int32):
        arrays = (indptr.to(dtype), indices.to(dtype), torch.empty(0, dtype=dtype))
        graph = dgl.graph(("csc", arrays), num_nodes=indptr.shape[0] - 1).formats("csc")
        for fused in (True, False):

            def make(fused: bool = fused) -> Any:
                return dgl.dataloading.NeighborSampler(FANOUTS[::-1], fused=fused)

            variants[f"{str(dtype)[6:]} {'fused' if fused else 'plain'}"] = (graph, make)
    return variants


def fault(graph: Any, sampler: Any, indptr: Tensor, expected_edges: int) -> str:
    """Compare DGL's sample of the first batch with what the fanouts ask for; say what is wrong, if anything is."""
    seeds = next(seed_batches(indptr.shape[0] - 1))[0]
    blocks = sampler.sample(graph, seeds.to(graph.idtype))[2]
    if not blocks[-1].in_degrees().equal(indptr.diff()[seeds].clamp(max=FANOUTS[0]).to(graph.idtype)):
        return "degrees of the seeds"
    # Later hops are random; their sizes vary by well under one percent from draw to draw.
    edges = dgl_edges(blocks)
    return "" if abs(edges / expected_edges - 1) < 0.05 else f"{edges} edges for about {expected_edges}"


def data_loader(graph: Any, sampler: Any, threads: int, *, rounds: int) -> Measurement:
    """Time DGL's DataLoader, with worker processes where there are several threads.

    Workers sample ahead while others are measured, so this is not interleaved: each round starts fresh workers,
    skips the first batches and times the rest until the workers have run dry.
    """
    import dgl

    measurement = Measurement(interleaved=False)
    seeds = torch.cat([seeds for seeds, _ in itertools.islice(seed_batches(graph.num_nodes()), 60)])
    batches = WORKER_WARM_UP + WORKER_BATCHES
    for _ in range(rounds):
        loader = dgl.dataloading.DataLoader(
            graph,
            seeds[: batches * BATCH].to(graph.idtype),
            sampler,
            batch_size=BATCH,
            num_workers=threads if threads > 1 else 0,
        )
        iterator = iter(loader)
        for _ in range(WORKER_WARM_UP):
            next(iterator)
        start, edges = time.perf_counter(), 0
        edges = sum(dgl_edges(blocks) for _, _, blocks in iterator)
        measurement.seconds_per_edge.append((time.perf_counter() - start) / edges)
    return measurement


def edges_of(blocks: list[Any]) -> int:
    """Edges of our blocks."""
    return sum(block.num_edges for block in blocks)


def dgl_edges(blocks: list[Any]) -> int:
    """Edges of DGL's blocks."""
    return sum(block.num_edges() for block in blocks)


def report(
    graph: str, threads: int, measured: dict[str, Measurement], figures: dict[str, float], aims: dict[str, Aim]
) -> None:
    """Print the table of one graph and number of threads; add its figures and its aim."""
    ours = measured["windrow"].seconds_per_edge
    rows = []
    for name, measurement in measured.items():
        seconds = measurement.seconds_per_edge
        over = ratio(ours, seconds) if measurement.interleaved and name != "windrow" else ""
        if not measurement.interleaved:
            over = f"{np.median(seconds) / np.median(ours):.2f}"
        rows.append(
            {
                "variant": name,
                "M edges/s, median": 1e-6 / float(np.median(seconds)),
                "ns/edge, median": 1e9 * float(np.median(seconds)),
                "ns/edge, P90": 1e9 * float(np.percentile(seconds, 90)),
                "busy cores": f"{measurement.busy_cores:.2f}" if measurement.interleaved else "-",
                "windrow is faster by": str(over),
                "note": f"WRONG: {measurement.wrong}" if measurement.wrong else "",
            }
        )
    print(f"\n{graph}, {threads} thread(s), fanouts {FANOUTS} from the seeds outwards, batch {BATCH}")
    print(table(rows), flush=True)
    rivals = {name: m for name, m in measured.items() if name != "windrow" and not m.wrong}
    best = min(rivals, key=lambda name: float(np.median(rivals[name].seconds_per_edge)))
    seconds = rivals[best].seconds_per_edge
    prefix = f"{graph}_{threads}_threads"
    figures[f"{prefix}_windrow_edges_per_second"] = 1 / float(np.median(ours))
    figures[f"{prefix}_dgl_edges_per_second"] = 1 / float(np.median(seconds))
    figures[f"{prefix}_ratio"] = float(np.median(seconds)) / float(np.median(ours))
    if rivals[best].interleaved:
        interval = ratio(ours, seconds)
        figures |= {f"{prefix}_ratio": interval.median, f"{prefix}_ratio_low": interval.low}
        figures[f"{prefix}_ratio_high"] = interval.high
    print(f"DGL's best: {best}; ratio {figures[f'{prefix}_ratio']:.2f}")
    aims[prefix] = Aim(f"sampler >= {AIM:g}x DGL's per thread", figures[f"{prefix}_ratio"] >= AIM)


if __name__ == "__main__":
    main()
