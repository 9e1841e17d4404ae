"""A large graph from generation to training, on several ranks of one machine.

    cached         10 million vertices, 200 million stored edges, 2 ranks, within 20 GB of memory
    partitioned    100 million vertices, a thousand million stored edges, 4 ranks that sample together, each within 5 GB

    python benchmarks/large_graph.py [--short] [--only cached | partitioned]

One process generates the graph. Of the first it also makes the store: by streaming, vertices of a part in the order of
how likely minibatches need them. The second it writes to Parquet, and the ranks partition that, none with the whole
graph. Then the ranks open the store, compute which remote rows to keep (cached), and train 50 steps of GraphSAGE. Those
that sample together read the neighbour lists of their own part alone (``pipeline.topology``), keep no rows of others,
and read none in shared memory, as if each had a machine of its own.
Memory is what the processes of a stage hold together at most: a page that several ranks have mapped counts once; the
highest values of the ranks are added even where they were reached at different times. What the largest rank held at
most, mapped pages counted in full, is a figure. Files that the system keeps for later use are not counted. Seconds are
those of the slowest rank. --short: 1 and 2 million vertices.
"""

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness.memory import MemoryWatch, peak_memory_bytes
from benchmarks.harness.power_law import power_law_communities
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table
from windrow.caching.selection import CacheOptions, cache_capacity, choose_cached
from windrow.caching.vip import inclusion_probabilities
from windrow.comm.connect import connect
from windrow.comm.meter import Meter
from windrow.gnn.cache_choice import demand_of
from windrow.gnn.distributed_partitioning import partition_to_store_on_ranks
from windrow.gnn.graph import Graph
from windrow.gnn.models import ModelOptions, build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.partitioning import PartitionJob, graph_to_store
from windrow.gnn.pipeline import PipelineOptions
from windrow.gnn.readers import EdgeListOptions, GraphOptions
from windrow.gnn.sampler import SamplerOptions
from windrow.gnn.task import NodeTask, TrainingOptions
from windrow.partition import PartitionOptions
from windrow.training.terminal import Progress
from windrow.training.trainer import Trainer

CACHED, PARTITIONED = PARTS = ("cached", "partitioned")
VERTICES_PER_COMMUNITY = 5_000
"""Of a mean community."""
MIXING = 0.15
HIDDEN = 64
FANOUTS = (15, 10, 5)
BATCH_SIZE = 1024
STEPS = 50
ALPHA = 0.16
"""Remote rows that a rank keeps, as a share of its own."""
SEED = 7
ROWS_AT_ONCE = 1 << 20
"""Vertices, and their edges, that are written to files."""
DEADLINE_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large everything is."""

    vertices: int
    vertices_in_short: int
    edges_per_vertex: int
    """Stored ones: each undirected edge is two."""
    features: int
    ranks: int
    aim: tuple[str, float]
    """What is to fit into so many bytes."""


SCALES = {
    CACHED: Scale(
        vertices=10_000_000,
        vertices_in_short=1_000_000,
        edges_per_vertex=20,
        features=32,
        ranks=2,
        aim=("from generation to training in {:g} GB of memory", 20e9),
    ),
    PARTITIONED: Scale(
        vertices=100_000_000,
        vertices_in_short=2_000_000,
        edges_per_vertex=10,
        features=8,
        ranks=4,
        aim=("each rank in {:g} GB of memory", 5e9),
    ),
}

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
    """What was asked for."""
    return Findings.joined([measure_part(program, part) for part in program.chosen(PARTS, short=2)])


def measure_part(program: Program, part: str) -> Findings:
    """Make the graph in one process, or its store; partition it in several, and train."""
    scale = SCALES[part]
    num_vertices = scale.vertices_in_short if program.short else scale.vertices
    with tempfile.TemporaryDirectory() as folder:
        task = {"part": part, "folder": folder, "vertices": num_vertices}
        # Streaming is sequential; what can, uses all cores.
        built = program.in_process({**task, "do": "build"}, threads=os.cpu_count() or 1, deadline_s=DEADLINE_S)
        on_ranks = [
            program.on_ranks(
                scale.ranks, {**task, "do": do}, environment={"OMP_NUM_THREADS": "1"}, deadline_s=DEADLINE_S
            )
            for do in (["train"] if part == CACHED else ["partition", "train"])
        ]
    stages: list[Stage] = [stage for some in (built, *on_ranks) for stage in some["stages"]]
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
    figures |= {"peak_memory_gigabytes": peak_bytes / 1e9}
    for some in on_ranks:
        figures |= some["figures"]
    title = f"{num_vertices:,} vertices, {num_vertices * scale.edges_per_vertex:,} stored edges, {scale.ranks} ranks"
    what, aimed = scale.aim
    largest = [value for name, value in figures.items() if name.endswith("largest_rank_gigabytes")]
    held = peak_bytes if part == CACHED else 1e9 * max(largest)
    return Findings(
        figures={f"{part}_{name}": value for name, value in figures.items()},
        aims={f"{part}_memory": Aim(what.format(aimed / 1e9), met=held <= aimed)},
        tables={title: Table.from_rows(rows)},
    )


def work(task: Mapping[str, Any]) -> dict[str, Any]:
    """Do one step of it."""
    with MemoryWatch() as watch:
        return {"build": build, "partition": partition, "train": train}[task["do"]](task, watch)


def build(task: Mapping[str, Any], watch: MemoryWatch) -> dict[str, Any]:
    """Generate the graph, and write its store, or the files that ranks partition."""
    stages = Stages(watch)
    num_vertices, scale = task["vertices"], SCALES[task["part"]]
    with stages.stage("generate"):
        graph = power_law_communities(
            num_vertices,
            num_vertices * scale.edges_per_vertex,
            seed=SEED,
            num_communities=num_vertices // VERTICES_PER_COMMUNITY,
            mixing=MIXING,
            num_features=scale.features,
            train_share=STEPS * BATCH_SIZE / num_vertices,
        )
    if task["part"] == PARTITIONED:
        with stages.stage("write files"):
            write_files(graph, Path(task["folder"]))
    else:
        with stages.stage("partition"):
            graph_to_store(
                graph,
                Path(task["folder"]) / "store",
                PartitionOptions(num_parts=scale.ranks, method="fennel"),
                sampler=SamplerOptions(fanouts=FANOUTS),
                training=TrainingOptions(batch_size=BATCH_SIZE),
                progress=stages,
            )
    return {"stages": [{**stage, "processes": 1} for stage in stages.done]}


def write_files(graph: Graph, folder: Path) -> None:
    """Write an edge list and a vertex file (Parquet), each undirected edge once."""
    import pyarrow as pa
    from pyarrow import parquet

    split = np.full(graph.num_vertices, "", dtype="U5")
    split[graph.train_ids.numpy()] = "train"
    assert graph.features is not None
    assert graph.labels is not None
    edges, vertices = pa.schema({"from": pa.int32(), "to": pa.int32()}), None
    with parquet.ParquetWriter(folder / "edges.parquet", edges) as file:
        for start in range(0, graph.num_vertices, ROWS_AT_ONCE):
            bounds = graph.indptr[start : start + ROWS_AT_ONCE + 1]
            sources = graph.indices[int(bounds[0]) : int(bounds[-1])]
            destinations = torch.arange(start, start + len(bounds) - 1).repeat_interleave(bounds.diff())
            once = sources < destinations
            ends = sources[once].int(), destinations[once].int()
            file.write_table(pa.table(dict(zip(edges.names, map(torch.Tensor.numpy, ends), strict=True))))
    for start in range(0, graph.num_vertices, ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        table = pa.table(
            {f"x{place}": column.numpy() for place, column in enumerate(graph.features[rows].float().T.contiguous())}
            | {"class": graph.labels[rows].numpy(), "split": split[rows]}
        )
        vertices = vertices or parquet.ParquetWriter(folder / "vertices.parquet", table.schema)
        vertices.write_table(table)
    assert vertices is not None
    vertices.close()


def partition(task: Mapping[str, Any], watch: MemoryWatch) -> dict[str, Any]:
    """Make the store of the files, by all ranks; called on each."""
    torch.set_num_threads(1)
    folder, stages = Path(task["folder"]), Stages(watch)
    columns = EdgeListOptions(
        vertex_file=str(folder / "vertices.parquet"), label_columns=("class",), split_column="split"
    )
    job = PartitionJob(
        store=folder / "store",
        graph=GraphOptions(path=str(folder / "edges.parquet"), edge_list=columns),
        partition=PartitionOptions(num_parts=SCALES[task["part"]].ranks, method="fennel", order="original"),
    )
    with connect("mpi", deadline_s=DEADLINE_S, keep_memory=False) as world:  # as `windrow partition` does
        with stages.stage("partition"):
            quality = partition_to_store_on_ranks(job, world)
        ranks = world.gather_object(
            {"stages": stages.done, "bytes": peak_memory_bytes() or 0}, root=0, stage="findings"
        )
    if world.rank != 0:
        return {}
    figures = {"cut_share": quality.cut_fraction} | largest_rank(ranks, "partition")
    return {"stages": together(ranks), "figures": figures}


def largest_rank(ranks: Sequence[Mapping[str, Any]], what: str) -> dict[str, float]:
    """The figure of the rank that held most."""
    return {f"{what}_largest_rank_gigabytes": max(rank["bytes"] for rank in ranks) / 1e9}


def together(ranks: Sequence[Mapping[str, Any]]) -> list[Stage]:
    """What the stages of the ranks were: the seconds of the slowest, and the memory of all."""
    return [
        {
            "name": same[0]["name"],
            "processes": len(same),
            "seconds": max(stage["seconds"] for stage in same),
            "bytes": sum(stage["bytes"] for stage in same),
        }
        for same in zip(*(rank["stages"] for rank in ranks), strict=True)
    ]


def train(task: Mapping[str, Any], watch: MemoryWatch) -> dict[str, Any]:
    """Train on the store, with the rows that the analysis says are worth keeping; called on each rank."""
    torch.set_num_threads(1)
    stages = Stages(watch)
    is_cached = task["part"] == CACHED
    cached, remote, expected = np.empty(0, np.int64), 0.0, 0.0
    with connect("mpi", deadline_s=DEADLINE_S) as world:
        with stages.stage("open store"):
            graph = PartitionedGraph.open(Path(task["folder"]) / "store", rank=world.rank, size=world.size)
            world.barrier(stage="open")
        if is_cached:
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
        with stages.stage("fill cache" if is_cached else "make trainer"):
            model = build_model(
                ModelOptions(kind="graphsage", hidden=HIDDEN, num_layers=len(FANOUTS)),
                in_features=graph.features.shape[1],
                out_features=graph.num_outputs,
                seed=SEED,
            )
            nodes = NodeTask(
                graph,
                FANOUTS,
                cached_ids=torch.from_numpy(cached),
                cache=CacheOptions(shared_memory=is_cached),
                pipeline=PipelineOptions(topology="replicated" if is_cached else "partitioned"),
            )
            trainer = Trainer(world, model, nodes, epochs=1, batch_size=BATCH_SIZE, seed=SEED)
            assert trainer.steps_per_epoch == STEPS
            world.barrier(stage="filled")
        world.meter = meter = Meter()
        with stages.stage(f"train {STEPS} steps"):
            loss = trainer.train_epoch(0)
            world.barrier(stage="trained")
        found, neighbours = meter.found(), meter.totals("neighbours").bytes_received
        world.meter = None
        trainer.close()
        rows = {
            "expected": expected,
            "expected without a cache": remote,
            "remote": found.remote,
            "cached": found.cached,
            "bytes of neighbours": neighbours,
        }
        mine: dict[str, Any] = {"stages": stages.done, "rows": rows, "bytes": peak_memory_bytes() or 0}
        ranks = world.gather_object(mine, root=0, stage="findings")
    if world.rank != 0:
        return {}
    total = {key: sum(rank["rows"][key] for rank in ranks) for key in ranks[0]["rows"]}
    figures = {"remote_rows": total["remote"], "training_loss": loss} | largest_rank(ranks, "training")
    if is_cached:
        figures |= {
            "expected_remote_rows_without_cache": total["expected without a cache"],
            "expected_remote_rows": total["expected"],
            "expected_over_measured_remote_rows": total["expected"] / max(total["remote"], 1),
            "remote_rows_saved_share": total["cached"] / max(total["cached"] + total["remote"], 1),
        }
    else:
        figures["neighbours_megabytes"] = total["bytes of neighbours"] / 1e6
    return {"stages": together(ranks), "figures": figures}


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
    run_benchmark(__file__, __doc__, measure, work=work, ranks=True, parts=PARTS)
