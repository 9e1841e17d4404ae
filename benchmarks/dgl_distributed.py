"""Seconds of a training epoch over dgl.distributed's: four or eight hosts, a part of a generated graph on each.

    features    of each vertex, pulled
    rows        of each vertex, learnt by Adagrad, and no features: DGL's DistEmbedding, with SparseAdagrad and, as its
                guide has it, SparseAdam; ours an EmbeddingCollection
    waits       the features, 512 in fp16, of `salient.py`'s waits on eight hosts, at the rate of links found there; no
                model: a step waits instead, as for an accelerator that uses no core of these

    python benchmarks/dgl_distributed.py [--short] [--only features | rows | waits]

Same graph with communities, partition, seeds of each host and step, fanouts, model (three layers of GraphSAGE with the
mean, from the same first weights), optimiser, hosts and cores; every process computes with one thread. DGL keeps a
part's topology on its host alone, so that its samplers ask other hosts too; ours keeps all of it everywhere, or as
a variant of its own asks as well. DGL's
loop is the one of its guide: `DistNodeDataLoader`, `DistGraph`, `DistributedDataParallel` with gloo, and on each host
a server with the part in shared memory. Its launch script needs ssh to real machines, so mpirun starts what that would
start, with the variables that it sets; the bytes counted on the links show that messages cross them. Tried are more
servers and sampler processes, both network types, and rows pulled by the trainer (as the guide does) or ahead of it by
sampler processes; the fastest at a rate is the baseline there. The first epoch of every job is left out. Published for
SALIENT++ over DistDGL on 8 machines: 12.7x (Kaler et al., MLSys 2023); their GPUs computed faster, so that the network
counted for more: what waits are for. The short version has a tenth or a quarter of the vertices and tries less.
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import salient
from benchmarks.emulated_cluster.network import CLUSTER_VARIABLE, INTERFACE, host_address
from benchmarks.harness.power_law import power_law_communities
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Comparison, Findings, Measurement, Table
from benchmarks.harness.timed_wait import TimedWait
from benchmarks.harness.workers import worker_command
from windrow.comm.connect import connect
from windrow.comm.launcher import launched_rank
from windrow.comm.world import World
from windrow.gnn.models import ModelOptions, build_model
from windrow.gnn.partitioned import PartitionedGraph, stored_features
from windrow.gnn.partitioning import graph_to_store
from windrow.launch.rank_process import GRAPH_SHAPES, keep_freed_memory, keep_shapes
from windrow.launch.recipe import make_recipe
from windrow.launch.training import make_trainer
from windrow.partition.options import PartitionOptions
from windrow.partition.store import PartitionStore
from windrow.training.trainer import Trainer

FANOUTS = (15, 10, 5)
FEATURES = 128
CLASSES = 16
MODEL = ModelOptions(kind="graphsage", hidden=256, num_layers=len(FANOUTS), dropout=0.5)
LEARNING_RATE = 0.003
SEED = 7
GRAPH_NAME = "communities"
DGL_NAMES = {
    "fc_self.weight": "self_linear.weight",
    "fc_self.bias": "self_linear.bias",
    "fc_neigh.weight": "neighbor_linear.weight",
}
"""DGL's parameter -> ours."""
SERVER_PORT = 30050
GRADIENT_PORT = 29500
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
END_S = 120.0
"""Seconds that a server may take to end after its last client."""
RATE, OTHER_RATES = "1gbit", ("100mbit", "10gbit")
RATE_OF_WAITS = {False: "17mbit", True: "17mbit"}
"""At which `salient.py --only waits`, in full and in short, takes as long as published without pipeline and cache."""
WINDROW, PARTED, PLAIN = "windrow", "windrow, topology partitioned", "windrow, no cache, no pipeline"
CACHE = {"alpha": 0.32, "policy": "vip"}
OURS: dict[str, dict[str, Any]] = {
    WINDROW: {"cache": CACHE, "pipeline": {"depth": 4}},
    PARTED: {"cache": CACHE, "pipeline": {"depth": 4, "topology": "partitioned"}},
    PLAIN: {"cache": {"alpha": 0.0}, "pipeline": {"depth": 0}},
}
INT4 = f"{WINDROW}, replies in int4"
WAITING = {WINDROW: salient.FINAL, INT4: salient.FEW_BITS["int4"], PLAIN: salient.FIRST}
"""Ours where steps wait: `salient.py`'s."""
KEYS = {WINDROW: "cached", PARTED: "partitioned", INT4: "int4", PLAIN: "plain"}
"""Of figures."""
ROW_RATE = 0.05
OVER_DGL = {"rows": 5.3, "waits": 12.7}
"""The best published margins over DGL: with rows that are learnt, and of SALIENT++."""
PARTS = ("features", "rows", "waits")


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


FULL_SCALE = Scale(vertices=1_000_000, edges=20_000_000, communities=500, seeds_per_host=512, epochs=2, rounds=1)
SHORT_SCALE = Scale(vertices=100_000, edges=1_500_000, communities=100, seeds_per_host=128, epochs=3, rounds=1)


def scale_of(part: str, *, short: bool) -> Scale:
    """Of a part."""
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


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One way to run dgl.distributed."""

    servers: int = 1
    """Server processes of a host; those after the first share its memory."""
    samplers: int = 0
    """Sampler processes of a trainer; 0: it samples itself, between steps."""
    network: str = "socket"
    """DGL's own sockets, or "tensorpipe"."""
    rows: str = "trainer"
    """Which process pulls the features; rows that are learnt the trainer alone does."""
    optimizer: str = ""
    """Of rows that are learnt."""

    def __str__(self) -> str:
        rows = self.optimizer or f"rows by {self.rows}"
        return f"DGL, {self.servers} server(s), {self.samplers} sampler(s), {self.network}, {rows}"


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
    Peer(optimizer=ADAGRAD, servers=2),
    Peer(optimizer=ADAGRAD, network="tensorpipe"),
)
TRIED = {("features", False): PEERS, ("features", True): PEERS[:2], ("rows", False): PEERS_OF_ROWS}
TRIED["rows", True] = PEERS_OF_ROWS[:2]
TRIED["waits", False], TRIED["waits", True] = PEERS[:3], PEERS[:2]
"""By part, and whether in short."""

Jobs = dict[str, list[dict[str, float]]]
"""Epochs of each variant: slowest rank's seconds, loss, bytes that came over the links, steps."""


def make_store(program: Program, part: str, path: Path) -> PartitionStore:
    """Generate the graph and split it among the hosts."""
    if part == "waits":
        waits = salient.SCALES[part, program.short]
        graph_to_store(salient.make_graph(waits), path, salient.partition_options(waits.hosts))
        return PartitionStore.open(path)
    scale = scale_of(part, short=program.short)
    graph = power_law_communities(
        scale.vertices,
        scale.edges,
        seed=SEED,
        num_communities=scale.communities,
        mixing=0.15,
        num_features=FEATURES if part == "features" else 0,
        num_classes=CLASSES,
        train_share=0.04,
    )
    graph_to_store(graph, path, PartitionOptions(num_parts=scale.hosts, restarts=1, refine_cycles=1))
    return PartitionStore.open(path)


def write_dgl_partition(store: PartitionStore, folder: Path, *, storage: torch.dtype) -> Path:
    """Write the files that `dgl.distributed.partition_graph` would, for a partition that exists.

    A part's graph has the part's vertices first, then the sources of their in-edges that other parts own; an edge
    belongs to the part of its destination. Both kinds of ids are contiguous inside a part already.

    Args:
        store: a partitioned graph.
        folder: where to write.
        storage: of features.

    Returns:
        The configuration file that DGL's servers read.
    """
    import dgl
    from dgl.data.utils import save_tensors
    from dgl.distributed.partition import _dump_part_config, _save_graphs

    indptr, indices, labels = (
        torch.from_numpy(np.array(store.shared(name))) for name in ("indptr", "indices", "labels")
    )
    is_trained = torch.zeros(len(indptr) - 1, dtype=torch.uint8)
    is_trained[torch.from_numpy(np.array(store.shared("train_ids")))] = 1
    vertex_type, edge_type = "_N", ("_N", "_E", "_N")
    ranges = [store.book.part_range(part) for part in range(store.book.num_parts)]
    edge_ranges = [(int(indptr[start]), int(indptr[stop])) for start, stop in ranges]
    config: dict[str, Any] = {
        "graph_name": GRAPH_NAME,
        "num_nodes": len(indptr) - 1,
        "num_edges": len(indices),
        "part_method": "given",
        "num_parts": len(ranges),
        "halo_hops": 1,
        "node_map": {vertex_type: [list(pair) for pair in ranges]},
        "edge_map": {edge_type: [list(pair) for pair in edge_ranges]},
        "ntypes": {vertex_type: 0},
        "etypes": {edge_type: 0},
    }
    for part, ((start, stop), (first, last)) in enumerate(zip(ranges, edge_ranges, strict=True)):
        sources = indices[first:last].long()
        is_inner = (sources >= start) & (sources < stop)
        halo, places = sources[~is_inner].unique(return_inverse=True)
        local = sources - start
        local[~is_inner] = places + (stop - start)
        own_indptr = torch.cat([indptr[start : stop + 1] - first, torch.full((len(halo),), last - first)])
        graph = dgl.graph(("csc", (own_indptr, local, torch.empty(0, dtype=torch.int64))))
        graph.ndata[dgl.NID] = torch.cat([torch.arange(start, stop), halo])
        graph.ndata["inner_node"] = (torch.arange(graph.num_nodes()) < stop - start).to(torch.uint8)
        graph.edata[dgl.EID] = torch.arange(first, last)
        graph.edata["inner_edge"] = torch.ones(last - first, dtype=torch.uint8)
        place = folder / f"part{part}"
        place.mkdir(parents=True)
        rows = {"labels": labels[start:stop].clone(), "train_mask": is_trained[start:stop].clone()}
        features = torch.from_numpy(np.array(stored_features(store, part)))
        if features.shape[1]:
            rows["features"] = features.to(storage)
        save_tensors(str(place / "node_feat.dgl"), {f"{vertex_type}/{name}": row for name, row in rows.items()})
        save_tensors(str(place / "edge_feat.dgl"), {})
        _save_graphs(str(place / "graph.dgl"), [graph], formats="csc")
        config[f"part-{part}"] = {
            "node_feats": f"part{part}/node_feat.dgl",
            "edge_feats": f"part{part}/edge_feat.dgl",
            "part_graph": f"part{part}/graph.dgl",
        }
    path = folder / f"{GRAPH_NAME}.json"
    _dump_part_config(str(path), config)
    return path


class DGLGraphSAGE(nn.Module):
    """The same model as a user of DGL writes it, with the first weights of ours."""

    def __init__(self) -> None:
        from dgl.nn import SAGEConv

        super().__init__()
        widths = [FEATURES] + [MODEL.hidden] * (MODEL.num_layers - 1) + [CLASSES]
        self.layers = nn.ModuleList(SAGEConv(a, b, "mean") for a, b in pairwise(widths))
        ours = build_model(MODEL, in_features=FEATURES, out_features=CLASSES, seed=SEED)
        with torch.no_grad():
            for theirs, layer in zip(self.layers, ours.layers, strict=True):
                for to, name in DGL_NAMES.items():
                    theirs.get_parameter(to).copy_(layer.get_parameter(name))

    def forward(self, blocks: list[Any], hidden: Tensor) -> Tensor:
        """Blocks and input rows to logits."""
        for index, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            hidden = layer(block, hidden)
            if index < len(self.layers) - 1:
                hidden = functional.dropout(functional.relu(hidden), MODEL.dropout, self.training)
        return hidden


class DGLWait(TimedWait):
    """A wait over blocks of DGL's."""

    def forward(self, blocks: Any, x: Tensor) -> Tensor:
        """As that of ours."""
        return self.wait(blocks[-1].num_dst_nodes(), x)


@dataclass(frozen=True)
class SampleAndPull:
    """What a sampler process of DGL does for a minibatch, where it pulls the rows as well."""

    graph: Any
    """A `dgl.distributed.DistGraph`, which finds its servers again in the process that it is sent to."""
    sampler: Any

    def __call__(self, seeds: list[int]) -> tuple[list[Any], Tensor, Tensor]:
        """Ids of seeds to blocks, input rows and labels."""
        inputs, outputs, blocks = self.sampler.sample_blocks(self.graph, torch.tensor(seeds))
        return blocks, self.graph.ndata["features"][inputs], self.graph.ndata["labels"][outputs]


def dgl_minibatches(
    graph: Any, peer: Peer, train_ids: Tensor, batch_size: int, embedding: Any
) -> Callable[[], Iterator[Any]]:
    """What makes an iterator over an epoch's (blocks, rows, labels)."""
    import dgl

    sampler = dgl.dataloading.NeighborSampler(list(FANOUTS[::-1]))
    if peer.rows == "sampler":
        pulled = dgl.distributed.DistDataLoader(
            train_ids, batch_size, shuffle=True, collate_fn=SampleAndPull(graph, sampler)
        )
        return lambda: iter(pulled)
    loader = dgl.dataloading.DistNodeDataLoader(graph, train_ids, sampler, batch_size=batch_size, shuffle=True)
    rows = embedding or graph.ndata["features"].__getitem__

    def pull() -> Iterator[Any]:
        for inputs, outputs, blocks in loader:
            yield blocks, rows(inputs), graph.ndata["labels"][outputs]

    return pull


def small_rows(shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """First values of rows that are learnt, as ours."""
    scale = float(shape[0] ** -0.5)
    return torch.empty(shape, dtype=dtype).uniform_(-scale, scale)


def train_dgl(task: Mapping[str, Any]) -> dict[str, Any]:
    """Be a trainer of dgl.distributed."""
    import dgl

    peer = Peer(**task["peer"])
    dgl.distributed.initialize(os.environ["DGL_IP_CONFIG"], net_type=peer.network)
    torch.distributed.init_process_group("gloo")
    graph = dgl.distributed.DistGraph(GRAPH_NAME)
    train_ids = dgl.distributed.node_split(graph.ndata["train_mask"], graph.get_partition_book())
    embedding, of_rows = None, None
    if peer.optimizer:
        policy = graph.get_node_partition_policy(graph.ntypes[0])
        shape = (graph.num_nodes(), FEATURES)
        embedding = dgl.distributed.DistEmbedding(*shape, "rows", init_func=small_rows, part_policy=policy)
        of_rows = getattr(dgl.distributed.optim, peer.optimizer)([embedding], lr=ROW_RATE)
    minibatches = dgl_minibatches(graph, peer, train_ids, task["seeds_per_host"], embedding)
    net: nn.Module = DGLGraphSAGE()
    if task["waits"]:
        scale = salient.Scale(**task["waits"])
        net = DGLWait(salient.model_of(scale), scale.wait_s, salient.CLASSES)
    model = nn.parallel.DistributedDataParallel(net.train())
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0)
    epochs = []
    for _ in range(task["epochs"]):
        torch.distributed.barrier()
        received, start, total, steps = bytes_received(), time.perf_counter(), 0.0, 0
        for blocks, rows, labels in minibatches():
            loss = functional.cross_entropy(model(blocks, rows), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if of_rows is not None:
                of_rows.step()
            total += loss.item() * len(labels)
            steps += 1
        slowest = torch.tensor(time.perf_counter() - start)
        torch.distributed.all_reduce(slowest, op=torch.distributed.ReduceOp.MAX)
        sums = torch.tensor([total, len(train_ids), bytes_received() - received], dtype=torch.float64)
        torch.distributed.all_reduce(sums)
        epochs.append(
            {"seconds": float(slowest), "loss": float(sums[0] / sums[1]), "bytes": float(sums[2]), "steps": steps}
        )
    torch.distributed.destroy_process_group()
    dgl.distributed.exit_client()
    return {"epochs": epochs}


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
        "model": asdict(MODEL),
        "sampler": {"fanouts": list(FANOUTS), "order": "local"},
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


def bytes_received() -> int:
    """What this host's link has brought so far."""
    return int(Path(f"/sys/class/net/{INTERFACE}/statistics/rx_bytes").read_text())


def work(task: Mapping[str, Any]) -> object:
    """Be what runs on one host: a rank of ours, or a trainer of DGL with its servers."""
    torch.set_num_threads(1)
    keep_freed_memory()
    keep_shapes(GRAPH_SHAPES)
    if task["peer"] is None:
        return train_windrow(task)
    if os.environ.get("DGL_ROLE") == "server":
        import dgl

        dgl.distributed.initialize(os.environ["DGL_IP_CONFIG"], net_type=Peer(**task["peer"]).network)
        return None
    return train_beside_servers(task)


def train_beside_servers(task: Mapping[str, Any]) -> dict[str, Any]:
    """Start the servers of this host, as DGL's launch script would, and train."""
    host, hosts, peer = launched_rank(), task["hosts"], Peer(**task["peer"])
    # All hosts of an emulated cluster see one /dev/shm, where DGL would find another host's graph by its name.
    assert CLUSTER_VARIABLE in os.environ, "this mounts a folder that is to vanish with an emulated cluster"
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=True)
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    addresses = folder / "ip_config.txt"
    addresses.write_text("".join(f"{host_address(number)} {SERVER_PORT}\n" for number in range(hosts)))
    os.environ |= {
        "DGL_DIST_MODE": "distributed",
        "DGL_ROLE": "client",
        "DGL_IP_CONFIG": str(addresses),
        "DGL_CONF_PATH": task["dgl"],
        "DGL_NUM_SERVER": str(peer.servers),
        "DGL_NUM_SAMPLER": str(peer.samplers),
        "DGL_NUM_CLIENT": str(hosts * (1 + peer.samplers)),
        "DGL_GRAPH_FORMAT": "csc",
        "DGL_KEEP_ALIVE": "0",
        "MASTER_ADDR": host_address(0),
        "MASTER_PORT": str(GRADIENT_PORT),
        "RANK": str(host),
        "WORLD_SIZE": str(hosts),
    }
    command = worker_command(Path(__file__), task, folder / "unused.json")
    servers = [
        subprocess.Popen(
            command, env=os.environ | {"DGL_ROLE": "server", "DGL_SERVER_ID": str(host * peer.servers + number)}
        )
        for number in range(peer.servers)
    ]
    found = train_dgl(task)
    for server in servers:
        server.wait(END_S)
    return found


def run_jobs(
    program: Program, scale: Scale, about: Mapping[str, Any], ours: Iterable[str], peers: Mapping[str, Peer], rate: str
) -> Jobs:
    """Train every variant in turn, round after round; the epochs that count."""
    names = [*ours, *peers]
    jobs: Jobs = {name: [] for name in names}
    for turn in range(scale.rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            peer = asdict(peers[name]) if name in peers else None
            settings = {"hosts": scale.hosts, "epochs": scale.epochs, "seeds_per_host": scale.seeds_per_host}
            task = {"variant": name, "peer": peer, **settings, **about}
            found = program.on_ranks(scale.hosts, task, rate=rate, environment=ONE_THREAD, deadline_s=3600)
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
    ours = WAITING if part == "waits" else OURS
    rates: tuple[str, ...] = (RATE,) if program.short else (RATE, *OTHER_RATES)
    if part == "waits":
        rates = (RATE_OF_WAITS[program.short],)
    peers = {str(peer): peer for peer in TRIED[part, program.short]}
    figures: dict[str, float] = {}
    aims: dict[str, Aim] = {}
    comparisons: dict[str, Comparison] = {}
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="dgl-distributed-") as folder:
        store = make_store(program, part, Path(folder) / "store")
        storage = torch.float16 if part == "waits" else torch.float32
        config = write_dgl_partition(store, Path(folder) / "dgl", storage=storage)
        about: dict[str, Any] = {"part": part, "store": str(Path(folder) / "store"), "dgl": str(config)}
        about["waits"] = vars(salient.SCALES[part, program.short]) if part == "waits" else None
        for rate in rates:
            jobs = run_jobs(program, scale, about, ours, peers, rate)
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
