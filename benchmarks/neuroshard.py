"""Plans by predicted costs beside plans by one number of each table: simulated, and measured on emulated hosts.

Exact: the search against trying every plan of whole tables, on 300 instances of up to 7 tables on 2 or 3 ranks with
costs made by hand, where one beam and one round must not be better than the default; and 10,000 tasks with about as
much memory as they need: each is placed within memory, or refused by table, rank and missing bytes.

Simulated, by NeuroShard's protocol (Zha et al., MLSys 2023): tasks of 10 to 59 tables from a population of 856, columns
up to 4, 8, ..., 128, on 4 devices of 4 GiB each (20 to 119 tables on 8); mean predicted cost of a step over the tasks
that a method places, and how many these are. "search" is ours. TorchRec's planner, which takes longest, is asked about
5 tasks of each setting.

Measured (--only measured): tasks of 10 to 30 tables of up to a million rows, 128 MiB, on 2 and 4 emulated hosts at 1
and 10 Gbit/s: seconds of a step of the tables, and of a whole DLRM, under the plan of each method, all by our runtime,
in turn; "2 groups" of ranks hold all tables each, and exchange rows (`Plan.replica_groups`). Predicted and measured
costs are compared by Spearman's rank correlation over the plans of each task.

    python benchmarks/neuroshard.py [--short] [--only exact | simulated | measured]
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, product
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks.harness.compare import compare
from benchmarks.harness.dlrm import ModelOnTables, ranks_per_core, steps_of_tables
from benchmarks.harness.hand_made_costs import hand_made_model
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Comparison, Findings, Table, comparison_from_json, comparison_to_json
from windrow import recsys
from windrow.comm.connect import connect
from windrow.comm.errors import PlanError
from windrow.comm.links import Links, NetworkDescription, described_links
from windrow.comm.world import World
from windrow.partition.tables.access import draw_rows
from windrow.partition.tables.cost_model import ComputeModel
from windrow.partition.tables.costs import TableCosts, Workload
from windrow.partition.tables.plan import Plan, Shard, TableSpec, check_plan
from windrow.partition.tables.planners import PLANNERS, SHIPPED_MODEL, Planner, plan_by_search
from windrow.partition.tables.population import DIMS, draw_tables, draw_tasks
from windrow.partition.tables.search import SearchOptions, search_plan
from windrow.recsys.models.options import ModelOptions
from windrow.recsys.torchrec_plans import plan_with_torchrec

PARTS = ("exact", "simulated", "measured")
INSTANCES, TIGHT = {False: 300, True: 20}, {False: 10_000, True: 200}
AIM_GAP = 0.01
SIMULATED = {False: 100, True: 5}
TORCHREC_TASKS = 5
"""Of each setting, that TorchRec's planner is asked about: it takes some ten seconds for each."""
DEVICES = {4: (10, 60), 8: (20, 120)}
"""Devices, and least and most tables."""
DEVICE_BYTES = 4 << 30
SIMULATED_BATCH = 65_536
MEASURED = {False: 20, True: 2}
SETTINGS = {False: ((2, "1gbit"), (2, "10gbit"), (4, "1gbit"), (4, "10gbit")), True: ((2, "1gbit"),)}
BATCH, REPEATS = 512, 6
DENSE_PART = ModelOptions(kind="dcn", cross_layers=1, low_rank=16, deep=(64,))
"""For tables of several widths."""
MEASURED_TABLES, MEASURED_BYTES, MEASURED_ROWS = (10, 30), 128 << 20, 1_000_000
OURS, TORCHREC = "search", "TorchRec's planner"
AIM_GREEDY, AIM_TORCHREC, AIM_RANKS = 1.15, 1.20, 0.8


def place_at_random(specs: Sequence[TableSpec], world_size: int, memory: float, _: Workload) -> Plan:
    """Whole tables, each on any rank that has room."""
    chance, taken, shards = np.random.default_rng(len(specs)), np.zeros(world_size), []
    for spec in specs:
        roomy = np.flatnonzero(taken + spec.num_bytes <= memory)
        if not len(roomy):
            raise PlanError(f"no room for table {spec.name!r}", shortfall_bytes=spec.num_bytes)
        rank = int(chance.choice(roomy))
        taken[rank] += spec.num_bytes
        shards.append(Shard(spec.name, rank, (0, spec.rows), (0, spec.dim)))
    return Plan(tuple(shards))


GREEDY = ("greedy_size", "greedy_dim", "greedy_lookups", "greedy_size_lookups")


def search_in_groups(specs: Sequence[TableSpec], world_size: int, memory: float, workload: Workload) -> Plan:
    """Two groups of ranks that hold all tables each."""
    size = world_size // 2
    return replace(plan_by_search(specs, size, memory, workload.of_group(size)), replica_groups=2)


METHODS: dict[str, Planner] = {
    OURS: plan_by_search,
    "random": place_at_random,
    **{name: PLANNERS[name] for name in GREEDY},
    TORCHREC: plan_with_torchrec,
}
MEASURED_METHODS = METHODS | {"search, 2 groups": search_in_groups}


def network(ranks: int, rate: str) -> Links:
    """Links between hosts."""
    return described_links(NetworkDescription(nodes=ranks, rate=rate, latency_us=50.0))


# --------------------------------------------------------------------------------------------------------------- exact


def best_of_all(costs: TableCosts) -> float:
    """Cost of the best plan of whole tables."""
    specs, size = list(costs.specs.values()), costs.world_size
    plans = (
        Plan(tuple(Shard(s.name, rank, (0, s.rows), (0, s.dim)) for s, rank in zip(specs, ranks, strict=True)))
        for ranks in product(range(size), repeat=len(specs))
        if ranks[0] == 0
    )
    return min(costs.of_plan(plan).total for plan in plans)


def try_all(task: Mapping[str, Any]) -> dict[str, Any]:
    """Gaps to the best, how often a smaller search was better, and what became of tasks that are short of memory."""
    torch.set_num_threads(1)
    model, chance = hand_made_model(), np.random.default_rng(0)
    tables = draw_tables(300, 0, most_rows=MEASURED_ROWS)
    instances = draw_tasks(tables, sizes=(2, 7), max_dim=64, most_bytes=1e12, seed=0)
    gaps, smaller_was_better = [], 0
    for specs in islice(instances, task["instances"]):
        ranks = int(chance.integers(2, 4))
        costs = TableCosts(specs, ranks, Workload(batch_size=BATCH, links=network(ranks, "10gbit")), model)
        found = search_plan(costs, float("inf"))[1].total
        gaps.append(found / best_of_all(costs) - 1)
        smaller = search_plan(costs, float("inf"), SearchOptions(beam=1, rounds=1))[1].total
        smaller_was_better += smaller < found * (1 - 1e-9)
    outcomes = {"placed": 0, "refused": 0, "unclassified": 0}
    for specs in islice(draw_tasks(tables, sizes=(1, 6), max_dim=16, most_bytes=1e12, seed=1), task["tight"]):
        ranks = int(chance.integers(1, 5))
        memory = int(chance.uniform(0.5, 1.2) * sum(spec.num_bytes for spec in specs) / ranks) + 1
        costs = TableCosts(specs, ranks, Workload(batch_size=BATCH, links=network(ranks, "10gbit")), model)
        try:
            plan, _ = search_plan(costs, memory, SearchOptions(beam=1, rounds=1, candidates=1, caps=1))
            check_plan(plan, specs, ranks, memory)
            outcomes["placed"] += 1
        except PlanError as error:
            said = error.shortfall_bytes > 0 and "rank" in str(error)
            named = any(repr(spec.name) in str(error) for spec in specs)
            outcomes["refused" if said and named else "unclassified"] += 1
    return {"gaps": gaps, "smaller was better": smaller_was_better, "outcomes": outcomes}


def exact(program: Program) -> Findings:
    """Gaps and refusals."""
    numbers = {"instances": INSTANCES[program.short], "tight": TIGHT[program.short]}
    found = program.in_process({"what": "exact", **numbers}, threads=1, deadline_s=7200)
    gaps, outcomes = np.array(found["gaps"]), found["outcomes"]
    figures = {
        "gap_mean": float(gaps.mean()),
        "gap_largest": float(gaps.max()),
        "smaller_search_better": float(found["smaller was better"]),
        **{f"tight_tasks_{name}": float(number) for name, number in outcomes.items()},
    }
    return Findings(
        figures=figures,
        aims={
            "gap": Aim(f"mean gap to the best plan of whole tables <= {AIM_GAP:.0%}", figures["gap_mean"] <= AIM_GAP),
            "larger": Aim("a larger search is never worse", not found["smaller was better"]),
            "refusals": Aim("no task is refused without table, rank and bytes", not outcomes["unclassified"]),
        },
        tables={
            "Against all plans": Table(
                columns=("instances", "mean gap", "largest", "smaller search better", *outcomes),
                rows=(
                    (
                        len(gaps),
                        figures["gap_mean"],
                        figures["gap_largest"],
                        found["smaller was better"],
                        *outcomes.values(),
                    ),
                ),
            )
        },
    )


# ----------------------------------------------------------------------------------------------------------- simulated


def simulate(task: Mapping[str, Any]) -> dict[str, Any]:
    """Predicted cost of the tasks of one setting under each method; none where it finds no plan."""
    torch.set_num_threads(1)
    model, ranks = ComputeModel.load(SHIPPED_MODEL), task["devices"]
    tasks = draw_tasks(
        draw_tables(856, 0),
        sizes=tuple(task["tables"]),
        max_dim=task["max_dim"],
        most_bytes=(ranks - 0.25) * DEVICE_BYTES,
        seed=ranks,
    )
    workload = Workload(batch_size=SIMULATED_BATCH // ranks, links=network(ranks, "100gbit"))
    found: dict[str, list[float | None]] = {name: [] for name in METHODS}
    for number, specs in enumerate(islice(tasks, task["number"])):
        costs = TableCosts(specs, ranks, workload, model)
        for name, planner in METHODS.items():
            if name == TORCHREC and number >= TORCHREC_TASKS:
                continue
            try:
                plan = planner(specs, ranks, DEVICE_BYTES, workload)
                check_plan(plan, specs, ranks, DEVICE_BYTES)
            except PlanError:
                found[name].append(None)
                continue
            found[name].append(costs.of_plan(plan).total)
    return found


def simulated(program: Program) -> Findings:
    """All settings."""
    figures: dict[str, float] = {}
    rows: list[tuple[str | float, ...]] = []
    gains = []
    settings = [(devices, dim) for devices in DEVICES for dim in DIMS]
    for devices, dim in [(4, 16), (4, 128)] if program.short else settings:
        task = {"what": "simulated", "devices": devices, "tables": DEVICES[devices], "max_dim": dim}
        found = program.in_process({**task, "number": SIMULATED[program.short]}, threads=1, deadline_s=7200)
        ours = found[OURS]
        row: list[str | float] = [devices, dim]
        best = None
        for name, costs in found.items():
            placed = [cost for cost in costs if cost is not None]
            row.append(f"{fmean(placed) * 1e3:.1f} ({len(placed)})" if placed else "- (0)")
            # Over the tasks that both place.
            both = [(own, other) for own, other in zip(ours, costs, strict=False) if own and other]
            if name != OURS and both:
                gain = sum(other for _, other in both) / sum(own for own, _ in both)
                figures[f"{devices}_devices_dim_{dim}_over_{name.replace(' ', '_').replace(chr(39), '')}"] = gain
                best = gain if best is None else min(best, gain)
        figures[f"{devices}_devices_dim_{dim}_placed"] = sum(cost is not None for cost in ours) / len(ours)
        gains.append(best or 1.0)
        rows.append((*row, best or "-"))
    columns = ("devices", "columns up to", *METHODS, "over the best other")
    return Findings(
        figures=figures,
        aims={
            "all": Aim(
                "the search places every task", all(v == 1 for k, v in figures.items() if k.endswith("_placed"))
            ),
            "never_worse": Aim("no method is better in any setting", min(gains) >= 1.0),
        },
        tables={"Predicted ms of a step (tasks placed)": Table(columns=columns, rows=tuple(rows))},
    )


# ------------------------------------------------------------------------------------------------------------ measured


def measure_task(world: World, specs: Sequence[TableSpec], rate: str, repeats: int) -> dict[str, Any]:
    """Steps of one task's tables, and of a DLRM on them, under each method's plan, in turn. Collective."""
    links = network(world.size, rate)
    workload = Workload(batch_size=BATCH, links=links, ranks_per_core=ranks_per_core(world.size))
    model = ComputeModel.load(SHIPPED_MODEL)
    chance = np.random.default_rng(world.rank)
    lengths = [np.floor(spec.lookups_per_sample + chance.random(BATCH)).astype(np.int64) for spec in specs]
    values = [draw_rows(spec, int(own.sum()), chance) for spec, own in zip(specs, lengths, strict=True)]
    ids = KeyedJaggedTensor(
        keys=[spec.features[0] for spec in specs],
        values=torch.from_numpy(np.concatenate(values)),
        lengths=torch.from_numpy(np.concatenate(lengths)).int(),
    )
    tables = [
        recsys.EmbeddingBagConfig(
            num_embeddings=spec.rows, embedding_dim=spec.dim, name=spec.name, feature_names=list(spec.features)
        )
        for spec in specs
    ]
    of_tables: dict[str, Callable[[], object]] = {}
    of_model: dict[str, Callable[[], object]] = {}
    predicted: dict[str, float] = {}
    for name, planner in MEASURED_METHODS.items():
        made = planner(specs, world.size, float("inf"), workload) if world.rank == 0 else None
        plan = world.broadcast_object(made, root=0, stage="plan")
        costs = TableCosts(specs, world.size, workload, model, replica_groups=plan.replica_groups)
        predicted[name] = costs.of_plan(plan).total
        # Each has tables of its own: gradients of replicated ones are summed by one reducer.
        alone, in_model = (recsys.EmbeddingBagCollection(tables, world=world, plan=plan) for _ in range(2))
        model_on_tables = ModelOnTables(in_model, BATCH, shape=DENSE_PART, world=world, seed=0)
        of_tables[name], _ = steps_of_tables(alone, ids, world)
        of_model[name] = partial(model_on_tables.train, ids)
    timed = {
        what: comparison_to_json(compare(steps, baseline=OURS, repeats=repeats, world=world))
        for what, steps in (("tables", of_tables), ("DLRM", of_model))
    }
    return {"timed": timed, "predicted": predicted}


def work(task: Mapping[str, Any]) -> object:
    """Simulate, or be one of the hosts."""
    torch.set_num_threads(1)
    if task["what"] != "measured":
        return {"exact": try_all, "simulated": simulate}[task["what"]](task)
    tasks = draw_tasks(
        draw_tables(856, 0, most_rows=MEASURED_ROWS),
        sizes=MEASURED_TABLES,
        max_dim=128,
        most_bytes=MEASURED_BYTES,
        seed=task["seed"],
    )
    with connect("mpi", deadline_s=300) as world:
        return [measure_task(world, specs, task["rate"], task["repeats"]) for specs in islice(tasks, task["number"])]


def measured(program: Program) -> Findings:
    """All tasks on all networks."""
    figures: dict[str, float] = {}
    rows: list[tuple[str | float, ...]] = []
    comparisons: dict[str, Comparison] = {}
    gains: dict[str, list[float]] = {"greedy": [], TORCHREC: []}
    orders: list[float] = []
    for hosts, rate in SETTINGS[program.short]:
        task = {"what": "measured", "rate": rate, "repeats": REPEATS, "number": MEASURED[program.short], "seed": hosts}
        found = program.on_ranks(hosts, task, rate=rate, deadline_s=7200)
        of_setting: dict[str, dict[str, list[float]]] = {
            what: {name: [] for name in MEASURED_METHODS} for what in ("tables", "DLRM")
        }
        for number, each in enumerate(found):
            for what, timed in each["timed"].items():
                comparison = comparison_from_json(timed)
                comparisons[f"{hosts} hosts, {rate}, task {number}, {what}"] = comparison
                for name in MEASURED_METHODS:
                    of_setting[what][name].append(1 / comparison.ratio(name).median)
                if what == "tables":
                    seconds = [comparison.variants[name].median_s for name in MEASURED_METHODS]
                    orders.append(
                        float(spearmanr([each["predicted"][name] for name in MEASURED_METHODS], seconds).statistic)
                    )
        for what, ratios in of_setting.items():
            over = {name: fmean(values) for name, values in ratios.items() if name != OURS}
            greedy = min(over[name] for name in GREEDY)
            rows.append((hosts, rate, what, *(over[name] for name in over), greedy))
            key = f"{hosts}_hosts_{rate}_{what.lower()}"
            figures |= {f"{key}_over_best_greedy": greedy, f"{key}_over_torchrec": over[TORCHREC]}
            if what == "tables":
                gains["greedy"].append(greedy)
                gains[TORCHREC].append(over[TORCHREC])
    figures["rank_correlation"] = median(orders)
    others = [name for name in MEASURED_METHODS if name != OURS]
    return Findings(
        figures=figures,
        comparisons=comparisons,
        aims={
            "greedy": Aim(
                f"tables: at least {AIM_GREEDY:g} times the best greedy plan's speed, on average",
                fmean(gains["greedy"]) >= AIM_GREEDY,
            ),
            "torchrec": Aim(
                f"tables: at least {AIM_TORCHREC:g} times the speed of TorchRec's plan, on average",
                fmean(gains[TORCHREC]) >= AIM_TORCHREC,
            ),
            "order": Aim(
                f"predicted and measured costs: rank correlation >= {AIM_RANKS}",
                figures["rank_correlation"] >= AIM_RANKS,
            ),
        },
        tables={
            "Seconds of a step over the search's, mean of tasks": Table(
                columns=("hosts", "rate", "step of", *others, "best greedy"), rows=tuple(rows)
            )
        },
    )


def measure(program: Program) -> Findings:
    """What was asked for; without --only both parts in one result."""
    parts = {"exact": exact, "simulated": simulated, "measured": measured}
    found = [parts[part](program) for part in program.chosen(PARTS, short=len(PARTS))]
    return Findings.joined(found)


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work, ranks=True, parts=PARTS)
