"""What techniques gain together, over the best of them alone: on a graph and on a log, 4 emulated hosts at 1 Gbit/s.

Which ones go together, and that each pair learns what it has to, says docs/pairs.md; this is what it is worth.

    graph   the graph of 100,000 vertices, model and minibatches of `salient.py` in short form: the pipeline, the VIP
            cache (alpha .32), rows in 8 bits, and sums of gradients in 8 bits, each alone; and all of them
    log     the log and the sequence model of `recd_train.py`: RecD (O1 to O7), vectors and gradients in 8 bits, two
            parts of each minibatch (``training.accumulate``), and OPER's plan, each alone; and all but what RecD makes
            worse, then all of them

Variants train whole epochs in turn, from the same first weights on the same minibatches, in one job for each part.

    python benchmarks/pairs.py [--short] [--only graph | log]
"""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import recd_train, salient
from benchmarks.harness.compare import Variant, compare
from benchmarks.harness.dlrm import ranks_per_core
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table, comparison_from_json, comparison_to_json
from windrow.comm.connect import connect
from windrow.comm.links import NetworkDescription, described_links
from windrow.comm.meter import Meter
from windrow.comm.wire import WireOptions
from windrow.comm.world import World
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.partitioning import graph_to_store
from windrow.recsys.recommendation import recommendation
from windrow.training.trainer import Trainer

PARTS = ("graph", "log")
HOSTS, RATE = 4, "1gbit"
PLAIN = "none"
INT8, SUMS = {"vectors": "int8", "gradients": "int8"}, {"sums": "fp8"}
ALPHA, DEPTH = 0.32, 4
ON_GRAPH: dict[str, tuple[int, float, int, WireOptions]] = {
    PLAIN: (0, 0.0, 0, WireOptions()),
    "pipeline": (DEPTH, 0.0, 0, WireOptions()),
    "VIP cache": (0, ALPHA, 0, WireOptions()),
    "int8 rows": (0, 0.0, 0, WireOptions(vectors="int8")),
    "fp8 sums": (0, 0.0, 0, WireOptions(sums="fp8")),
    "together": (DEPTH, ALPHA, 0, WireOptions(vectors="int8", sums="fp8")),
}
"""As `salient.SETTINGS`."""
RECD = recd_train.VARIANTS[recd_train.LAST]
OPER = {"planner": "oper", "ranks_per_core": ranks_per_core(HOSTS)}
Sections = Mapping[str, Mapping[str, Any]]
ON_LOG: dict[str, tuple[tuple[str, ...], Sections]] = {
    PLAIN: ((), {}),
    "RecD": (RECD, {}),
    "int8": ((), {"wire": INT8 | SUMS}),
    "2 parts": ((), {"training": {"accumulate": 2}}),
    "OPER": ((), {"plan": OPER}),
    "RecD, int8": (RECD, {"wire": INT8 | SUMS}),
    "RecD, int8, 2 parts": (RECD, {"wire": INT8 | SUMS, "training": {"accumulate": 2}}),
    "RecD, int8, OPER": (RECD, {"wire": INT8 | SUMS, "plan": OPER}),
    "together": (RECD, {"wire": INT8 | SUMS, "training": {"accumulate": 2}, "plan": OPER}),
}
"""Switches of RecD, and settings by section."""
REPEATS = {"graph": 9, "log": 3}
"""In full; epochs on the log take five times as long."""
SINGLES = {"graph": tuple(ON_GRAPH)[1:-1], "log": tuple(ON_LOG)[1:5]}


class Epochs:
    """Epoch after epoch of one variant, and what the last has moved and learnt."""

    def __init__(self, world: World, trainer: Trainer) -> None:
        self._world, self._trainer, self._epoch = world, trainer, 0
        self.loss = self.num_bytes = 0.0

    def __call__(self) -> None:
        """Train one epoch."""
        meter = self._world.meter = Meter()
        self.loss = self._trainer.train_epoch(self._epoch)
        self._world.meter = None
        self._epoch += 1
        self.num_bytes = float(sum(amount.bytes_sent for amount in meter.table().values()))

    def close(self) -> dict[str, float]:
        """What it came to, over all ranks. Collective."""
        self._trainer.close()
        moved = self._world.all_reduce(torch.tensor(self.num_bytes, dtype=torch.float64), stage="figures")
        return {"loss": self.loss, "bytes": float(moved)}


def on_graph(world: World, task: Mapping[str, Any]) -> dict[str, Trainer]:
    """A trainer for each variant."""
    scale = salient.Scale(**task["scale"])
    graph = PartitionedGraph.open(Path(task["folder"]) / "store", rank=world.rank, size=world.size)
    return salient.make_trainers(world, graph, scale, ON_GRAPH)


def on_log(world: World, task: Mapping[str, Any]) -> dict[str, Trainer]:
    """A trainer for each variant."""
    scale, links = recd_train.Scale(**task["scale"]), described_links(NetworkDescription(nodes=HOSTS, rate=RATE))
    found = {}
    for name, (switches, sections) in ON_LOG.items():
        parts = sections.get("training", {}).get("accumulate", 1)
        more = {**sections, "training": {"accumulate": parts, "batch_size": scale.batch_size // parts}}
        recipe = recd_train.recipe_of(Path(task["folder"]), scale, "sequence", switches, more)
        seed = recipe.run.seed
        model, learnt = recommendation(world, recipe, torch.device("cpu"), seed=seed, links=links)
        found[name] = Trainer(world, model, learnt, recipe.training, wire=recipe.wire, seed=seed)
    return found


TRAINERS: dict[str, Callable[[World, Mapping[str, Any]], dict[str, Trainer]]] = {"graph": on_graph, "log": on_log}


def work(task: Mapping[str, Any]) -> object:
    """Be one of the hosts: train all variants in turn."""
    torch.set_num_threads(1)
    with connect("mpi", deadline_s=300) as world:
        runs = {name: Epochs(world, trainer) for name, trainer in TRAINERS[task["what"]](world, task).items()}
        compared = compare(
            {name: Variant(run=run) for name, run in runs.items()}, baseline=PLAIN, repeats=task["repeats"], world=world
        )
        ends = {name: run.close() for name, run in runs.items()}
    return {"timed": comparison_to_json(compared), "ends": ends}


def measure_part(program: Program, part: str) -> Findings:
    """Everything of a graph, or of a log."""
    with tempfile.TemporaryDirectory(prefix="pairs-") as name:
        folder = Path(name)
        task: dict[str, Any] = {"what": part, "folder": name, "repeats": 1 if program.short else REPEATS[part]}
        if part == "graph":
            scale = replace(salient.SCALES["computed", True], hosts=HOSTS)
            graph_to_store(salient.make_graph(scale), folder / "store", salient.partition_options(HOSTS))
            task["scale"] = vars(scale)
        else:
            of_log = recd_train.SHORT_SCALE if program.short else recd_train.FULL_SCALE
            recd_train.make_stores(folder, of_log)
            task["scale"] = vars(of_log)
        found = program.on_ranks(HOSTS, task, rate=RATE, deadline_s=3600)
    compared = comparison_from_json(found["timed"])
    faster = {name: compared.ratio(name).median for name in compared.variants if name != PLAIN}
    combined = {name: ratio for name, ratio in faster.items() if name not in SINGLES[part]}
    single, best = (max(some, key=lambda name: faster[name]) for some in (SINGLES[part], combined))
    gain = faster[best] / faster[single]
    rows = [
        {"variant": name, "epoch s": one.median_s, "faster": faster.get(name, 1.0)}
        | {"MB": found["ends"][name]["bytes"] / 1e6, "loss": found["ends"][name]["loss"]}
        for name, one in compared.variants.items()
    ]
    return Findings(
        figures={f"{part}_best_together": faster[best], f"{part}_best_alone": faster[single], f"{part}_gain": gain},
        aims={part: Aim(f"{part}: the best combination ({best}) is faster than {single}, the best alone", gain > 1)},
        comparisons={part: compared},
        tables={f"Epochs, {part}": Table.from_rows(rows)},
    )


def measure(program: Program) -> Findings:
    """What was asked for."""
    return Findings.joined([measure_part(program, part) for part in program.chosen(PARTS, short=2)])


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work, ranks=True, parts=PARTS)
