"""Each kernel's share of its floor: the time in which this machine could move the bytes, or multiply the matrices.

    python benchmarks/kernels.py [--short]

A floor counts what has to come from memory: distinct rows once, however often they are asked for (hot rows of Zipf's
law count once, as if they stayed in the cache), indices, arriving gradients; and results, written once. Three floors:

    memory     a copy of as many bytes as are both read and written, then a sum of what is only read, or zeros for what
               is only written, all in order (`torch.Tensor.copy_`, `sum`, `zero_`)
    products   one large matrix product, by the flops of both
    random     the kernel's rows, each as often and in the order in which it asks for them, brought into the caches by
               prefetches and written where they make a result, without arithmetic (`benchmarks.harness.row_kernels`)

The floor is the slower of the first two; the third, where a kernel picks rows, says what their order and repeats cost.
Not counted: lines of a result that the processor reads before it overwrites them. The plain copy pays for them as
well, so what writes past the caches may take less than its floor. Passes that cannot be one, since a dense model runs
between them (forward, backward), read their rows once each.

Kernels and floors take turns, each again and again for some milliseconds, so that all work from as near as their bytes
fit. "in cache" is what fits into caches of the second or third level, "from memory" what none holds. A share is the
median over rounds of floor / kernel. A kernel is bound by its floor from 0.6 of it on, else by the order of its rows
from 0.6 of that on, else by its own loop. Everything is measured on one thread, and what uses two on two, floors as
well. Edges per second of the sampler are measured by `sampler.py`.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.harness.compare import Variant, compare
from benchmarks.harness.power_law import power_law_graph
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Comparison, Findings, Table, comparison_from_json, comparison_to_json
from benchmarks.harness.row_kernels import read_rows
from windrow.comm.process import keep_freed_memory
from windrow.comm.rows import join_runs, move_columns, move_rows
from windrow.gnn.message_passing import Block, aggregate, divide_by_degrees, edge_softmax
from windrow.gnn.sampler import NeighborSampler
from windrow.training.dense import linear
from windrow.training.dropout import DropoutContext

OURS, MEMORY, PRODUCTS, RANDOM, TORCH = "kernel", "memory", "products", "random", "PyTorch"
GATHER, MEAN, LOOKUP, COPY, LINEAR = "gather", "segment mean", "pooled lookup", "codec-free copy", "linear"
AIM = 0.6
"""Of the floor."""
AIM_LINEAR = 0.95
"""Of the speed of PyTorch's layer, which noise takes to either side of 1; so the upper end of the interval counts."""
THREADS = (1, 2)
SEED = 7
SAMPLE_S = 0.005
"""What is timed is repeated until it takes so long."""
SPINNING_S = 0.03
"""Longer than OpenMP's threads look out for more work before they sleep."""
OTHERS_SHARE = 0.1
"""Of processor time: from which on a kernel uses several threads."""

CACHED_ROWS, LARGE_ROWS = 8192, 1 << 19
"""Of the matrices that rows are picked from: 4 MiB and 256 MiB of 128 float32."""
PICKED_SHARE = {CACHED_ROWS: 1 / 2, LARGE_ROWS: 1 / 4}
FANOUTS = [15, 10, 5]
SEEDS = 1024
HEADS = 4
MOST_REPLICATED_ROWS = 20_265
"""Tables of the peer benchmark with at most so many rows are copied to every rank here."""
LINEAR_SHAPES = (
    *((2048, 13, 512), (2048, 512, 256), (2048, 256, 64), (2048, 415, 512), (2048, 256, 1)),
    *((30_000, 128, 64), (30_000, 64, 64), (8192, 256, 256), (2500, 16, 256), (1030, 40, 17)),
    *((32, 64, 64), (256, 16, 16), (65_536, 16, 4), (200_000, 64, 1), (1, 2048, 2048)),
)
"""Rows, inputs, outputs: of the peer benchmark's DLRM; of layers on sampled blocks, examples' and wider; of tests;
small, narrow, and of a single row."""
PRODUCT = (512, 1024, 1024)
"""Rows, inputs, outputs of the large product."""


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One kernel in one setting."""

    name: str
    run: Callable[[], object]
    reads: int
    """Bytes, distinct."""
    writes: int
    """Bytes."""
    kind: str = ""
    """Which aim it belongs to."""
    flops: int = 0
    """Of matrix products."""
    rows: tuple[Tensor, Tensor, Tensor] | None = None
    """float32 [n, width], positions [m] and float32 [k, width], k at most m, for `read_rows`; None: it picks none."""
    rival: Callable[[], object] | None = None
    """What must not be faster."""


def gathers(chance: torch.Generator) -> Iterator[Kernel]:
    """Rows picked from a matrix, each at most once, as features are."""
    for held, width in itertools.product((CACHED_ROWS, LARGE_ROWS), (128, 256)):
        rows = torch.ones(held * 128 // width, width)
        picked = torch.randperm(len(rows), generator=chance)[: int(len(rows) * PICKED_SHARE[held])]
        out = torch.empty(len(picked), width)
        where = "in cache" if held == CACHED_ROWS else "from memory"
        for order, positions in (("random", picked), ("sorted", picked.sort().values)):
            yield Kernel(
                name=f"gather of {width} float32, {order}, {where}",
                kind=GATHER,
                run=partial(move_rows, rows, positions, out, None),
                reads=out.nbytes + positions.nbytes,
                writes=out.nbytes,
                rows=(rows, positions, out),
            )


def copies(chance: torch.Generator) -> Iterator[Kernel]:
    """Rows as they stand: whole matrices copied, rows landing where they belong."""
    for held, where in ((CACHED_ROWS // 2, "in cache"), (LARGE_ROWS // 4, "from memory")):
        rows = torch.ones(held, 128)
        out, places = torch.empty_like(rows), torch.randperm(held, generator=chance)
        for name, to in (("copy of a matrix", None), ("landing of 128 float32, random", places)):
            run = partial(move_rows, rows, None, out, to)
            yield Kernel(name=f"{name}, {where}", kind=COPY, run=run, reads=rows.nbytes, writes=out.nbytes)


def conversions(chance: torch.Generator) -> Iterator[Kernel]:
    """Rows that travel short: picked at random and shortened, or widened and put to random places."""
    rows = torch.ones(LARGE_ROWS, 128)
    positions = torch.randperm(LARGE_ROWS, generator=chance)[: LARGE_ROWS // 4]
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        short = torch.empty(len(positions), 128, dtype=dtype)
        size = len(positions) * 128 * 4
        yield Kernel(
            name=f"float32 -> {name}, random rows of 128",
            run=partial(move_rows, rows, positions, short, None),
            reads=size + positions.nbytes,
            writes=short.nbytes,
            rows=(rows, positions, torch.empty(len(positions) // 2, 128)),
        )
        yield Kernel(
            name=f"{name} -> float32, to random rows of 128",
            run=partial(move_rows, short, None, rows, positions),
            reads=short.nbytes + positions.nbytes,
            writes=size,
        )


def of_graphs(chance: torch.Generator, *, short: bool) -> Iterator[Kernel]:
    """What layers do along the edges of sampled blocks, and of a small random one."""
    vertices, edges = (200_000, 4_000_000) if short else (1_000_000, 20_000_000)
    graph = power_law_graph(vertices, edges, seed=SEED)
    sampler = NeighborSampler(graph.indptr, graph.indices, FANOUTS, seed=SEED)
    seeds = torch.randperm(vertices, generator=chance)[:SEEDS]
    sampled = sampler.sample(seeds, epoch=0, step=0).blocks
    sources = torch.randint(4096, (10_240,), generator=chance, dtype=torch.int32)
    small = Block(num_src=4096, num_dst=1024, indptr=torch.arange(0, 10_241, 10), indices=sources)
    for name, block, width in (
        ("outermost hop", sampled[0], 128),
        ("middle hop", sampled[1], 256),
        ("random block in cache", small, 128),
    ):
        yield from segment_means(f"{width} float32, {name}", block, width, chance)
    block = sampled[0]
    scores = torch.randn(block.num_edges, HEADS, generator=chance, requires_grad=True)
    weights, upstream = edge_softmax(block, scores), torch.randn(block.num_edges, HEADS, generator=chance)
    size = scores.nbytes
    yield Kernel(
        name=f"edge softmax, {HEADS} heads, forward",
        run=partial(edge_softmax, block, scores),
        reads=size + block.indptr.nbytes,
        writes=size,
    )
    yield Kernel(
        name=f"edge softmax, {HEADS} heads, backward",
        run=partial(torch.autograd.grad, weights, scores, upstream, retain_graph=True),
        reads=2 * size + block.indptr.nbytes,
        writes=size,
    )
    turned = block.transpose
    yield Kernel(
        name="transpose of a block",
        run=lambda: replace(block).transpose,
        reads=block.indptr.nbytes + block.indices.nbytes,
        writes=sum(array.nbytes for array in turned),
    )


def segment_means(name: str, block: Block, width: int, chance: torch.Generator) -> Iterator[Kernel]:
    """The mean over each destination's sources, and the gradient of such a sum."""
    x = torch.randn(block.num_src, width, generator=chance, requires_grad=True)
    total, upstream = aggregate(block, x), torch.randn(block.num_dst, width, generator=chance)

    def mean() -> None:
        with torch.no_grad():
            divide_by_degrees(block, aggregate(block, x))

    row_bytes, turned = 4 * width, block.transpose
    yield Kernel(
        name=f"segment mean of {name}",
        kind=MEAN,
        run=mean,
        reads=len(block.indices.unique()) * row_bytes + block.indices.nbytes + block.indptr.nbytes,
        writes=total.nbytes,
        rows=(x.detach(), block.indices, torch.empty(total.shape)),
    )
    yield Kernel(
        name=f"its transpose, {name}",
        kind=MEAN,
        run=partial(torch.autograd.grad, total, x, upstream, retain_graph=True),
        reads=int((block.degrees > 0).sum()) * row_bytes + turned.indices.nbytes + turned.indptr.nbytes,
        writes=x.nbytes,
        # One entry of the result for each source, also where there are fewer edges.
        rows=(upstream, turned.indices, torch.empty(min(block.num_src, block.num_edges), width)),
    )


def dropouts(chance: torch.Generator) -> Iterator[Kernel]:
    """Dropout behind a rectifier."""
    x = torch.randn(1 << 16, 256, generator=chance, requires_grad=True)
    upstream = torch.randn(x.shape, generator=chance)
    context = DropoutContext(seed=SEED, epoch=0, step=0, row_ids=torch.arange(len(x)))
    kept = context.drop(x, 0.5, layer=0, rectify=True)
    yield Kernel(
        name="dropout and rectifier, forward",
        run=partial(context.drop, x, 0.5, layer=0, rectify=True),
        reads=x.nbytes,
        writes=x.nbytes,
    )
    yield Kernel(
        name="dropout and rectifier, backward",
        run=partial(torch.autograd.grad, kept, x, upstream, retain_graph=True),
        reads=2 * x.nbytes,
        writes=x.nbytes,
    )


def lookups(chance: torch.Generator) -> Iterator[Kernel]:
    """Pooled lookups of the peer benchmark's tables and batches, learnt within the backward pass or after it."""
    from benchmarks.torchrec_peer import BATCHES, DIM, SETTING, make_batch
    from windrow.recsys.tables.make import make_table_batch
    from windrow.recsys.tables.options import TableOptions
    from windrow.training.shard_files import LocalTable

    batches = [make_batch(SETTING, rank=0, number=number) for number in range(BATCHES)]
    options = TableOptions(dim=DIM, optimizer="rowwise_adagrad", learning_rate=0.02)
    row_bytes = 4 * DIM
    for name, replicated in (("fused", False), ("dense gradient", True)):
        chosen = {
            feature: rows
            for feature, rows in zip(SETTING.features, SETTING.rows, strict=True)
            if not replicated or rows <= MOST_REPLICATED_ROWS
        }
        tables = make_table_batch(
            options,
            tuple(LocalTable(name=feature, rows=(0, rows), columns=(0, DIM)) for feature, rows in chosen.items()),
            tuple(range(len(chosen))),
            table_rows=chosen,
            replicated=replicated,
            seed=SEED,
        )
        starts = np.cumsum([0, *chosen.values()])
        inputs, positions = [], []
        for batch in batches:
            features = [batch.sparse[feature] for feature in chosen]
            ends = torch.cat([feature.lengths() for feature in features]).cumsum(0)
            inputs.append((torch.cat([feature.values() for feature in features]), functional.pad(ends, (1, 0))))
            in_one = [feature.values() + int(start) for feature, start in zip(features, starts, strict=False)]
            positions.append(torch.cat(in_one))
        distinct = int(np.mean([len(each.unique()) for each in positions])) * row_bytes
        upstream = torch.randn(len(batches[0].labels), tables.output_dim, generator=chance)
        order = itertools.cycle(inputs)

        def look_up(tables: Any = tables, order: Any = order) -> None:
            with torch.no_grad():
                tables(*next(order))

        def learn(tables: Any = tables, order: Any = order, upstream: Tensor = upstream) -> None:
            tables(*next(order)).backward(upstream)
            tables.step()

        ids = sum(array.nbytes for array in inputs[0])
        whole = int(starts[-1]) * row_bytes
        found = torch.empty(upstream.numel() // DIM, DIM)
        yield Kernel(
            name=f"pooled lookup, {name}, forward",
            kind=LOOKUP,
            run=look_up,
            reads=distinct + ids,
            writes=upstream.nbytes,
            rows=(torch.ones(int(starts[-1]), DIM), positions[0], found),
        )
        # Fused, rows are read, changed and written with their sums of squares; else a whole gradient is written, then
        # read with all weights and sums of squares, which are written, and the gradient is zeroed.
        squares = (distinct if not replicated else whole) // DIM
        changed = distinct + squares if not replicated else 2 * whole + squares
        yield Kernel(
            name=f"pooled lookup, {name}, forward, backward and row-wise Adagrad",
            kind=LOOKUP,
            run=learn,
            reads=distinct + 2 * ids + upstream.nbytes + changed,
            writes=upstream.nbytes + (changed if not replicated else changed + whole),
        )


def landings(chance: torch.Generator) -> Iterator[Kernel]:
    """Pooled vectors of every other table land beside the others', and their gradients leave."""
    samples, dim, tables = 2048, 64, 26
    message = torch.randn(samples, tables // 2 * dim, generator=chance)
    pooled = torch.randn(samples, tables * dim, generator=chance)
    runs = join_runs((table * dim, 2 * table * dim, dim) for table in range(tables // 2))
    for name, back in (("landing of pooled vectors", False), ("sending of their gradients", True)):
        run = partial(move_columns, message, pooled, runs, back=back)
        yield Kernel(name=name, run=run, reads=message.nbytes, writes=message.nbytes)


def linears(chance: torch.Generator) -> Iterator[Kernel]:
    """Linear layers, beside PyTorch's."""
    for rows, inputs, outputs in LINEAR_SHAPES:
        x, weight, bias, upstream = (
            torch.randn(shape, generator=chance, requires_grad=True)
            for shape in ((rows, inputs), (outputs, inputs), (outputs,), (rows, outputs))
        )
        learnt, flops = (x, weight, bias), 2 * rows * inputs * outputs
        parts = sum(tensor.nbytes for tensor in learnt)
        forward = [partial(of, *learnt) for of in (linear, functional.linear)]
        backward = [partial(torch.autograd.grad, of(), learnt, upstream.detach(), retain_graph=True) for of in forward]
        made, after = upstream.nbytes, parts - bias.nbytes + upstream.nbytes
        for way, (ours, theirs), reads, writes, products in (
            ("forward", forward, parts, made, flops),
            ("backward", backward, after, parts, 2 * flops),
        ):
            yield Kernel(
                name=f"linear layer, {rows} x {inputs} -> {outputs}, {way}",
                kind=LINEAR,
                run=ours,
                reads=reads,
                writes=writes,
                flops=products,
                rival=theirs,
            )


def compared(kernel: Kernel, pool: Executor, *, threads: int, repeats: int) -> Comparison:
    """Time a kernel and its floors in turn: seconds per call of the kernel; the baseline is the floor that counts."""
    runs = {OURS: kernel.run, MEMORY: in_order(kernel.reads, kernel.writes)}
    share = dict.fromkeys((OURS, MEMORY, RANDOM, TORCH), 1.0)
    if kernel.rival:
        runs[TORCH] = kernel.rival
    if kernel.flops:
        rows, inputs, outputs = PRODUCT
        runs[PRODUCTS] = partial(linear, torch.ones(rows, inputs), torch.ones(outputs, inputs))
        share[PRODUCTS] = 2 * rows * inputs * outputs / kernel.flops
    if kernel.rows:
        rows_of, positions, out = kernel.rows
        arrays = [array.numpy() for array in (positions, out)]
        parts = [np.array_split(array, threads) for array in arrays]
        read = partial(read_rows, rows_of.numpy())
        runs[RANDOM] = partial(read, *arrays) if threads == 1 else lambda: list(pool.map(read, *parts))
    calls = {name: calls_of(run) for name, run in runs.items()}
    moved = kernel.reads + kernel.writes
    variants = {
        name: Variant(run=partial(repeat, run, calls[name]), bytes=moved if name in (OURS, MEMORY) else None)
        for name, run in runs.items()
    }
    timed = compare(variants, baseline=MEMORY, repeats=repeats)
    timed = timed.divided({name: [calls[name] * share[name]] * repeats for name in runs}, "call")
    floors = [name for name in (MEMORY, PRODUCTS) if name in runs]
    return timed.against(max(floors, key=lambda name: timed.variants[name].median_s))


def in_order(reads: int, writes: int) -> Callable[[], object]:
    """A function that reads and writes so many bytes in order."""
    both, rest = min(reads, writes) // 4, abs(reads - writes) // 4
    source, target, more = torch.ones(both), torch.ones(both), torch.ones(rest)

    def run() -> None:
        target.copy_(source)
        if reads > writes:
            more.sum()
        else:
            more.zero_()

    return run


def calls_of(run: Callable[[], object]) -> int:
    """How many calls take `SAMPLE_S`, by the faster of two after a first one, in which loops compile."""
    run()
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return math.ceil(SAMPLE_S / min(seconds))


def repeat(run: Callable[[], object], times: int) -> None:
    """Call a function some times."""
    for _ in range(times):
        run()


def uses_threads(run: Callable[[], object]) -> bool:
    """Whether other threads than this one compute as well, told by processor time, whatever else the machine does."""
    calls = calls_of(run)
    time.sleep(SPINNING_S)
    clocks = (time.process_time, time.thread_time)
    start = [clock() for clock in clocks]
    repeat(run, calls)
    total, own = (clock() - began for clock, began in zip(clocks, start, strict=True))
    return total - own > OTHERS_SHARE * total


def work(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Time all kernels on one thread, and those that use more on all."""
    # As in `windrow train`.
    keep_freed_memory()
    chance = torch.Generator().manual_seed(SEED)
    groups = (
        gathers,
        copies,
        partial(of_graphs, short=task["short"]),
        dropouts,
        lookups,
        landings,
        conversions,
        linears,
    )
    found = []
    with ThreadPoolExecutor(max(THREADS)) as pool:
        for kernel in itertools.chain.from_iterable(kernels(chance) for kernels in groups):
            for threads in THREADS:
                torch.set_num_threads(threads)
                if threads == 1 or uses_threads(kernel.run):
                    timed = compared(kernel, pool, threads=threads, repeats=task["repeats"])
                    about = {"name": kernel.name, "kind": kernel.kind, "threads": threads}
                    found.append(about | {"timed": comparison_to_json(timed)})
    return found


def described(name: str, timed: Comparison) -> dict[str, object]:
    """The row of a kernel in the table."""
    floor = timed.baseline
    share = timed.ratio(OURS).median
    at_random = timed.ratio(OURS, RANDOM).median if RANDOM in timed.variants else math.nan
    bound = floor if share >= AIM else "order of its rows" if at_random >= AIM else "its own loop"
    return {
        "kernel": name,
        "ms": 1e3 * timed.variants[OURS].median_s,
        "floor ms": 1e3 * timed.variants[floor].median_s,
        "floor": floor,
        "share of floor": share,
        "share of random rows": "" if math.isnan(at_random) else at_random,
        "over PyTorch": timed.ratio(OURS, TORCH).median if TORCH in timed.variants else "",
        "bound by": bound,
    }


def measure(program: Program) -> Findings:
    """Time everything in one process, which has as many threads as are ever used."""
    task = {"short": program.short, "repeats": 7 if program.short else 31}
    found = program.in_process(task, threads=max(THREADS))
    figures: dict[str, float] = {}
    aims: dict[str, Aim] = {}
    comparisons: dict[str, Comparison] = {}
    tables: dict[str, Table] = {}
    for threads in THREADS:
        timed = {one["name"]: comparison_from_json(one["timed"]) for one in found if one["threads"] == threads}
        kinds = {one["name"]: one["kind"] for one in found}
        comparisons |= {f"{name}, {threads} thread(s)": one for name, one in timed.items()}
        rows = [described(name, one) for name, one in timed.items()]
        tables[f"share of the floor, {threads} thread(s)"] = Table.from_rows(rows)
        for kind in dict.fromkeys(kinds[name] for name in timed if kinds[name]):
            own = [one for name, one in timed.items() if kinds[name] == kind]
            key = f"{kind.replace(' ', '_').replace('-', '_')}_{threads}_threads"
            worst = min(one.ratio(OURS).median for one in own)
            figures[f"{key}_worst_share_of_floor_ratio"] = worst
            if kind == LINEAR:
                slowest = min((one.ratio(OURS, TORCH) for one in own), key=lambda gain: gain.high)
                figures[f"{key}_slowest_over_pytorch_ratio"] = slowest.median
                text = f"linear, {threads} thread(s): never slower than PyTorch's, interval up to >= {AIM_LINEAR}"
                aims[key] = Aim(text, slowest.high >= AIM_LINEAR)
            elif threads == 1:
                aims[key] = Aim(f"{kind}, one thread: >= {AIM} of its floor, the worst counts", worst >= AIM)
    return Findings(figures=figures, aims=aims, comparisons=comparisons, tables=tables)


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work)
