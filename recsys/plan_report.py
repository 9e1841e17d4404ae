"""What a plan of embedding tables means, for people: tables for a terminal and a picture, by predicted costs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from windrow.comm.errors import PlanError
from windrow.partition.tables.access import copied_octaves, steps_of
from windrow.partition.tables.affinity import local_share
from windrow.partition.tables.cost_model import Piece
from windrow.partition.tables.costs import PlanCost, TableCosts
from windrow.partition.tables.plan import Plan, Range, TableSpec, rank_bytes, specs_by_name
from windrow.partition.tables.planners import PLANNERS, PlanOptions, make_plan
from windrow.training.journal import COLOURS, new_figure
from windrow.training.terminal import byte_size, table

__all__ = ["compare_planners", "describe_costs", "describe_plan", "draw_plan"]

MOST_RANKS_SHOWN = 8
STAGES = {"ids": "ids", "compute": "lookups and learning", "backward": "gradients", "forward": "vectors, and waiting"}


def describe_plan(plan: Plan, specs: Sequence[TableSpec], world_size: int) -> str:
    """What is where, by table and by rank.

    By rank: pieces, also replicated ones, their bytes, and the lookups to expect per sample of the whole minibatch (of
    what is replicated: its share).
    """
    named = specs_by_name(specs)

    copied = {rows.table: copied_octaves(named[rows.table], rows.ids) for rows in plan.copies}

    def lookups(name: str, rows: Range | None, *, are_copies: bool = False) -> float:
        steps = steps_of(named[name], rows, copied=copied.get(name, ()), are_copies=are_copies)
        return named[name].lookups_per_sample * float(steps[1].sum())

    def ranks_of(name: str) -> str:
        ranks = sorted({shard.rank for shard in plan.shards_of(name)})
        shown = ", ".join(map(str, ranks[:MOST_RANKS_SHOWN]))
        if plan.replicas_of(name):
            return "all"
        return shown if len(ranks) <= MOST_RANKS_SHOWN else f"{shown}, ... ({len(ranks)})"

    by_table = [
        {"table": s.name, "rows": s.rows, "dim": s.dim, "bytes": s.num_bytes}
        | {"plan": plan.kind_of(s.name), "ranks": ranks_of(s.name)}
        for s in specs
    ]
    group_size = plan.group_size(world_size)
    everywhere = sum(lookups(copy.table, copy.rows) for copy in plan.replicated)
    everywhere += sum(lookups(name, None, are_copies=True) for name in copied)
    by_rank = [
        {"rank": rank, "pieces": len(plan.shards_on(rank)) + len(plan.replicated) + len(copied), "bytes": num_bytes}
        | {
            "lookups/sample": everywhere / group_size
            + sum(lookups(shard.table, shard.rows) for shard in plan.shards_on(rank))
        }
        for rank, num_bytes in enumerate(rank_bytes(plan, specs, world_size)[:group_size])
    ]
    of_groups = (
        f"\n\n{plan.replica_groups} groups of {group_size} rank(s) hold all of this each; ranks are those of the "
        "first, and lookups are per sample of its part of the minibatch"
    )
    shown = f"{table(by_table)}\n\n{table(by_rank)}{of_groups if plan.replica_groups > 1 else ''}"
    local = [
        (local_share(plan, spec), spec.name)
        for spec in specs
        if spec.near and plan.replica_groups == 1 and spec.name not in copied
    ]
    if local:
        shares = ", ".join(f"{name} {share:.0%}" for share, name in local)
        shown += f"\n\nlookups of rows on the rank that makes them, as the log was counted: {shares}"
    return shown


def describe_costs(plan: Plan, costs: TableCosts, memory: float = float("inf")) -> str:
    """What a step costs under a plan.

    Milliseconds of each rank and stage, what is slowest, why tables were cut, and how far the plan may be from the best
    there can be.

    Args:
        plan: of the tables that `costs` knows.
        costs: predicts.
        memory: bytes of a rank.
    """
    found = costs.of_plan(plan)
    rows = [
        {"rank": rank} | {f"{STAGES[stage]} ms": getattr(found, stage)[rank] * 1e3 for stage in STAGES}
        for rank in range(costs.world_size)
    ]
    waits = found.compute + found.backward + found.forward
    slowest = int(waits.argmax())
    worst = max(STAGES, key=lambda stage: float(getattr(found, stage)[slowest]))
    # Learnt times of small sets may add up to more than that of a large one.
    least = min(costs.least_possible(), found.total)
    lines = [
        table(rows),
        "",
        f"a step of the tables takes {_ms(found.total)}: rank {slowest} is the slowest, most of it by {STAGES[worst]}",
        f"no plan goes below {_ms(least)}, all that is computed and has to travel shared out evenly",
        f"this one is {found.total / max(least, 1e-12) - 1:.0%} above that",
    ]
    if found.landing:
        lines.append(f"vectors at home, and their gradients, take {_ms(found.landing)} to copy and add on every rank")
    if found.sums:
        lines.append(
            f"gradients of replicated tables and of rows that groups have in common take {_ms(found.sums)} to sum"
        )
    alone = {spec.name: _seconds_alone(spec, costs) for spec in costs.specs.values()}
    mean = sum(alone.values()) / costs.world_size
    for spec in costs.specs.values():
        kind = plan.kind_of(spec.name)
        if kind in {"table-wise", "replicated"}:
            continue
        if kind == "partly replicated":
            ids, ranges = plan.copied(spec.name), [copy.rows for copy in plan.replicas_of(spec.name)]
            share = sum(float(steps_of(spec, rows)[1].sum()) for rows in ranges)
            if ids:
                share += float(steps_of(spec, copied=copied_octaves(spec, ids), are_copies=True)[1].sum())
            number = len(ids) + sum(stop - start for start, stop in ranges)
            lines.append(f"{spec.name}: every rank holds {number} of its rows, which have {share:.0%} of its lookups")
            continue
        why = (
            f"its {byte_size(spec.num_bytes)} do not fit on a rank"
            if spec.num_bytes > memory
            else f"whole it would take {alone[spec.name] / mean:.0%} of what a rank computes on average"
        )
        lines.append(f"{spec.name} is {kind}: {why}")
    origin = costs.model.origin
    if origin:
        lines.append(
            f"times of computing as on {origin.get('processor', '?')}, {origin.get('threads', '?')} thread(s); off by "
            f"{origin.get('held out: MAPE', float('nan')):.1%} on sets of tables that the model had not seen"
        )
    return "\n".join(lines)


def compare_planners(costs: TableCosts, options: PlanOptions) -> str:
    """What a step would cost under each planner, with what else the options say, as a table."""
    # `costs` has the groups: what is planned is one of them.
    options = replace(options, file=None, replica_groups=1, replan_every_steps=0)
    specs, rows = list(costs.specs.values()), []
    for planner in PLANNERS:
        row: dict[str, object] = {"planner": planner}
        try:
            plan = make_plan(replace(options, planner=planner), specs, costs.world_size, costs.workload)
        except PlanError as error:
            rows.append(
                row | {"step ms": None, "fullest rank MiB": None, "": f"lacks {byte_size(error.shortfall_bytes)}"}
            )
            continue
        found = costs.of_plan(plan)
        rows.append(row | {"step ms": found.total * 1e3, "fullest rank MiB": float(found.memory.max()) / 2**20, "": ""})
    return table(rows)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"


def _seconds_alone(spec: TableSpec, costs: TableCosts) -> float:
    whole = Piece(spec.name, (0, spec.rows), (0, spec.dim))
    return float(costs.model.seconds(costs.vectors([whole]))[0])


def draw_plan(found: PlanCost, path: Path, memory: float = float("inf")) -> None:
    """Draw the seconds of each rank, stage upon stage, and the bytes that it holds (*.png, *.svg or *.pdf)."""
    from matplotlib.ticker import MaxNLocator

    figure, (seconds, held) = new_figure(2)
    ranks = range(len(found.compute))
    bottom = [0.0] * len(found.compute)
    for stage, colour in zip(STAGES, COLOURS, strict=False):
        height = (getattr(found, stage) * 1e3).tolist()
        seconds.bar(ranks, height, bottom=bottom, color=colour, label=STAGES[stage])
        bottom = [low + high for low, high in zip(bottom, height, strict=True)]
    seconds.set(title=f"A step of the tables: {_ms(found.total)}", xlabel="rank", ylabel="ms")
    seconds.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, frameon=False)
    held.bar(ranks, (found.memory / 2**20).tolist(), color=COLOURS[0])
    if memory < float("inf"):
        held.axhline(memory / 2**20, color="#888888", linestyle=":", linewidth=1.2)
    held.set(title="Weights and optimiser state", xlabel="rank", ylabel="MiB")
    for axes in (seconds, held):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.savefig(path)
