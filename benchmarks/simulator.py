"""What `windrow explain --scale` predicts of minibatch training, against emulated hosts, and for up to 1,024 of them.

Checked: 1, 2, 4 and 8 hosts at 100 Mbit/s, on the graph of `salient.py`'s waits in short form: 32 seeds on each host,
fanouts 15, 10, 5, and no model: a step waits 0.4 s instead, as for an accelerator that uses no core of these, and sums
as many gradients as 3 layers of 64 have. Everything one after another; the pipeline; and the pipeline with a VIP cache.
Predicted are the seconds of an epoch (`windrow.gnn.simulation`): from minibatches that are sampled in one process, rows
that are counted in the topology, and the links that `windrow network` measures between these hosts.

Scaled: what is predicted for 8 to 1,024 hosts with 32 seeds each, on a graph of ten times as many vertices, on a
network that is described, at 10 Gbit/s, with a step of 20 ms.

    python benchmarks/simulator.py [--short] [--only checked | scaled]
"""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import salient
from benchmarks.harness.compare import Variant, compare
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table, comparison_from_json, comparison_to_json
from benchmarks.salient import FINAL, FIRST, IN_SHORT, PIPELINE, SEED, SETTINGS, WAITS, Epochs, Scale
from windrow.caching.selection import CacheOptions
from windrow.comm.connect import connect
from windrow.comm.link_probe import measure_links
from windrow.comm.links import Links, NetworkDescription, described_links, links_from_json, links_to_json
from windrow.comm.process import usable_cores
from windrow.comm.wire import WireOptions
from windrow.gnn.cache_choice import Sampling
from windrow.gnn.epoch_estimate import StepWork, measure_step_work
from windrow.gnn.graph import Graph
from windrow.gnn.models import ModelOptions
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.partitioning import graph_to_store
from windrow.gnn.sampler import SamplerOptions
from windrow.gnn.simulation import ScaleEstimate, simulate

PARTS = ("checked", "scaled")
HOSTS = {False: (1, 2, 4, 8), True: (2, 4)}
SEEDS_OF_HOST = 32
RATE, RATE_SCALED = "100mbit", "10gbit"
LATENCY_US = 50.0
CHECKED = (FIRST, PIPELINE, FINAL)
SCALED = {False: (8, 64, 256, 1024), True: (8, 64)}
SCALED_WAIT_S = 0.02
REPEATS = {False: 2, True: 1}
AIM = 0.15
BASE = Scale(**{**vars(salient.COMPUTED), **IN_SHORT, **WAITS})


def scale_of(hosts: int) -> Scale:
    """Of so many."""
    return replace(BASE, hosts=hosts, batch_size=SEEDS_OF_HOST * hosts)


def work(task: Mapping[str, Any]) -> object:
    """Be one of the hosts: time the variants in turn."""
    torch.set_num_threads(1)
    with connect("mpi", deadline_s=300) as world:
        links = measure_links(world) if world.size > 1 else described_links(NetworkDescription(nodes=1))
        graph = PartitionedGraph.open(Path(task["store"]), rank=world.rank, size=world.size).stored_as("fp16")
        settings = {name: SETTINGS[name] for name in CHECKED}
        trainers = salient.make_trainers(world, graph, scale_of(world.size), settings)
        runs = {name: Epochs(world, trainer) for name, trainer in trainers.items()}
        for run in runs.values():
            run.warm_up()
        timed = compare(
            {name: Variant(run=run, before=run.lead_in) for name, run in runs.items()},
            baseline=FIRST,
            repeats=task["repeats"],
            warm_up=0,
            world=world,
        )
        for run in runs.values():
            run.trainer.close()
    return {"timed": comparison_to_json(timed), "links": links_to_json(links)}


def predict(graph: Graph, links: Links, variant: str, *, wait_s: float, sharing: float) -> ScaleEstimate:
    """What is predicted of one variant on these links, of whose hosts so many share each core of this machine."""
    hosts = links.size
    depth, alpha, _, _ = SETTINGS[variant]
    sampling = Sampling(
        sampler=SamplerOptions(fanouts=salient.FANOUTS, order="local", storage="fp16"),
        cache=CacheOptions(alpha=alpha),
        wire=WireOptions(),
        batch_size=SEEDS_OF_HOST * hosts,
        epochs=salient.EPOCHS,
        seed=SEED,
    )
    weights = sum(weight.numel() for weight in salient.model_of(BASE).parameters())
    # Next to nothing to compute.
    shape = ModelOptions(kind="graphsage", hidden=1, num_layers=3, dropout=0.5)

    def measure(view: PartitionedGraph) -> StepWork:
        found = measure_step_work(view, shape, sampling, torch.device("cpu"), threads=1, slower=max(1.0, sharing))
        return replace(found, device_s=wait_s, gradient_numbers=weights)

    options = salient.partition_options(hosts)
    return simulate(graph, sampling, hosts, links, measure, pipelined=depth > 0, partition=options)


def checked(program: Program) -> Findings:
    """Predicted and measured epochs."""
    graph = salient.make_graph(BASE)
    rows, comparisons, errors = [], {}, {}
    for hosts in HOSTS[program.short]:
        with tempfile.TemporaryDirectory(prefix="simulator-") as folder:
            store = Path(folder) / "store"
            graph_to_store(graph, store, salient.partition_options(hosts))
            task = {"store": str(store), "repeats": REPEATS[program.short]}
            seen = program.on_ranks(hosts, task, rate=RATE if hosts > 1 else None, deadline_s=3600)
        found, links = comparison_from_json(seen["timed"]), links_from_json(seen["links"], source="measured")
        comparisons[f"{hosts} hosts"] = found
        for variant in CHECKED:
            sharing = hosts / usable_cores()
            predicted = predict(graph, links, variant, wait_s=BASE.wait_s, sharing=sharing)
            measured = found.variants[variant].median_s
            errors[hosts, variant] = predicted.seconds / measured - 1
            rows.append(
                {
                    "hosts": hosts,
                    "variant": variant,
                    "measured s": measured,
                    "predicted s": predicted.seconds,
                    "off by": errors[hosts, variant],
                    "processor s": predicted.time.processor_s,
                    "waits s": predicted.time.device_s,
                    "exchange s": predicted.time.exchange_s,
                    "sums s": predicted.time.reduction_s,
                }
            )
    most = max(hosts for hosts, _ in errors)
    worst = max(abs(error) for (hosts, _), error in errors.items() if hosts == most)
    figures = {f"off_{hosts}_hosts_{salient.key(name)}_share": error for (hosts, name), error in errors.items()}
    aim = Aim(f"on {most} hosts within {AIM:.0%} of what is measured", worst <= AIM)
    return Findings(
        figures=figures, aims={"off": aim}, comparisons=comparisons, tables={"Epochs": Table.from_rows(rows)}
    )


def scaled(program: Program) -> Findings:
    """What is predicted where nobody can measure."""
    larger = {} if program.short else {"vertices": 10 * BASE.vertices, "edges": 10 * BASE.edges, "train_share": 0.1}
    graph = salient.make_graph(replace(BASE, **larger))  # type: ignore[arg-type]  # fields by name
    rows = []
    for hosts in SCALED[program.short]:
        for variant in (PIPELINE, FINAL):
            network = NetworkDescription(
                nodes=hosts, rate=RATE_SCALED, latency_us=LATENCY_US, wire_share=1 / salient.FRAMES
            )
            one = predict(graph, described_links(network), variant, wait_s=SCALED_WAIT_S, sharing=1.0)
            rows.append(
                {
                    "hosts": hosts,
                    "variant": variant,
                    "steps": one.steps,
                    "rows": one.input_rows,
                    "remote": one.remote_rows,
                    "MB a host": one.memory_bytes / 1e6,
                    "exchange ms": 1e3 * one.time.exchange_s / one.steps,
                    "sums ms": 1e3 * one.time.reduction_s / one.steps,
                    "step ms": 1e3 * one.seconds / one.steps,
                    "epoch s": one.seconds,
                }
            )
    figures = {
        f"{row['hosts']}_hosts_{salient.key(str(row['variant']))}_step_seconds": float(str(row["step ms"])) / 1e3
        for row in rows
    }
    return Findings(figures=figures, aims={}, tables={"Predicted": Table.from_rows(rows)})


def measure(program: Program) -> Findings:
    """What was asked for."""
    parts = {"checked": checked, "scaled": scaled}
    return Findings.joined([parts[part](program) for part in program.chosen(PARTS, short=2)])


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work, parts=PARTS)
