"""Sampled edges per second over DGL's `NeighborSampler`: same graph, fanouts, batches and threads, in turn.

    python benchmarks/sampler.py [--short] [--data FOLDER]

Each number of threads is measured in a process of its own, because OpenMP reads its limit at start. The
column "busy cores" is processor time over wall time, so a limit that was not kept would show. With two threads
ours samples two batches at a time, each on one thread; for DGL the fastest of three ways counts. Scaling is ours on two
threads over ours on one, in turn in the process that has two. DGL also returns the ids of the sampled edges, which
ours leaves out. DGL variants that return wrong samples (int32 with fused=True: too few edges from the second batch on)
are named and left out.
"""

import itertools
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness.compare import compare
from benchmarks.harness.data_sets import EGO_TWITTER, POWER_LAW, data_option, load_topology, save_topology
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import (
    Aim,
    Comparison,
    Findings,
    Measurement,
    Table,
    comparison_from_json,
    comparison_to_json,
)
from windrow.comm.random import Stream, hash_ids, stream_key
from windrow.gnn.sampler import NeighborSampler

OURS = "windrow"
FANOUTS = [15, 10, 5]
BATCH = 1024
SEED = 7
AIM = 3.0
SCALING_AIM = 1.8
SCALING_BATCHES = 16
"""Batches of each measurement of scaling: enough that no thread waits long for the other's last one."""
GRAPHS = (EGO_TWITTER, POWER_LAW)
THREADS = (1, 2)
IN_TURN = "in turn"
SCALING = "scaling"
ONE_THREAD, ALL_THREADS = "windrow, 1 thread", "windrow, all threads"
CHECKED_BATCHES = 6
WORKER_BATCHES = 24
WORKER_WARM_UP = 4

Sample = Callable[[Tensor, int], int]
"""Samples one batch of seeds, given its step; returns the number of edges."""


def measure(program: Program) -> Findings:
    """Measure each graph with each number of threads in a fresh process."""
    figures: dict[str, float] = {}
    aims: dict[str, Aim] = {}
    comparisons: dict[str, Comparison] = {}
    notes: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for graph in GRAPHS:
            path = save_topology(graph, program.options.data, Path(folder))
            if path is None:
                print(f"{graph}: not measured, no graphs/{graph}.npz in {program.options.data} (see --data)")
                aims[graph] = Aim(f"sampler >= {AIM:g}x DGL's per thread (not measured: no data)", met=False)
                continue
            for threads in THREADS:
                task = {"path": str(path), "threads": threads, "repeats": 12 if program.short else 60}
                found = program.in_process(task, threads=threads)
                measured = {way: comparison_from_json(one) for way, one in found["comparisons"].items()}
                comparisons |= {f"{graph}, {threads} thread(s), {way}": compared for way, compared in measured.items()}
                for name, note in found["notes"].items():
                    notes.append({"graph": graph, "threads": threads, "variant": name, "note": note})
                if SCALING in measured:
                    scaling = measured.pop(SCALING).ratio(ALL_THREADS)
                    key = f"{graph}_scaling_to_{threads}_threads"
                    figures[key] = scaling.median
                    figures[f"{key}_low_95"] = scaling.low
                    figures[f"{key}_high_95"] = scaling.high
                    text = f"{threads} threads sample >= {SCALING_AIM:g}x the edges of one"
                    aims[key] = Aim(text, scaling.median >= SCALING_AIM)
                ahead = min(measured.values(), key=lambda compared: compared.ratio(OURS).median)
                gain = ahead.ratio(OURS)
                key = f"{graph}_threads_{threads}"
                figures[f"{key}_windrow_edges_per_second"] = 1 / measured[IN_TURN].variants[OURS].median_s
                figures[f"{key}_dgl_edges_per_second"] = 1 / ahead.variants[ahead.baseline].median_s
                figures[f"{key}_ratio"] = gain.median
                figures[f"{key}_ratio_low_95"] = gain.low
                figures[f"{key}_ratio_high_95"] = gain.high
                aims[key] = Aim(f"sampler >= {AIM:g}x DGL's per thread", gain.median >= AIM)
    print(f"fanouts {FANOUTS} from the seeds outwards, {BATCH} seeds")
    return Findings(
        figures=figures, aims=aims, comparisons=comparisons, tables={"cores and faults": Table.from_rows(notes)}
    )


def work(task: Mapping[str, Any]) -> dict[str, Any]:
    """Time all variants that use some threads: seconds per edge, against the nearest of DGL's.

    Ours samples as many batches at a time as there are threads; for DGL they are OpenMP threads, Python threads or
    worker processes.
    """
    threads, repeats = task["threads"], task["repeats"]
    torch.set_num_threads(threads)
    indptr, indices = load_topology(Path(task["path"]))
    ours = NeighborSampler(indptr, indices, FANOUTS, seed=SEED)
    dgl_variants = dgl_samplers(indptr, indices)
    notes: dict[str, str] = {}
    samples: dict[str, list[Sample]] = {OURS: [windrow_sample(ours)] * threads}
    checked = list(itertools.islice(seed_batches(indptr.shape[0] - 1), CHECKED_BATCHES))
    expected = sum(windrow_sample(ours)(*batch) for batch in checked)
    for name, (graph, make) in dgl_variants.items():
        wrong = fault(graph, make(), indptr, checked, expected)
        if wrong:
            notes[name] = f"WRONG, not timed: {wrong}"
            continue
        samples[name] = [dgl_sample(graph, make())]
        if threads > 1:
            samples[f"{name}, Python threads"] = [dgl_sample(graph, make()) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        runs = {name: Run(pool, samples[name], indptr.shape[0] - 1, threads) for name in samples}
        compared = compare(runs, baseline=OURS, repeats=repeats, warm_up=3)
        for name, run in runs.items():
            cores = sum(run.processor_seconds[-repeats:]) / sum(compared.variants[name].seconds)
            notes[name] = f"{cores:.2f} busy cores"
        compared = compared.divided({name: run.edges[-repeats:] for name, run in runs.items()}, "edge")
        compared = compared.against(compared.rival(OURS))
        # A DataLoader has worker processes instead of Python threads.
        name = compared.baseline.removesuffix(", Python threads")
        graph, make = dgl_variants[name]
        loader = data_loader(f"{name}, DataLoader", graph, make(), runs[OURS], rounds=max(3, repeats // 6))
        comparisons = {IN_TURN: compared, "DataLoader": loader}
        if threads > 1:
            comparisons[SCALING] = scaling_of(ours, pool, indptr.shape[0] - 1, threads, repeats)
    in_json = {way: comparison_to_json(comparison) for way, comparison in comparisons.items()}
    return {"comparisons": in_json, "notes": notes}


class Run:
    """One variant as a function without arguments: each call samples the next batches of the same sequence."""

    def __init__(self, pool: ThreadPoolExecutor, samples: list[Sample], num_vertices: int, batches: int) -> None:
        """Sample `batches` batches per call, one after another or, with several samplers, on the pool's threads."""
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
            samples = itertools.cycle(self.samples)
            tasks = [self.pool.submit(sample, *task) for sample, task in zip(samples, work, strict=False)]
            edges = sum(task.result() for task in tasks)
        self.processor_seconds.append(time.process_time() - start)
        self.edges.append(edges)


def scaling_of(
    sampler: NeighborSampler, pool: ThreadPoolExecutor, num_vertices: int, threads: int, repeats: int
) -> Comparison:
    """Time ours on one thread and on all of them, in turn and on the same batches: seconds per edge."""
    runs = {
        ONE_THREAD: Run(pool, [windrow_sample(sampler)], num_vertices, SCALING_BATCHES),
        ALL_THREADS: Run(pool, [windrow_sample(sampler)] * threads, num_vertices, SCALING_BATCHES),
    }
    compared = compare(runs, baseline=ONE_THREAD, repeats=repeats, warm_up=3)
    return compared.divided({name: run.edges[-repeats:] for name, run in runs.items()}, "edge")


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

            variants[f"DGL {str(dtype)[6:]} {'fused' if fused else 'plain'}"] = (graph, make)
    return variants


def fault(graph: Any, sampler: Any, indptr: Tensor, batches: list[tuple[Tensor, int]], expected_edges: int) -> str:
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


def data_loader(name: str, graph: Any, sampler: Any, ours: Run, *, rounds: int) -> Comparison:
    """Time DGL's DataLoader, with worker processes where there are several threads, in turn with ours.

    Workers sample ahead while others are measured, so each round starts fresh workers, skips the first batches,
    times the rest until the workers have run dry, and then times ours.
    """
    import dgl

    seconds_per_edge: dict[str, list[float]] = {OURS: [], name: []}
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
        seconds_per_edge[name].append((time.perf_counter() - start) / edges)
        calls = WORKER_BATCHES // ours.batches
        start = time.perf_counter()
        for _ in range(calls):
            ours()
        seconds = time.perf_counter() - start
        seconds_per_edge[OURS].append(seconds / sum(ours.edges[-calls:]))
    variants = {who: Measurement(seconds=tuple(each)) for who, each in seconds_per_edge.items()}
    return Comparison(baseline=name, variants=variants, per="edge")


def edges_of(blocks: list[Any]) -> int:
    """Edges of our blocks."""
    return sum(block.num_edges for block in blocks)


def dgl_edges(blocks: list[Any]) -> int:
    """Edges of DGL's blocks."""
    return sum(block.num_edges() for block in blocks)


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work, add_options=data_option("graphs/ego_twitter.npz"))
