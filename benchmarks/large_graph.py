"""A graph of 10 million vertices from generation to training, on 2 ranks of one machine, within 20 GB of memory.

    python benchmarks/large_graph.py [--short]

One process generates the graph, partitions it by streaming, orders the vertices of each part by how likely minibatches
need them, and writes the store. Then two ranks open it, compute which remote rows to keep, and train 50 steps of
GraphSAGE. Memory is what the processes of a stage hold together at most: a page that both ranks have mapped counts
once; the highest values of the two are added even where they were reached at different times. Files that the system
keeps for later use are not counted. Seconds are those of the slower rank. --short: 1 million vertices.
"""

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.memory import MemoryWatch
from benchmarks.harness.power_law import power_law_communities
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table
from windrow.caching.selection import cache_capacity, choose_cached
from windrow.caching.vip import inclusion_probabilities
from windrow.comm.connect import connect
from windrow.comm.meter import Meter
from windrow.gnn.cache_choice import demand_of
from windrow.gnn.models import ModelOptions, build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.partitioning import graph_to_store
from windrow.gnn.sampler import SamplerOptions
from windrow.gnn.task import NodeTask, TrainingOptions
from windrow.partition import PartitionOptions
from windrow.training.terminal import Progress
from windrow.training.trainer import Trainer

RANKS = 2
VERTICES, SHORT_VERTICES = 10_000_000, 1_000_000
EDGES_PER_VERTEX = 20
"""Stored edges, so that 10 million vertices have 100 million undirected edges."""
VERTICES_PER_COMMUNITY = 5_000
"""Of a mean community."""
MIXING = 0.15
FEATURES = 32
HIDDEN = 64
FANOUTS = (15, 10, 5)
BATCH_SIZE = 1024
STEPS = 50
ALPHA = 0.16
"""Remote rows that a rank keeps, as a share of its own."""
SEED = 7
AIM_BYTES = 20e9
DEADLINE_S = 3600.0

STAGE_OF_STEP = {
    "streaming": "partition",
    "ordering": "order vertices",
    "writing": "write store",
    "checksums": "write store",
    "done": "write store",
}
"""First word of what `graph_to_store` reports -> stage that it is part of."""

Stage = dict[str, Any]
"""Name, seconds and bytes of one stage."""


def measure(program: Program) -> Findings:
    """Make the store in one process, train on it in two."""
    num_vertices = SHORT_VERTICES if program.short else VERTICES
    with tempfile.TemporaryDirectory() as folder:
        task = {"store": str(Path(folder) / "store"), "vertices": num_vertices}
        # Streaming is sequential; what can, uses all cores.
        built = program.in_process({**task, "do": "build"}, threads=os.cpu_count() or 1, deadline_s=DEADLINE_S)
        trained = program.on_ranks(
            RANKS, {**task, "do": "train"}, environment={"OMP_NUM_THREADS": "1"}, deadline_s=DEADLINE_S
        )
    stages: list[Stage] = [*built["stages"], *trained["stages"]]
    peak_bytes = max(stage["bytes"] for stage in stages)
    rows = [
        {
            "stage": stage["name"],
            "processes": stage["processes"],
            "seconds": round(stage["seconds"], 2),
            "memory, GB": round(stage["bytes"] / 1e9, 2),
        }
        for stage in stages
    ]
    figures = {f"{stage['name'].replace(' ', '_')}_seconds": stage["seconds"] for stage in stages}
    figures |= {"peak_memory_gigabytes": peak_bytes / 1e9, **trained["figures"]}
    title = f"{num_vertices:,} vertices, {num_vertices * EDGES_PER_VERTEX:,} stored edges, {RANKS} ranks"
    fits = Aim(f"from generation to training in {AIM_BYTES / 1e9:g} GB of memory", met=peak_bytes <= AIM_BYTES)
    return Findings(figures=figures, aims={"memory": fits}, tables={title: Table.from_rows(rows)})


def work(task: Mapping[str, Any]) -> dict[str, Any]:
    """Do one of both halves."""
    with MemoryWatch() as watch:
        return build(task, watch) if task["do"] == "build" else train(task, watch)


def build(task: Mapping[str, Any], watch: MemoryWatch) -> dict[str, Any]:
    """Generate the graph and write its store."""
    stages = Stages(watch)
    num_vertices = task["vertices"]
    with stages.stage("generate"):
        graph = power_law_communities(
            num_vertices,
            num_vertices * EDGES_PER_VERTEX,
            seed=SEED,
            num_communities=num_vertices // VERTICES_PER_COMMUNITY,
            mixing=MIXING,
            num_features=FEATURES,
            train_share=STEPS * BATCH_SIZE / num_vertices,
        )
    with stages.stage("partition"):
        graph_to_store(
            graph,
            Path(task["store"]),
            PartitionOptions(num_parts=RANKS, method="fennel", order="vip"),
            sampler=SamplerOptions(fanouts=FANOUTS),
            training=TrainingOptions(batch_size=BATCH_SIZE),
            progress=stages,
        )
    return {"stages": [{**stage, "processes": 1} for stage in stages.done]}


def train(task: Mapping[str, Any], watch: MemoryWatch) -> dict[str, Any]:
    """Train on the store, with the rows that the analysis says are worth keeping; called on each rank."""
    torch.set_num_threads(1)
    stages = Stages(watch)
    with connect("mpi", deadline_s=DEADLINE_S) as world:
        with stages.stage("open store"):
            graph = PartitionedGraph.open(Path(task["store"]), rank=world.rank, size=world.size)
            world.barrier(stage="open")
        with stages.stage("rank remote rows"):
            demand = demand_of(graph, world.rank, FANOUTS, STEPS)
            needed = inclusion_probabilities(demand)[-1]
            capacity = cache_capacity(ALPHA, graph.num_vertices, world.size)
            cached = choose_cached(needed, graph.own_range)[:capacity]
            missing = needed.copy()
            missing[slice(*graph.own_range)] = 0
            remote = float(missing.sum()) * STEPS
            missing[cached] = 0
            expected = float(missing.sum()) * STEPS
            del needed, missing
            world.barrier(stage="ranked")
        with stages.stage("fill cache"):
            model = build_model(
                ModelOptions(kind="graphsage", hidden=HIDDEN, num_layers=len(FANOUTS)),
                in_features=graph.features.shape[1],
                out_features=graph.num_outputs,
                seed=SEED,
            )
            nodes = NodeTask(graph, FANOUTS, cached_ids=torch.from_numpy(cached))
            trainer = Trainer(world, model, nodes, epochs=1, batch_size=BATCH_SIZE, seed=SEED)
            assert trainer.steps_per_epoch == STEPS
            world.barrier(stage="filled")
        world.meter = meter = Meter()
        with stages.stage(f"train {STEPS} steps"):
            loss = trainer.train_epoch(0)
            world.barrier(stage="trained")
        found = meter.found()
        world.meter = None
        trainer.close()
        rows = {
            "expected": expected,
            "expected without a cache": remote,
            "remote": found.remote,
            "cached": found.cached,
        }
        mine: dict[str, Any] = {"stages": stages.done, "rows": rows}
        ranks = world.gather_object(mine, root=0, stage="findings")
    if world.rank != 0:
        return {}
    together = [
        {
            "name": same[0]["name"],
            "processes": len(same),
            "seconds": max(stage["seconds"] for stage in same),
            "bytes": sum(stage["bytes"] for stage in same),
        }
        for same in zip(*(rank["stages"] for rank in ranks), strict=True)
    ]
    total = {key: sum(rank["rows"][key] for rank in ranks) for key in ranks[0]["rows"]}
    return {
        "stages": together,
        "figures": {
            "expected_remote_rows_without_cache": total["expected without a cache"],
            "expected_remote_rows": total["expected"],
            "remote_rows": total["remote"],
            "expected_over_measured_remote_rows": total["expected"] / max(total["remote"], 1),
            "remote_rows_saved_share": total["cached"] / max(total["cached"] + total["remote"], 1),
            "training_loss": loss,
        },
    }


class Stages(Progress):
    """Seconds and memory of one stage after another; stages of the library that report progress count as such."""

    def __init__(self, watch: MemoryWatch) -> None:
        """Begin with none."""
        self.done: list[Stage] = []
        self._watch = watch
        self._name = ""
        self._start = 0.0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure what happens inside."""
        self.start(name, 1)
        yield
        self.finish()

    def start(self, what: str, total: int) -> None:  # noqa: ARG002  # the name is that of a protocol
        """End the stage before and begin the next, unless both are steps of one."""
        name = STAGE_OF_STEP.get(what.partition(" ")[0], what)
        if name == self._name:
            return
        self.finish()
        self._name, self._start = name, time.perf_counter()
        self._watch.take_peak_bytes()

    def finish(self) -> None:
        """End the stage, if one is under way."""
        if self._name:
            seconds, peak_bytes = time.perf_counter() - self._start, self._watch.take_peak_bytes()
            self.done.append({"name": self._name, "seconds": seconds, "bytes": peak_bytes})
            print(f"{self._name}: {seconds:.2f} s, {peak_bytes / 1e9:.2f} GB", flush=True)
        self._name = ""

    def write(self, line: str) -> None:
        """Show what the library says."""
        print(line, flush=True)


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work, ranks=True)
