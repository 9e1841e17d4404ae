"""Seconds of a training epoch over dgl.distributed's: four or eight hosts, a part of a generated graph on each.

    features    of each vertex, pulled
    rows        of each vertex, learnt by Adagrad, and no features: DGL's DistEmbedding, with SparseAdagrad and, as its
                guide has it, SparseAdam; ours an EmbeddingCollection. A quarter of the vertices and half of the seeds
                of "features", at one rate: half an hour
    waits       the features, 512 in fp16, of `salient.py`'s waits on eight hosts, at the rate of links found there; no
                model: a step waits instead, as for an accelerator that uses no core of these
    typed       of papers, authors and venues (`typed_graphs.py`'s), two layers of R-GCN; each side cuts it by METIS

    python benchmarks/dgl_distributed.py [--short] [--only PART]

Same graph with communities, partition, seeds of each host and step, fanouts, model (three layers of GraphSAGE with the
mean, from the same first weights), optimiser, hosts and cores; every process computes with one thread. DGL keeps a
part's topology on its host alone, so that its samplers ask other hosts too; ours keeps all of it everywhere, or as
a variant of its own asks as well. DGL trains as in its guide (`benchmarks/harness/dgl_peer.py`); the bytes counted on
the links show that messages cross them. Tried are more servers and sampler processes, both network types, and rows
pulled by the trainer (as the guide does) or ahead of it by sampler processes; the fastest at a rate is the baseline
there. The first epoch of every job is left out. Published for SALIENT++ over DistDGL on 8 machines: 12.7x (Kaler et
al., MLSys 2023); their GPUs computed faster, so that the network counted for more: what waits are for. The short
version has a tenth to a quarter of the vertices and tries less.
"""

import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks import salient
from benchmarks.harness.dgl_peer import (
    Peer,
    bytes_received,
    train_beside_servers,
    write_dgl_partition,
    write_typed_partition,
)
from benchmarks.harness.power_law import power_law_communities
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Comparison, Findings, Measurement, Table
from windrow.comm.connect import connect
from windrow.comm.process import keep_freed_memory
from windrow.comm.world import World
from windrow.gnn.graph import Graph
from windrow.gnn.models import ModelOptions
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.partitioning import graph_to_store
from windrow.gnn.synthetic import typed_community_graph
from windrow.launch.recipe import make_recipe
from windrow.launch.training import make_trainer
from windrow.partition.options import PartitionOptions
from windrow.partition.store import PartitionStore
from windrow.training.trainer import Trainer

FANOUTS = (15, 10, 5)
FEATURES = 128
CLASSES = 16
MODEL = ModelOptions(kind="graphsage", hidden=256, num_layers=len(FANOUTS), dropout=0.5)
TYPED_FANOUTS = (10, 10)
TYPED_FEATURES, TYPED_CLASSES = 16, 8
TYPED_MODEL = ModelOptions(kind="rgcn", hidden=128, num_layers=len(TYPED_FANOUTS))
LEARNING_RATE = 0.003
SEED = 7
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
RATE, OTHER_RATES = "1gbit", ("100mbit", salient.FASTEST)
RATE_OF_WAITS = "30mbit"
"""At which `salient.py --only waits`, in short, takes about as long as published without pipeline and cache."""
WINDROW, PARTED, PLAIN = "windrow", "windrow, topology partitioned", "windrow, no cache, no pipeline"
INT8 = f"{WINDROW}, rows in int8"
CACHE = {"alpha": 0.32, "policy": "vip"}
OURS: dict[str, dict[str, Any]] = {
    WINDROW: {"cache": CACHE, "pipeline": {"depth": 4}},
    PARTED: {"cache": CACHE, "pipeline": {"depth": 4, "topology": "partitioned"}},
    PLAIN: {"cache": {"alpha": 0.0}, "pipeline": {"depth": 0}},
    INT8: {"cache": CACHE, "pipeline": {"depth": 4}, "wire": {"vectors": "int8", "gradients": "int8"}},
}
NOT_OF = {"features": (INT8,), "typed": (INT8, PARTED), "rows": ()}
INT4 = f"{WINDROW}, replies in int4"
WAITING = {WINDROW: salient.FINAL, INT4: salient.FEW_BITS["int4"], PLAIN: salient.FIRST}
"""Ours where steps wait: `salient.py`'s."""
KEYS = {WINDROW: "cached", PARTED: "partitioned", INT4: "int4", PLAIN: "plain", INT8: "int8"}
"""Of figures."""
ROW_RATE = 0.05
OVER_DGL = {"rows": 5.3, "waits": 12.7}
"""The best published margins over DGL: with rows that are learnt, and of SALIENT++."""
PARTS = ("features", "rows", "waits", "typed")


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large everything is."""

    hosts: int = 4
    vertices: int
    edges: int
    communities: int
    seeds_per_host: int
    """Of a step."""
    epochs: int
    """Of a job; the first is not counted."""
    rounds: int
    """Jobs of each variant."""


FULL_ROWS = Scale(vertices=250_000, edges=5_000_000, communities=125, seeds_per_host=256, epochs=3, rounds=1)
FULL_SCALE = Scale(vertices=1_000_000, edges=20_000_000, communities=500, seeds_per_host=512, epochs=2, rounds=1)
SHORT_SCALE = Scale(vertices=100_000, edges=1_500_000, communities=100, seeds_per_host=128, epochs=3, rounds=1)


def scale_of(part: str, *, short: bool) -> Scale:
    """Of a part."""
    if part == "typed":
        return replace(SHORT_SCALE, vertices=25_000 if short else 200_000, seeds_per_host=256)
    if part == "rows" and not short:
        return FULL_ROWS
    if part != "waits":
        return SHORT_SCALE if short else FULL_SCALE
    waits = salient.SCALES["waits", short]
    return Scale(
        hosts=waits.hosts,
        vertices=waits.vertices,
        edges=waits.edges,
        communities=waits.communities,
        seeds_per_host=waits.batch_size // waits.hosts,
        epochs=2,
        rounds=1,
    )


PEERS = (
    Peer(),
    Peer(samplers=1, rows="sampler"),
    Peer(samplers=1),
    Peer(samplers=2, rows="sampler"),
    Peer(servers=2),
    Peer(network="tensorpipe"),
)
ADAGRAD = "SparseAdagrad"
PEERS_OF_ROWS = (
    Peer(optimizer=ADAGRAD),
    Peer(optimizer="SparseAdam"),
    Peer(optimizer=ADAGRAD, samplers=1),
    Peer(optimizer=ADAGRAD, samplers=2),
    Peer(optimizer=ADAGRAD, network="tensorpipe"),
)
TRIED = {("features", False): PEERS, ("features", True): PEERS[:2], ("rows", False): PEERS_OF_ROWS}
TRIED["rows", True] = PEERS_OF_ROWS[:2]
TRIED["waits", False], TRIED["waits", True] = PEERS[:3], PEERS[:2]
TRIED["typed", False] = TRIED["typed", True] = tuple(peer for peer in PEERS if peer.rows == "trainer")
"""By part, and whether in short."""

Jobs = dict[str, list[dict[str, float]]]
"""Epochs of each variant: slowest rank's seconds, loss, bytes that came over the links, steps."""


def make_stores(program: Program, part: str, folder: Path) -> dict[str, str]:
    """Generate the graph and split it among the hosts: our store, and DGL's files."""
    store, of_dgl = folder / "store", folder / "dgl"
    scale = scale_of(part, short=program.short)
    options = PartitionOptions(num_parts=scale.hosts, restarts=1, refine_cycles=1)
    if part == "typed":
        graph = typed_community_graph(scale.vertices, TYPED_CLASSES, seed=SEED)
        graph_to_store(graph, store, options)
        return {"store": str(store), "dgl": str(write_typed_partition(graph, scale.hosts, of_dgl))}
    graph = make_graph(program, part, scale)
    graph_to_store(graph, store, options)
    storage = torch.float16 if part == "waits" else torch.float32
    return {"store": str(store), "dgl": str(write_dgl_partition(PartitionStore.open(store), of_dgl, storage=storage))}


def make_graph(program: Program, part: str, scale: Scale) -> Graph:
    """Generate one without types."""
    if part == "waits":
        return salient.make_graph(salient.SCALES[part, program.short])
    return power_law_communities(
        scale.vertices,
        scale.edges,
        seed=SEED,
        num_communities=scale.communities,
        mixing=0.15,
        num_features=FEATURES if part == "features" else 0,
        num_classes=CLASSES,
        train_share=0.04,
    )


def about(program: Program, part: str) -> dict[str, Any]:
    """What both sides are told of a part."""
    scale, is_typed = scale_of(part, short=program.short), part == "typed"
    return {
        "part": part,
        "hosts": scale.hosts,
        "epochs": scale.epochs,
        "seeds_per_host": scale.seeds_per_host,
        "fanouts": TYPED_FANOUTS if is_typed else FANOUTS,
        "model": asdict(TYPED_MODEL if is_typed else MODEL),
        "columns": TYPED_FEATURES if is_typed else FEATURES,
        "outputs": TYPED_CLASSES if is_typed else CLASSES,
        "learning_rate": LEARNING_RATE,
        "row_rate": ROW_RATE,
        "seed": SEED,
        "waits": vars(salient.SCALES[part, program.short]) if part == "waits" else None,
    }


def our_trainer(world: World, task: Mapping[str, Any]) -> Trainer:
    """Of a variant."""
    if task["waits"]:
        exact = PartitionedGraph.open(Path(task["store"]), rank=world.rank, size=world.size)
        name = WAITING[task["variant"]]
        settings_of = {name: salient.SETTINGS[name]}
        scale = salient.Scale(**task["waits"])
        return salient.make_trainers(world, exact.stored_as("fp16"), scale, settings_of, exact=exact)[name]
    settings: dict[str, Any] = {
        "store": task["store"],
        "name": "dgl_distributed",
        "graph": {"path": "generated"},
        "model": dict(task["model"]),
        "sampler": {"fanouts": task["fanouts"], "order": "local"},
        "training": {
            "epochs": task["epochs"],
            "batch_size": task["seeds_per_host"] * task["hosts"],
            "learning_rate": LEARNING_RATE,
        },
        "run": {"seed": SEED},
        **OURS[task["variant"]],
    }
    if task["part"] == "rows":
        settings["model"]["embedding"] = True
        settings["tables"] = {"dim": FEATURES, "optimizer": "adagrad", "learning_rate": ROW_RATE}
    return make_trainer(world, make_recipe(settings, source="dgl_distributed", base=Path()), torch.device("cpu"))


def train_windrow(task: Mapping[str, Any]) -> dict[str, Any]:
    """Be a rank of ours."""
    epochs = []
    with connect("mpi", deadline_s=300) as world:
        trainer = our_trainer(world, task)
        for epoch in range(task["epochs"]):
            world.barrier(stage="start")
            received, start = bytes_received(), time.perf_counter()
            loss = trainer.train_epoch(epoch)
            mine = (time.perf_counter() - start, bytes_received() - received)
            seconds, on_links = zip(*world.all_gather_object(mine, stage="measured"), strict=True)
            epochs.append(
                {"seconds": max(seconds), "loss": loss, "bytes": sum(on_links), "steps": trainer.steps_per_epoch}
            )
        trainer.close()
    return {"epochs": epochs}


def work(task: Mapping[str, Any]) -> object:
    """Be what runs on one host: a rank of ours, or a trainer of DGL with its servers."""
    torch.set_num_threads(1)
    keep_freed_memory()
    if task["peer"] is None:
        return train_windrow(task)
    return train_beside_servers(Path(__file__), task)


def run_jobs(
    program: Program, scale: Scale, task: Mapping[str, Any], ours: Iterable[str], peers: Mapping[str, Peer], rate: str
) -> Jobs:
    """Train every variant in turn, round after round; the epochs that count."""
    names = [*ours, *peers]
    jobs: Jobs = {name: [] for name in names}
    for turn in range(scale.rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            peer = asdict(peers[name]) if name in peers else None
            job = {"variant": name, "peer": peer, **task}
            found = program.on_ranks(scale.hosts, job, rate=rate, environment=ONE_THREAD, deadline_s=3600)
            jobs[name] += found["epochs"][1:]
    return jobs


def fastest(jobs: Jobs, peers: Mapping[str, Peer]) -> str:
    """Which way to run DGL has the smallest median."""
    return min(peers, key=lambda name: median(epoch["seconds"] for epoch in jobs[name]))


def finalists(jobs: Jobs, peers: Mapping[str, Peer]) -> dict[str, Peer]:
    """The fastest without and with sampler processes: what these fetch ahead counts for more on slower links."""
    kinds = [{name: peer for name, peer in peers.items() if (peer.samplers > 0) is has} for has in (False, True)]
    names = [fastest(jobs, kind) for kind in kinds if kind]
    return {name: peers[name] for name in names}


def compared(jobs: Jobs, baseline: str) -> Comparison:
    """The seconds, and the bytes on all links together."""
    variants = {
        name: Measurement(
            seconds=tuple(epoch["seconds"] for epoch in epochs), bytes=round(median(epoch["bytes"] for epoch in epochs))
        )
        for name, epochs in jobs.items()
    }
    return Comparison(baseline=baseline, variants=variants, per="epoch")


def measure(program: Program) -> Findings:
    """What was asked for."""
    return Findings.joined([measure_part(program, part) for part in program.chosen(PARTS, short=1)])


def measure_part(program: Program, part: str) -> Findings:
    """Try everything at one rate, then ours and DGL's fastest at the others."""
    scale = scale_of(part, short=program.short)
    rates: Sequence[str] = (RATE,) if program.short else (RATE, *OTHER_RATES)
    if part == "rows":
        rates = (RATE,)
    if part == "waits":
        ours, rates = list(WAITING), (RATE_OF_WAITS,)
    else:
        ours = [name for name in OURS if name not in NOT_OF[part]]
    peers = {str(peer): peer for peer in TRIED[part, program.short]}
    figures: dict[str, float] = {}
    aims: dict[str, Aim] = {}
    comparisons: dict[str, Comparison] = {}
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="dgl-distributed-") as folder:
        task = about(program, part) | make_stores(program, part, Path(folder))
        for rate in rates:
            jobs = run_jobs(program, scale, task, ours, peers, rate)
            best = fastest(jobs, peers)
            peers = finalists(jobs, peers)
            found = compared(jobs, best)
            comparisons[f"{part}, {scale.hosts} hosts at {rate}"] = found
            for name, epochs in jobs.items():
                last = epochs[-1]
                rows.append(
                    {
                        "vertices": part,
                        "links": rate,
                        "variant": name,
                        "steps": last["steps"],
                        "last loss, nats": last["loss"],
                    }
                )
            for name in ours:
                key = f"{part}_{rate}_{KEYS[name]}"
                figures[f"{key}_epoch_seconds"] = found.variants[name].median_s
                figures[f"{key}_over_dgl_ratio"] = found.ratio(name).median
            figures[f"{part}_{rate}_dgl_epoch_seconds"] = found.variants[best].median_s
            over = found.ratio(WINDROW)
            aims[f"{part}_{rate}_faster"] = Aim(
                f"{part}, {rate}: faster than every way to run dgl.distributed", over.low > 1
            )
            if part in OVER_DGL:
                aims[f"{part}_{rate}_ratio"] = Aim(
                    f"{part}, {rate}: {OVER_DGL[part]:g} times as fast as its fastest way",
                    over.median >= OVER_DGL[part],
                )
    tables = {f"What was learnt, {part}": Table.from_rows(rows)}
    return Findings(figures=figures, aims=aims, comparisons=comparisons, tables=tables)


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work, parts=PARTS)
