"""How near partitioned features come to full replication: pipeline and VIP cache on emulated hosts.

    computed    4 hosts, GraphSAGE with 3 layers of 256, 1,024 seeds on each
    waits       8 hosts, 32 seeds on each, and no model: a step waits 0.4 s instead, as for an accelerator that uses no
                core of these, and sums as many gradients as 3 layers of 24 have: about a twentieth of what its rows
                are without a cache, as of 3 layers of 256 and 1,024 seeds of papers100M

Fanouts 15, 10, 5, on a generated graph with communities. Each variant trains epochs
in turn with the others in one job: everything one after another and no cache; the pipeline; the pipeline with a VIP
cache of growing replication factor; and every row on every host, where only gradients travel. In another job, at the
matching rate, with the largest cache: one that knows the next minibatches (``cache.window``), and replies in 8 and 4
bits and sums in bf16. Kaler et al. (MLSys 2023) measured
11.58, 5.80, 3.15 (alpha .32) and 3.06 s on 8 hosts. Processors compute far slower than their GPUs, so the same share of
communication is met at a lower rate of links: the one at which the first variant takes about 3.8 times as long as full
replication is found from the bytes of an epoch and its time at 2.5 Gbit/s. In their first variant more than links is
waited for (slicing, copies to the GPU), which a pipeline hides even where nothing is cached; here nothing else is. So
waits are also measured at the rate at which the pipeline alone takes as long as theirs: 1.9 times full replication.

    python benchmarks/salient.py [--short] [--only computed | waits]
"""

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.harness.compare import Variant, compare
from benchmarks.harness.power_law import power_law_communities
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table, comparison_from_json, comparison_to_json
from benchmarks.harness.timed_wait import TimedWait
from windrow.caching.selection import CacheOptions, cache_capacity, choose_cached
from windrow.caching.vip import inclusion_probabilities
from windrow.comm.connect import connect
from windrow.comm.meter import Meter
from windrow.comm.wire import CodecName, WireOptions
from windrow.comm.world import World
from windrow.gnn.cache_choice import demand_of
from windrow.gnn.evaluation import EvaluationOptions
from windrow.gnn.graph import Graph
from windrow.gnn.models import GNN, ModelOptions, build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.partitioning import graph_to_store
from windrow.gnn.pipeline import PipelineOptions
from windrow.gnn.seed_order import count_steps
from windrow.gnn.task import NodeTask
from windrow.partition.options import PartitionOptions
from windrow.training.trainer import Trainer

if TYPE_CHECKING:
    from benchmarks.harness.result import Comparison

FANOUTS = (15, 10, 5)
SEED = 7
FEATURES = 512
"""Between papers100M's 128 and MAG240's 768, the graphs of the paper. The fewer there are, the larger is the share of
the sums of gradients in what travels, which no cache makes smaller: here a tenth."""
CLASSES = 16
EPOCHS = 100
ID_BYTES = 8
PUBLISHED_SHARE = 3.8
"""Epoch time of the first variant over that of full replication: 11.58 s over 3.06 s."""
PUBLISHED_PIPELINED = 1.9
"""The same of the pipeline without a cache: 5.80 s."""

FIRST, PIPELINE, FULL = "no pipeline, no cache", "pipeline", "full replication"
ALPHAS = (0.08, 0.16, 0.32)
EVERYTHING = float("inf")
FINAL = f"pipeline, VIP cache {ALPHAS[-1]:g}"
WINDOW, WINDOWED = 8, f"{FINAL}, window"
FEW_BITS: dict[CodecName, str] = {"int8": f"{FINAL}, int8, bf16 sums", "int4": f"{FINAL}, int4, bf16 sums"}
"""Variants with replies in few bits, of features in float32: what is shorter travels as it is."""
SETTINGS: dict[str, tuple[int, float, int, WireOptions]] = (
    {FIRST: (0, 0.0, 0, WireOptions()), PIPELINE: (4, 0.0, 0, WireOptions())}
    | {f"pipeline, VIP cache {alpha:g}": (4, alpha, 0, WireOptions()) for alpha in ALPHAS}
    | {WINDOWED: (4, ALPHAS[-1], WINDOW, WireOptions())}
    | {name: (4, ALPHAS[-1], 0, WireOptions(vectors=form, sums="bf16")) for form, name in FEW_BITS.items()}
    | {FULL: (4, EVERYTHING, 0, WireOptions())}
)
"""Depth of the pipeline, replication factor, window of the cache, and number formats on the wire of each variant."""
SECOND = (FIRST, FINAL, WINDOWED, *FEW_BITS.values(), FULL)
JOBS = (tuple(name for name in SETTINGS if name not in {WINDOWED, *FEW_BITS.values()}), SECOND)
"""Variants of a job: all of them together take more than 24 GiB. The second one trains at the matching rates alone."""
SLOWEST_MBIT = 10
FASTEST, MATCHING, MATCHING_PIPELINED, MIDDLE = "2.5gbit", "matching", "matching_pipelined", "1gbit"
AT_PUBLISHED = {
    MATCHING: f"the first takes {PUBLISHED_SHARE} of full replication",
    MATCHING_PIPELINED: f"the pipeline takes {PUBLISHED_PIPELINED} of full replication",
}
PARTS = {"computed": MIDDLE, "waits": MATCHING_PIPELINED}
"""And the rate that each is measured at besides, in full."""
LEADING_STEPS = 3
ARRIVAL_CALLS, BETWEEN_CALLS_S = 100, 0.05
"""Rows of two minibatches take two to three seconds on the slowest links."""
FRAMES = 1.05
"""Bytes on a wire for each byte of a message: headers of TCP, IP and Ethernet."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large everything is."""

    hosts: int
    vertices: int
    edges: int
    communities: int
    train_share: float
    batch_size: int
    hidden: int
    repeats: int
    wait_s: float = 0.0
    """Of a step, instead of computing."""


COMPUTED = Scale(
    hosts=4,
    vertices=1_000_000,
    edges=20_000_000,
    communities=500,
    train_share=0.08,
    batch_size=4096,
    hidden=256,
    repeats=2,
)
IN_SHORT: dict[str, Any] = {"vertices": 100_000, "edges": 1_500_000, "communities": 100, "repeats": 1}
WAITS: dict[str, Any] = {"hosts": 8, "train_share": 0.02, "batch_size": 256, "hidden": 24, "wait_s": 0.4}
SCALES = {
    ("computed", False): COMPUTED,
    ("computed", True): replace(COMPUTED, **IN_SHORT, train_share=0.1, batch_size=2048),
    ("waits", False): replace(
        COMPUTED,
        **WAITS | {"vertices": 400_000, "edges": 8_000_000, "communities": 200, "train_share": 0.01, "repeats": 1},
    ),
    ("waits", True): replace(COMPUTED, **IN_SHORT, **WAITS),
}
"""By part, and whether in short."""


def make_graph(scale: Scale) -> Graph:
    """Generate the graph."""
    return power_law_communities(
        scale.vertices,
        scale.edges,
        seed=SEED,
        num_communities=scale.communities,
        mixing=0.4,
        decay=2.0,
        num_features=FEATURES,
        num_classes=CLASSES,
        train_share=scale.train_share,
    )


def partition_options(hosts: int) -> PartitionOptions:
    """How it is split among the hosts."""
    return PartitionOptions(num_parts=hosts, restarts=1, refine_cycles=1)


def model_of(scale: Scale) -> GNN:
    """What learns, or whose weights are summed."""
    shape = ModelOptions(kind="graphsage", hidden=scale.hidden, num_layers=3, dropout=0.5)
    return build_model(shape, in_features=FEATURES, out_features=CLASSES, seed=SEED)


def make_trainer(
    world: World,
    graph: PartitionedGraph,
    scale: Scale,
    probabilities: npt.NDArray[np.float64],
    *,
    depth: int,
    alpha: float,
    window: int,
    wire: WireOptions,
) -> Trainer:
    """One variant; all of them learn the same. The cache keeps what minibatches need most probably."""
    if alpha == EVERYTHING:
        first, last = graph.own_range
        everything = torch.arange(graph.num_vertices)
        cached = everything[(everything < first) | (everything >= last)]
    else:
        capacity = cache_capacity(alpha, graph.num_vertices, scale.hosts)
        cached = torch.from_numpy(choose_cached(probabilities, graph.own_range)[:capacity])
    gnn = model_of(scale)
    model = TimedWait(gnn, scale.wait_s, CLASSES) if scale.wait_s else gnn
    cache, pipeline = CacheOptions(window=window), PipelineOptions(depth=depth)
    # Nothing is evaluated, so that pipelines go on.
    never = EvaluationOptions(method="sampled", every_epochs=EPOCHS)
    task = NodeTask(graph, FANOUTS, order="local", cached_ids=cached, cache=cache, pipeline=pipeline, evaluation=never)
    return Trainer(world, model, task, epochs=EPOCHS, batch_size=scale.batch_size, seed=SEED, wire=wire)


def make_trainers(
    world: World,
    graph: PartitionedGraph,
    scale: Scale,
    settings: Mapping[str, tuple[int, float, int, WireOptions]],
    *,
    exact: PartitionedGraph | None = None,
) -> dict[str, Trainer]:
    """One for each variant of some `settings`; those with replies in few bits take the graph `exact`, if given."""
    steps = count_steps(len(graph.train_ids), scale.batch_size)
    likely = inclusion_probabilities(demand_of(graph, world.rank, FANOUTS, steps))[-1]
    return {
        name: make_trainer(
            world,
            exact if exact is not None and wire.vectors in FEW_BITS else graph,
            scale,
            likely,
            depth=depth,
            alpha=alpha,
            window=window,
            wire=wire,
        )
        for name, (depth, alpha, window, wire) in settings.items()
    }


class Epochs:
    """Every other epoch of one variant, and what it has cost.

    Pipelines go on from epoch to epoch: steps of the epoch before lead in, so that as much is on its way when the clock
    starts as when it stops.
    """

    def __init__(self, world: World, trainer: Trainer) -> None:
        self.world = world
        self.trainer = trainer
        self.epoch = 0
        self.rows, self.bytes = 0, 0.0
        self.loss = 0.0
        self.processor_seconds = 0.0

    def warm_up(self) -> None:
        """Compile, and touch all memory, with a few steps of an epoch that is not measured."""
        for step in range(LEADING_STEPS):
            self.trainer.train_step(EPOCHS - 1, step)

    def lead_in(self) -> None:
        """Wait until what others have on their way is there, then fill the pipeline. Collective."""
        for _ in range(ARRIVAL_CALLS):
            time.sleep(BETWEEN_CALLS_S)
            # MPI moves messages while it is called.
            self.world.barrier(stage="others' messages")
        steps = self.trainer.steps_per_epoch
        self.trainer.train_steps(self.epoch, range(steps - LEADING_STEPS, steps))

    def __call__(self) -> None:
        """Train one epoch."""
        self.world.meter = Meter()
        start = time.process_time()
        self.loss = self.trainer.train_epoch(self.epoch + 1)
        self.processor_seconds = time.process_time() - start
        # Of what was posted in this epoch alone the bytes are known.
        received = self.world.meter.totals("features: rows")
        self.rows = self.world.meter.found("features: rows").remote
        self.bytes = self.rows * received.bytes_received / max(1, received.rows_received)
        self.world.meter = None
        self.epoch += 2


def work(task: Mapping[str, Any]) -> object:
    """Be one of the hosts: time the variants in turn."""
    torch.set_num_threads(1)
    scale = Scale(**task["scale"])
    with connect("mpi", deadline_s=300) as world:
        # In fp16, as theirs.
        exact = PartitionedGraph.open(Path(task["store"]), rank=world.rank, size=world.size)
        graph = exact.stored_as("fp16")
        settings = {name: of_variant for name, of_variant in SETTINGS.items() if name in task["variants"]}
        trainers = make_trainers(world, graph, scale, settings, exact=exact)
        runs = {name: Epochs(world, trainer) for name, trainer in trainers.items()}
        for run in runs.values():
            run.warm_up()
        compared = compare(
            {name: Variant(run=run, before=run.lead_in) for name, run in runs.items()},
            baseline=FULL,
            repeats=task["repeats"],
            warm_up=0,
            world=world,
        )
        trainer = runs[FULL].trainer
        weight_bytes = sum(parameter.nbytes for parameter in trainer.model.parameters())
        found = {
            "comparison": comparison_to_json(compared),
            "rows": {
                name: {"rows": total(world, run.rows), "bytes": total(world, run.bytes)} for name, run in runs.items()
            },
            "busiest": total(world, runs[FIRST].bytes + ID_BYTES * runs[FIRST].rows, op="max"),
            "sum_bytes": 2 * (world.size - 1) / world.size * weight_bytes * trainer.steps_per_epoch,
            "losses": {name: run.loss for name, run in runs.items()},
            "processor_seconds": {name: total(world, run.processor_seconds) for name, run in runs.items()},
        }
        for run in runs.values():
            run.trainer.close()
    return found


def total(world: World, value: float, *, op: Literal["sum", "max"] = "sum") -> float:
    """The sum over all hosts, or the largest."""
    return float(world.all_reduce(torch.tensor(value, dtype=torch.float64), stage="figures", op=op))


def matching_rate(full_seconds: float, row_bytes: float, sum_bytes: float) -> str:
    """The rate at which the first variant takes as long over full replication as published.

    Rows and sums of gradients travel one after another in the first variant; with full replication about half of the
    sums travel while the lowest layer is differentiated, and what is left of them is waited for.

    Args:
        full_seconds: of an epoch with full replication, on a network that is hardly felt.
        row_bytes: that the host which receives most does in an epoch of the first variant, ids included.
        sum_bytes: that a host receives in an epoch for the sums of gradients.
    """
    more = row_bytes + sum_bytes - PUBLISHED_SHARE * sum_bytes / 2
    megabits = 8e-6 * FRAMES * more / ((PUBLISHED_SHARE - 1) * full_seconds)
    return rate_of(megabits)


def pipelined_rate(rate: str, seconds: Mapping[str, float]) -> str:
    """The rate at which the pipeline alone takes as long over full replication as published.

    `seconds` are those of an epoch at another `rate`, at which rows are what the pipeline waits for: in inverse
    proportion to the rate.
    """
    more = seconds[PIPELINE] / seconds[FULL] / PUBLISHED_PIPELINED
    return rate_of(more * int(rate.removesuffix("mbit")))


def rate_of(megabits: float) -> str:
    """As links take it: whole megabits a second, and no fewer than a run has time for."""
    return f"{max(SLOWEST_MBIT, round(megabits))}mbit"


def key(variant: str) -> str:
    """A variant's name in figures."""
    return variant.replace(", ", "_").replace(" ", "_").replace(".", "")


def table_rows(rate: str, seconds: Mapping[str, float], found: Mapping[str, Any]) -> list[dict[str, object]]:
    """What each variant of a job took, asked for and learnt."""
    return [
        {
            "rate": rate,
            "variant": variant,
            "epoch s": median_s,
            "over full replication": median_s / seconds[FULL],
            "processor s": found["processor_seconds"][variant],
            "remote rows": found["rows"][variant]["rows"],
            "MB": found["rows"][variant]["bytes"] / 1e6,
            "loss": found["losses"][variant],
        }
        for variant, median_s in seconds.items()
    ]


def measure(program: Program) -> Findings:
    """What was asked for."""
    return Findings.joined([measure_part(program, part) for part in program.chosen(tuple(PARTS), short=1)])


def measure_part(program: Program, part: str) -> Findings:
    """Time everything at 2.5 Gbit/s, at the rate that matches the published share, and at that of the part."""
    scale = SCALES[part, program.short]
    figures: dict[str, float] = {}
    aims: dict[str, Aim] = {}
    comparisons: dict[str, Comparison] = {}
    rows: list[dict[str, object]] = []
    rates = {FASTEST: FASTEST, MIDDLE: MIDDLE}
    with tempfile.TemporaryDirectory(prefix="salient-") as folder:
        store = Path(folder) / "store"
        graph_to_store(make_graph(scale), store, partition_options(scale.hosts))
        for name in (FASTEST, MATCHING) if program.short else (FASTEST, MATCHING, PARTS[part]):
            repeats = scale.repeats if name == MATCHING else 1
            for number, variants in enumerate(JOBS if name in AT_PUBLISHED else JOBS[:1]):
                task = {"store": str(store), "scale": vars(scale), "repeats": repeats, "variants": variants}
                found = program.on_ranks(scale.hosts, task, rate=rates[name], deadline_s=3600)
                compared = comparison_from_json(found["comparison"])
                comparisons[f"{part}, {scale.hosts} hosts at {rates[name]}{', second job' * number}"] = compared
                seconds = {variant: measured.median_s for variant, measured in compared.variants.items()}
                rows += table_rows(rates[name], seconds, found)
                if name == FASTEST:
                    rates[MATCHING] = matching_rate(seconds[FULL], found["busiest"], found["sum_bytes"])
                if name == MATCHING and PIPELINE in seconds:
                    rates[MATCHING_PIPELINED] = pipelined_rate(rates[MATCHING], seconds)
                figures |= {
                    f"{name}_{key(variant)}_over_full_ratio": seconds[variant] / seconds[FULL]
                    for variant in seconds
                    if variant != FULL and f"{name}_{key(variant)}_over_full_ratio" not in figures
                }
                if WINDOWED in seconds:
                    of_rows = found["rows"][WINDOWED]["rows"] / found["rows"][FINAL]["rows"]
                    figures[f"{name}_window_over_final_rows_ratio"] = of_rows
                    figures[f"{name}_window_over_final_seconds_ratio"] = seconds[WINDOWED] / seconds[FINAL]
                ends = {"final": FINAL} | {f"final_{form}": variant for form, variant in FEW_BITS.items()}
                figures |= {
                    f"{name}_first_over_{end}_ratio": seconds[FIRST] / seconds[variant]
                    for end, variant in ends.items()
                    if variant in seconds and f"{name}_first_over_{end}_ratio" not in figures
                }
                if PIPELINE in seconds:
                    slower = min(seconds[FIRST], seconds[PIPELINE]) / seconds[FINAL]
                    aims[f"{name}_no_slower"] = Aim("final never slower than no cache", slower >= 1)
    for name, share in AT_PUBLISHED.items():
        if f"{name}_{key(FINAL)}_over_full_ratio" in figures:
            figures[f"{name}_rate_megabits_per_second"] = float(rates[name].removesuffix("mbit"))
            aims[f"{name}_final_over_full"] = Aim(
                f"where {share}, final / full replication <= 1.05",
                figures[f"{name}_{key(FINAL)}_over_full_ratio"] <= 1.05,
            )
    aims["first_over_final"] = Aim(
        "at the matching rate, first / final >= 3.7", figures["matching_first_over_final_ratio"] >= 3.7
    )
    for form, variant in FEW_BITS.items():
        aims[f"{form}_over_full"] = Aim(
            f"at the matching rate, final with replies in {form} / full replication <= 1.05",
            figures[f"matching_{key(variant)}_over_full_ratio"] <= 1.05,
        )
        aims[f"first_over_{form}"] = Aim(
            f"at the matching rate, first / final with replies in {form} >= 3.7",
            figures[f"matching_first_over_final_{form}_ratio"] >= 3.7,
        )
    return Findings(
        figures={f"{part}_{name}": value for name, value in figures.items()},
        aims={f"{part}_{name}": aim for name, aim in aims.items()},
        comparisons=comparisons,
        tables={f"Epochs, {part}": Table.from_rows(rows)},
    )


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work, parts=tuple(PARTS))
