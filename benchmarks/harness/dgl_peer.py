"""A trainer of dgl.distributed on an emulated host, with its servers: the loop of DGL's guide, and its files.

`DistNodeDataLoader`, `DistGraph`, `DistributedDataParallel` with gloo, and on each host a server with the part in
shared memory. DGL's launch script needs ssh to real machines, so mpirun starts what that would start, with the
variables that it sets. What is learnt is the same as by ours, GraphSAGE from the same first weights.
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import salient
from benchmarks.emulated_cluster.network import CLUSTER_VARIABLE, INTERFACE, host_address
from benchmarks.harness.data_sets import to_hetero_data
from benchmarks.harness.timed_wait import TimedWait
from benchmarks.harness.workers import worker_command
from benchmarks.typed_graphs import DGLModel
from windrow.comm.launcher import launched_rank
from windrow.gnn.graph import Graph
from windrow.gnn.models import ModelOptions, build_model
from windrow.gnn.partitioned import stored_features
from windrow.partition.store import PartitionStore

__all__ = ["Peer", "bytes_received", "train_beside_servers", "write_dgl_partition", "write_typed_partition"]

GRAPH_NAME = "communities"
LABELLED = "paper"
"""Type of the vertices that are trained on, where they have types."""
DGL_NAMES = {
    "fc_self.weight": "self_linear.weight",
    "fc_self.bias": "self_linear.bias",
    "fc_neigh.weight": "neighbor_linear.weight",
}
"""DGL's parameter -> ours."""
SERVER_PORT = 30050
GRADIENT_PORT = 29500
END_S = 120.0
"""Seconds that a server may take to end after its last client."""


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


def write_typed_partition(graph: Graph, hosts: int, folder: Path) -> Path:
    """Cut a graph with types as DGL does, by METIS; returns the configuration file, as `write_dgl_partition`."""
    import dgl

    assert graph.types is not None
    assert graph.features is not None
    data = to_hetero_data(graph)
    numbers = {name: of_type.number for name, of_type in graph.types.vertices.items()}
    typed = dgl.heterograph({edge: tuple(data[edge].edge_index) for edge in graph.types.edges}, numbers)
    for name, rows in zip(numbers, graph.features.split(list(numbers.values())), strict=True):
        typed.nodes[name].data["features"] = rows
    mask = data[LABELLED].train_mask.to(torch.uint8)
    typed.nodes[LABELLED].data["train_mask"], typed.nodes[LABELLED].data["labels"] = mask, data[LABELLED].y
    dgl.distributed.partition_graph(
        typed, GRAPH_NAME, hosts, str(folder), balance_ntypes={LABELLED: mask}, graph_formats="csc"
    )
    return folder / f"{GRAPH_NAME}.json"


class DGLGraphSAGE(nn.Module):
    """The same model as a user of DGL writes it, with the first weights of ours."""

    def __init__(self, shape: ModelOptions, widths: tuple[int, int], seed: int) -> None:
        from dgl.nn import SAGEConv

        super().__init__()
        self.dropout = shape.dropout
        columns, outputs = widths
        hidden = [shape.hidden] * (shape.num_layers - 1)
        self.layers = nn.ModuleList(SAGEConv(a, b, "mean") for a, b in pairwise([columns, *hidden, outputs]))
        ours = build_model(shape, in_features=columns, out_features=outputs, seed=seed)
        with torch.no_grad():
            for theirs, layer in zip(self.layers, ours.layers, strict=True):
                for to, name in DGL_NAMES.items():
                    theirs.get_parameter(to).copy_(layer.get_parameter(name))

    def forward(self, blocks: list[Any], hidden: Tensor) -> Tensor:
        """Blocks and input rows to logits."""
        for index, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            hidden = layer(block, hidden)
            if index < len(self.layers) - 1:
                hidden = functional.dropout(functional.relu(hidden), self.dropout, self.training)
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
    graph: Any, peer: Peer, train_ids: Tensor, task: Mapping[str, Any], embedding: Any
) -> Callable[[], Iterator[Any]]:
    """What makes an iterator over an epoch's (blocks, rows, labels)."""
    import dgl

    batch_size, sampler = task["seeds_per_host"], dgl.dataloading.NeighborSampler(list(task["fanouts"][::-1]))
    if peer.rows == "sampler":
        pulled = dgl.distributed.DistDataLoader(
            train_ids, batch_size, shuffle=True, collate_fn=SampleAndPull(graph, sampler)
        )
        return lambda: iter(pulled)
    seeds = {LABELLED: train_ids} if task["part"] == "typed" else train_ids
    loader = dgl.dataloading.DistNodeDataLoader(graph, seeds, sampler, batch_size=batch_size, shuffle=True)
    rows = embedding or (None if task["part"] == "typed" else graph.ndata["features"].__getitem__)

    def pull() -> Iterator[Any]:
        for inputs, outputs, blocks in loader:
            if rows is None:
                of_types = {name: graph.nodes[name].data["features"][ids] for name, ids in inputs.items()}
                yield blocks, of_types, graph.nodes[LABELLED].data["labels"][outputs[LABELLED]]
            else:
                yield blocks, rows(inputs), graph.ndata["labels"][outputs]

    return pull


def dgl_model(graph: Any, task: Mapping[str, Any]) -> nn.Module:
    """What a part trains."""
    if task["waits"]:
        scale = salient.Scale(**task["waits"])
        return DGLWait(salient.model_of(scale), scale.wait_s, salient.CLASSES)
    shape = ModelOptions(**task["model"])
    if task["part"] == "typed":
        return DGLModel(graph.ntypes, graph.etypes, (task["columns"], shape.hidden, task["outputs"]))
    return DGLGraphSAGE(shape, (task["columns"], task["outputs"]), task["seed"])


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
    if task["part"] == "typed":
        mask, of_type = graph.nodes[LABELLED].data["train_mask"], LABELLED
    else:
        mask, of_type = graph.ndata["train_mask"], graph.ntypes[0]
    train_ids = dgl.distributed.node_split(mask, graph.get_partition_book(), ntype=of_type)
    embedding, of_rows = None, None
    if peer.optimizer:
        policy = graph.get_node_partition_policy(of_type)
        shape = (graph.num_nodes(), task["columns"])
        embedding = dgl.distributed.DistEmbedding(*shape, "rows", init_func=small_rows, part_policy=policy)
        of_rows = getattr(dgl.distributed.optim, peer.optimizer)([embedding], lr=task["row_rate"])
    minibatches = dgl_minibatches(graph, peer, train_ids, task, embedding)
    # A minibatch need not have vertices of every type.
    model = nn.parallel.DistributedDataParallel(
        dgl_model(graph, task).train(), find_unused_parameters=task["part"] == "typed"
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=task["learning_rate"], weight_decay=0)
    epochs = []
    for _ in range(task["epochs"]):
        torch.distributed.barrier()
        received, start, total, steps = bytes_received(), time.perf_counter(), 0.0, 0
        for blocks, rows, labels in minibatches():
            loss = functional.cross_entropy(model(blocks, rows), labels)
            optimizer.zero_grad()
            if of_rows is not None:
                # Otherwise its step sends the gradients of all minibatches before this one again.
                of_rows.zero_grad()
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


def bytes_received() -> int:
    """What this host's link has brought so far."""
    return int(Path(f"/sys/class/net/{INTERFACE}/statistics/rx_bytes").read_text())


def train_beside_servers(script: Path, task: Mapping[str, Any]) -> dict[str, Any]:
    """Start the servers of this host, as DGL's launch script would, and train.

    Args:
        script: of the benchmark, whose worker a server is.
        task: of that worker.
    """
    if os.environ.get("DGL_ROLE") == "server":
        import dgl

        dgl.distributed.initialize(os.environ["DGL_IP_CONFIG"], net_type=Peer(**task["peer"]).network)
        return {}
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
    # A server that outlives its trainer keeps open what mpirun waits for: nobody would hear that a trainer was killed.
    command = ["setpriv", "--pdeathsig", "KILL", *worker_command(script, task, folder / "unused.json")]
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
