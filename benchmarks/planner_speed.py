"""How long a plan takes to find: the search for the fastest plan beside TorchRec's planner, on the same tables.

Tables of a generated population (`windrow.partition.tables.population`), 4 to 128 columns, without a limit of memory
for either. Both are told pooling factors and samples of a step; ours also how often rows are looked up, and the links
(10 Gbit/s). One process, one thread. TorchRec's planner is not asked for the largest task: it takes many minutes.

    python benchmarks/planner_speed.py [--short]
"""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table
from windrow.comm.links import NetworkDescription, described_links
from windrow.partition.tables.cost_model import ComputeModel
from windrow.partition.tables.costs import TableCosts, Workload
from windrow.partition.tables.plan import TableSpec, check_plan
from windrow.partition.tables.planners import SHIPPED_MODEL
from windrow.partition.tables.population import DIMS, draw_tables, with_dim
from windrow.partition.tables.search import search_plan
from windrow.recsys.torchrec_plans import plan_with_torchrec

TASKS = ((40, 4), (100, 8), (800, 8), (1000, 128))
"""Tables and ranks."""
SHORT_TASKS = 2
ASKED_OF_BOTH = 3
BATCH = 1024
AIM_S, AIM_RATIO = 30.0, 10.0


def task_tables(number: int) -> list[TableSpec]:
    """Tables of all widths."""
    widths = np.random.default_rng(number).choice(DIMS, number)
    return [with_dim(spec, int(dim), spec.name) for spec, dim in zip(draw_tables(number, 1), widths, strict=True)]


def work(task: Mapping[str, Any]) -> dict[str, Any]:
    """Time one planner on one task."""
    torch.set_num_threads(1)
    specs, ranks = task_tables(task["tables"]), task["ranks"]
    links = described_links(NetworkDescription(nodes=ranks, rate="10gbit", latency_us=50.0))
    costs = TableCosts(specs, ranks, Workload(batch_size=BATCH, links=links), ComputeModel.load(SHIPPED_MODEL))
    if task["planner"] == "neuroshard":
        # Compiled loops, as in any later search of the process, are loaded by a small one.
        small = task_tables(4)
        search_plan(TableCosts(small, 2, Workload(), costs.model), float("inf"))
    begun = time.perf_counter()
    if task["planner"] == "neuroshard":
        plan, _ = search_plan(costs, float("inf"))
    else:
        plan = plan_with_torchrec(specs, ranks, float("inf"), costs.workload)
    seconds = time.perf_counter() - begun
    check_plan(plan, specs, ranks)
    return {"seconds": seconds, "cost": costs.of_plan(plan).total}


def measure(program: Program) -> Findings:
    """Ask both planners."""
    rows: list[tuple[str | float, ...]] = []
    figures: dict[str, float] = {}
    tasks = TASKS[:SHORT_TASKS] if program.short else TASKS
    for number, (tables, ranks) in enumerate(tasks):
        asked = ("neuroshard", "torchrec") if number < ASKED_OF_BOTH else ("neuroshard",)
        found = {
            planner: program.in_process({"tables": tables, "ranks": ranks, "planner": planner}, threads=1)
            for planner in asked
        }
        ours, theirs = found["neuroshard"], found.get("torchrec")
        key = f"{tables}_tables_{ranks}_ranks"
        figures[f"{key}_s"] = ours["seconds"]
        if theirs is not None:
            figures[f"{key}_ratio"] = theirs["seconds"] / ours["seconds"]
        rows.append(
            (
                tables,
                ranks,
                ours["seconds"],
                "-" if theirs is None else theirs["seconds"],
                "-" if theirs is None else theirs["seconds"] / ours["seconds"],
                ours["cost"] * 1e3,
                "-" if theirs is None else theirs["cost"] * 1e3,
            )
        )
    columns = ("tables", "ranks", "search s", "TorchRec s", "ratio", "predicted step ms", "TorchRec's plan ms")
    aims = {
        "ratio": Aim(
            f"100 tables on 8 ranks at least {AIM_RATIO:g} times faster than TorchRec's planner",
            figures["100_tables_8_ranks_ratio"] >= AIM_RATIO,
        )
    }
    if not program.short:
        aims["largest"] = Aim(f"1000 tables on 128 ranks under {AIM_S:g} s", figures["1000_tables_128_ranks_s"] < AIM_S)
    return Findings(figures=figures, aims=aims, tables={"Planners": Table(columns=columns, rows=tuple(rows))})


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work)
