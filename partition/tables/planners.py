"""Planners without a search, with their recipe section: pure functions from tables and ranks to a plan.

Placing whole tables, the costliest first, each on the rank that has least so far, is longest processing time first
(Graham: Bounds on Multiprocessing Timing Anomalies, SIAM J. Appl. Math. 17, 1969): with nothing but costs to
mind, the fullest rank gets at most 4/3 - 1/(3N) times the best possible. The costs are the usual heuristics for
embedding tables (as compared in Zha et al.: DreamShard, NeurIPS 2022).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, get_args

from windrow.comm.errors import PlanError, RecipeError
from windrow.comm.rows import near_equal_split
from windrow.partition.tables.plan import (
    COLUMN_MULTIPLE,
    Plan,
    Range,
    Shard,
    TableSpec,
    check_plan,
    rank_bytes,
)
from windrow.partition.tables.plan_file import read_plan

__all__ = ["PlanOptions", "PlannerName", "make_plan", "plan_with_planner"]

PlannerName = Literal[
    "round_robin",
    "greedy_size",
    "greedy_dim",
    "greedy_lookups",
    "greedy_size_lookups",
    "row_wise",
    "column_wise",
    "replicated",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanOptions:
    """How embedding tables are spread over the ranks."""

    planner: PlannerName = "greedy_size"
    """round_robin, greedy_*: whole tables, to one rank after another, or the costliest first, each to the rank that
    has least of size, dim, lookups x dim, or size x lookups x dim. row_wise, column_wise: every table is cut into
    one piece for each rank. replicated: every rank holds everything."""
    file: Path | None = None
    """A plan written by hand or by ``windrow plan``; then no planner is asked."""
    rank_memory_bytes: int = 0
    """What each rank has for tables and optimiser state; 0 for no limit."""
    replicate_below_bytes: int = 65536
    """Planners replicate float32 tables that are smaller than this, where there are several ranks; 0 for none.

    Of N ranks that take b samples each, a rank sends on average (N - 1) / N x b vectors forward and as many gradients
    back for a table on one rank, and 2 (N - 1) / N x rows of them in the all-reduce of a replicated one: replicating
    sends less where rows < b. The default is the size of 1024 rows of 16 float32 numbers."""

    def __post_init__(self) -> None:
        if self.planner not in get_args(PlannerName):
            raise RecipeError(
                f'planner = "{self.planner}": expected one of {", ".join(get_args(PlannerName))}'
            )
        for name in ("rank_memory_bytes", "replicate_below_bytes"):
            if getattr(self, name) < 0:
                raise RecipeError(f"{name} = {getattr(self, name)}: expected 0 or more")


FLOAT32_BYTES = 4

Cost = Callable[[TableSpec], float]

COSTS: dict[PlannerName, Cost] = {
    "greedy_size": lambda spec: spec.num_bytes,
    "greedy_dim": lambda spec: spec.dim * len(spec.features),
    "greedy_lookups": lambda spec: spec.lookups_per_sample * spec.dim,
    "greedy_size_lookups": lambda spec: spec.num_bytes * spec.lookups_per_sample * spec.dim,
}
"""What a table weighs: its memory; the pooled numbers it sends; the numbers it reads; memory and reads together."""


def make_plan(options: PlanOptions, specs: Sequence[TableSpec], world_size: int) -> Plan:
    """The plan that a recipe asks for, checked. Every rank that asks gets the same one.

    Args:
        options: the recipe's section [plan].
        specs: the tables.
        world_size: number of ranks.

    Returns:
        A plan that `check_plan` accepts.

    Raises:
        PlanError: the file is not right, or the tables do not fit into the ranks' memory.
    """
    memory = options.rank_memory_bytes or None
    if options.file is None:
        plan = plan_with_planner(
            options.planner,
            specs,
            world_size,
            rank_memory_bytes=memory,
            replicate_below_bytes=options.replicate_below_bytes,
        )
        check_plan(plan, specs, world_size, memory)
        return plan
    plan = read_plan(options.file, specs)
    try:
        check_plan(plan, specs, world_size, memory)
    except PlanError as error:
        raise PlanError(f"{options.file}: {error}", shortfall_bytes=error.shortfall_bytes) from error
    return plan


def plan_with_planner(
    planner: PlannerName,
    specs: Sequence[TableSpec],
    world_size: int,
    *,
    rank_memory_bytes: int | None = None,
    replicate_below_bytes: int = 0,
) -> Plan:
    """Ask one planner.

    Args:
        planner: its name.
        specs: the tables.
        world_size: number of ranks, at least 1.
        rank_memory_bytes: limit of each rank, which planners of whole tables respect; None for none.
        replicate_below_bytes: float32 tables with smaller weights are replicated where there are several ranks.

    Returns:
        A plan that covers every table once. Memory is not checked where every table is cut or replicated: there
        is nothing to choose.

    Raises:
        PlanError: a whole table fits on no rank beside what is there already; with the shortfall.
    """
    limit = replicate_below_bytes if world_size > 1 else 0
    everywhere = tuple(spec.name for spec in specs if planner == "replicated" or _is_small(spec, limit))
    rest = [spec for spec in specs if spec.name not in everywhere]
    if planner == "row_wise":
        shards = _cut(rest, world_size, _row_pieces)
    elif planner == "column_wise":
        shards = _cut(rest, world_size, _column_pieces)
    else:
        taken = rank_bytes(Plan((), everywhere), specs, world_size)
        shards = _place(planner, rest, taken, rank_memory_bytes)
    return Plan(tuple(shards), everywhere)


def _is_small(spec: TableSpec, limit: int) -> bool:
    """Whether to replicate a table; ranks sum gradients in float32, so weights in half precision are not."""
    return spec.bytes_per_value == FLOAT32_BYTES and spec.rows * spec.dim * spec.bytes_per_value < limit


def _place(
    planner: PlannerName, specs: Sequence[TableSpec], taken: list[int], memory: int | None
) -> list[Shard]:
    """Whole tables, each to the preferred rank among those with room; the plan keeps the tables' order."""
    cost = COSTS.get(planner)
    loads = [0.0] * len(taken)
    ranks: dict[str, int] = {}
    for number, spec in enumerate(specs if cost is None else sorted(specs, key=cost, reverse=True)):
        roomy = [rank for rank, used in enumerate(taken) if memory is None or used + spec.num_bytes <= memory]
        if not roomy:
            raise _no_room(spec, taken, memory or 0)
        if cost is None:
            chosen = min(roomy, key=lambda rank: (rank - number) % len(taken))
        else:
            chosen = min(roomy, key=lambda rank: (loads[rank], taken[rank], rank))
            loads[chosen] += cost(spec)
        taken[chosen] += spec.num_bytes
        ranks[spec.name] = chosen
    return [Shard(spec.name, ranks[spec.name], (0, spec.rows), (0, spec.dim)) for spec in specs]


def _no_room(spec: TableSpec, taken: Sequence[int], memory: int) -> PlanError:
    free = memory - min(taken)
    shortfall = spec.num_bytes - free
    return PlanError(
        f"table {spec.name!r} needs {spec.num_bytes} bytes on one rank, and the emptiest of {len(taken)} ranks has "
        f"{free} of its {memory} left: it lacks {shortfall} bytes. Use more ranks, raise plan.rank_memory_bytes, or "
        'cut the tables with planner = "row_wise".',
        shortfall_bytes=shortfall,
    )


def _cut(
    specs: Sequence[TableSpec],
    world_size: int,
    pieces: Callable[[TableSpec, int], Iterable[tuple[Range, Range]]],
) -> list[Shard]:
    """One piece of every table for each rank; the first rank moves on so that odd pieces spread over all of them."""
    shards = []
    first = 0
    for spec in specs:
        for number, (rows, columns) in enumerate(pieces(spec, world_size)):
            if rows[0] < rows[1] and columns[0] < columns[1]:
                shards.append(Shard(spec.name, (first + number) % world_size, rows, columns))
        first = (first + 1) % world_size
    return shards


def _row_pieces(spec: TableSpec, parts: int) -> list[tuple[Range, Range]]:
    bounds = near_equal_split(spec.rows, parts)
    return [((start, stop), (0, spec.dim)) for start, stop in pairwise(bounds)]


def _column_pieces(spec: TableSpec, parts: int) -> list[tuple[Range, Range]]:
    groups = near_equal_split(-(-spec.dim // COLUMN_MULTIPLE), parts)
    bounds = [min(group * COLUMN_MULTIPLE, spec.dim) for group in groups]
    return [((0, spec.rows), (start, stop)) for start, stop in pairwise(bounds)]
