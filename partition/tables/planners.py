"""Planners, with their recipe section: pure functions from tables and ranks to a plan.

`plan_by_search` asks predicted costs (`windrow.partition.tables.search`); the others do without.

Placing whole tables, the costliest first, each on the rank that has least so far, is longest processing time first
(Graham: Bounds on Multiprocessing Timing Anomalies, SIAM J. Appl. Math. 17, 1969): with nothing but costs to
mind, the fullest rank gets at most 4/3 - 1/(3N) times the best possible. The costs are the usual heuristics for
embedding tables (as compared in Zha et al.: DreamShard, NeurIPS 2022).
"""

import importlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

from windrow.comm.errors import PlanError, RecipeError
from windrow.comm.options import (
    NonNegativeFloat,
    NonNegativeInt,
    PathOption,
    PositiveFloat,
    PositiveInt,
    checked_dataclass,
)
from windrow.comm.rows import near_equal_split
from windrow.partition.tables.affinity import nearest_ranks
from windrow.partition.tables.cost_model import ComputeModel
from windrow.partition.tables.costs import TableCosts, Workload
from windrow.partition.tables.plan import (
    COLUMN_MULTIPLE,
    COPY_BYTES,
    Plan,
    Range,
    Replica,
    Shard,
    TableSpec,
    check_plan,
    rank_bytes,
)
from windrow.partition.tables.plan_file import read_plan
from windrow.partition.tables.search import SearchOptions, search_plan

__all__ = ["PLANNERS", "PlanOptions", "Planner", "make_plan", "plan_by_search", "plan_with_planner", "register_planner"]

Planner: TypeAlias = Callable[[Sequence[TableSpec], int, float, Workload], Plan]
"""``planner(specs, world_size, memory, workload)``: a plan that covers these tables once, a pure function of its
arguments. ``memory`` is what each rank has for them in bytes, ``inf`` for no limit; a planner may leave it to
`check_plan`. ``workload`` is what a step does with them: samples, links, bytes on the wire."""

PLANNERS: dict[str, Planner] = {}
"""Every planner that `PlanOptions.planner` may name, by name."""


def register_planner(name: str, planner: Planner) -> None:
    """Make a planner known to recipes and to `plan_with_planner`, in the place of one of this name; on every rank.

    A recipe can also name one as ``"package.module:function"``, which is imported on every rank. See `Planner`.
    """
    PLANNERS[name] = planner


@checked_dataclass
class PlanOptions:
    """How embedding tables are spread over the ranks."""

    planner: str = "greedy"
    """round_robin, greedy, greedy_*: whole tables, to one rank after another, or the costliest first, each to the rank
    that has least of size (greedy is greedy_size), dim, lookups x dim, or lookups x dim x log of rows. row_wise,
    column_wise: every table is cut into one piece for each rank. replicated: every rank holds everything. neuroshard:
    what a search finds to be fastest by predicted costs, tables cut and replicated as need be. oper: the same, with
    placement by rows: the hot ones of a table replicated, the others cut by how often they are looked up. torchrec:
    what the planner of TorchRec finds by its costs. Or one of your own, by the name it was registered under or as
    "package.module:function". Planners of whole tables cut arrays of tables.robe_sharded by rows."""
    search: SearchOptions = field(default_factory=SearchOptions)
    """neuroshard and oper only: how long and how wide it searches."""
    cost_model: PathOption | None = None
    """neuroshard and oper only: predicts how long tables take, as ``windrow pretrain-cost`` wrote it for your machines;
    "none" for one that comes with windrow."""
    replica_groups: PositiveInt = 1
    """So many groups of neighbouring ranks hold all tables each (2D parallelism): lookups stay inside a group, such as
    a host's ranks, and groups exchange gradients of the rows that were looked up. A divisor of the number of ranks. A
    plan's file has its own."""
    file: PathOption | None = None
    """A plan written by hand or by ``windrow plan``; then no planner is asked."""
    rank_memory_bytes: NonNegativeInt = 0
    """What each rank has for tables and optimiser state; 0 for no limit."""
    replicate_below_bytes: NonNegativeInt = 65536
    """Planners replicate float32 tables that are smaller than this, where there are several ranks; 0 for none. Those
    that search, neuroshard and oper, replicate what is predicted to pay instead.

    Of N ranks that take b samples each, a rank sends on average (N - 1) / N x b vectors forward and as many gradients
    back for a table on one rank, and 2 (N - 1) / N x rows of them in the all-reduce of a replicated one: replicating
    sends less where rows < b. The default is the size of 1024 rows of 16 float32 numbers."""

    ranks_per_core: PositiveFloat = 1.0
    """Planners that ask costs only: ranks that share a core of a processor, where there are fewer cores than ranks, so
    that what all of them compute counts, not what the slowest does."""
    replan_every_steps: NonNegativeInt = 0
    """Planners that ask costs only: after so many steps they plan anew, for what was looked up in these, and tables
    move to the plan if that is predicted to pay; 0 for never."""
    replan_margin: NonNegativeFloat = 0.1
    """What a plan has to save of a step of the tables for them to move, over what the step takes then."""

    def __post_init__(self) -> None:
        _find_planner(self.planner)
        if self.ranks_per_core < 1:
            raise RecipeError(f"plan.ranks_per_core = {self.ranks_per_core}: expected at least 1")
        if self.replan_every_steps and not self.asks_costs:
            raise RecipeError(
                f"plan.replan_every_steps = {self.replan_every_steps} goes with a planner that asks what steps cost, "
                "such as neuroshard or oper, and with no plan.file: choose one, or leave it out"
            )
        if self.file is not None and self.replica_groups > 1:
            raise RecipeError(
                f"plan.replica_groups = {self.replica_groups} does not go with plan.file: write it into the file, "
                "before its tables"
            )

    @property
    def asks_costs(self) -> bool:
        """Whether a planner is asked that wants to know what a step does with tables, on which links."""
        return self.file is None and self.planner not in _BY_TABLE


def make_plan(
    options: PlanOptions, specs: Sequence[TableSpec], world_size: int, workload: Workload | None = None
) -> Plan:
    """The plan that a recipe's section [plan] asks for, checked.

    Every rank that asks gets the same one, unless ``search.seconds`` has an end: then one asks for all.

    Raises:
        PlanError: the file is not right, or the tables do not fit into the ranks' memory.
        StoreError: there is no such cost model.
    """
    memory = options.rank_memory_bytes or None
    if options.file is None:
        planner, small = _find_planner(options.planner), options.replicate_below_bytes
        for searching in (plan_by_search, plan_rows):
            if planner is searching:
                planner, small = partial(searching, search=options.search, cost_model=options.cost_model), 0
        plan = plan_with_planner(
            planner,
            specs,
            world_size,
            rank_memory_bytes=memory,
            replicate_below_bytes=small,
            workload=workload,
            replica_groups=options.replica_groups,
        )
        # What a user's own planner says stays; it may ask for the same.
        if options.planner in _OF_COSTS:
            plan = nearest_ranks(plan, specs, None if workload is None else workload.links)
    else:
        plan = read_plan(options.file, specs)
    try:
        check_plan(plan, specs, world_size, memory)
    except PlanError as error:
        place = f"{options.file}: " if options.file else ""
        raise PlanError(f"{place}{error}", shortfall_bytes=error.shortfall_bytes) from error
    return plan


def plan_with_planner(
    planner: str | Planner,
    specs: Sequence[TableSpec],
    world_size: int,
    *,
    rank_memory_bytes: int | None = None,
    replicate_below_bytes: int = 0,
    workload: Workload | None = None,
    replica_groups: int = 1,
) -> Plan:
    """Ask one planner, or one by its name (see `PlanOptions.planner`), for a plan that covers every table once.

    With several groups of ranks the planner is asked for a plan of one of them.

    Planners of whole tables respect `rank_memory_bytes`, None for no limit; it is not checked where every table is cut
    or replicated: there is nothing to choose. Where there are several ranks, compressed tables are replicated, and
    float32 tables whose weights are smaller than `replicate_below_bytes`.

    Raises:
        PlanError: a whole table fits on no rank beside what is there already; with the shortfall. Or groups would
            differ in size.
        RecipeError: there is no such planner.
    """
    size = Plan((), replica_groups=replica_groups).group_size(world_size)
    # Ranks sum gradients in float32, so weights in half precision are not replicated.
    small = [
        spec
        for spec in specs
        if size > 1
        and (
            spec.compressed_bytes is not None
            or (spec.bytes_per_value == COPY_BYTES and spec.rows * spec.dim * COPY_BYTES < replicate_below_bytes)
        )
    ]
    copies = _replicate(small).replicated
    memory = float("inf")
    if rank_memory_bytes is not None:
        memory = rank_memory_bytes - rank_bytes(Plan((), copies), specs, 1)[0]
    found = _find_planner(planner) if isinstance(planner, str) else planner
    others = [spec for spec in specs if spec not in small]
    plan = found(others, size, memory, (workload or Workload()).of_group(size)) if others else Plan(())
    order = {spec.name: number for number, spec in enumerate(specs)}
    everywhere = sorted((*copies, *plan.replicated), key=lambda replica: (order[replica.table], replica.rows))
    return replace(plan, replicated=tuple(everywhere), replica_groups=replica_groups)


def _find_planner(name: str) -> Planner:
    if name in PLANNERS:
        return PLANNERS[name]
    module, colon, function = name.partition(":")
    if not colon:
        raise RecipeError(f'planner = "{name}": expected one of {", ".join(PLANNERS)}, or "package.module:function"')
    try:
        found: Planner = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise RecipeError(
            f'planner = "{name}": {error}: name a function in a module that Python finds, for example by PYTHONPATH'
        ) from error
    return found


def plan_by_search(
    specs: Sequence[TableSpec],
    world_size: int,
    memory: float,
    workload: Workload,
    *,
    search: SearchOptions | None = None,
    cost_model: Path | None = None,
    by_rows: bool = False,
) -> Plan:
    """The planner ``neuroshard``: what `windrow.partition.tables.search.search_plan` finds.

    With `by_rows`, the planner ``oper``: the better of that and of a search where hot rows of tables may be replicated,
    and the others be cut by their lookups.

    Raises:
        PlanError: the tables do not fit.
        StoreError: there is no such cost model.
    """
    costs = TableCosts(specs, world_size, workload, ComputeModel.load(cost_model or SHIPPED_MODEL))
    search, ways = search or SearchOptions(), (False, True) if by_rows else (False,)
    each = replace(search, seconds=search.seconds / len(ways))
    found = [search_plan(costs, memory, each, by_rows=way) for way in ways]
    return min(found, key=lambda plan_and_cost: plan_and_cost[1].total)[0]


plan_rows = partial(plan_by_search, by_rows=True)
"""The planner ``oper``."""

SHIPPED_MODEL = Path(__file__).with_name("cost_model_cpu.npz")
"""Trained on one thread of a server's processor; it says on which."""


def _imported(name: str, specs: Sequence[TableSpec], world_size: int, memory: float, workload: Workload) -> Plan:
    """Ask a planner that needs what this package does not."""
    return _find_planner(name)(specs, world_size, memory, workload)


def _replicate(specs: Sequence[TableSpec], *_: object) -> Plan:
    return Plan((), tuple(Replica(spec.name, (0, spec.rows)) for spec in specs))


def _place(
    weigh: Callable[[TableSpec], float] | None, specs: Sequence[TableSpec], world_size: int, memory: float, _: Workload
) -> Plan:
    """Whole tables, each to the preferred rank among those with room, in their order; then those to be cut by rows."""
    spread = [spec for spec in specs if spec.by_rows]
    specs = [spec for spec in specs if not spec.by_rows]
    pieces = _cut(_row_pieces, spread, world_size, memory)
    loads, taken = [0.0] * world_size, rank_bytes(pieces, spread, world_size)
    weights = [0.0 if weigh is None else weigh(spec) for spec in specs]
    ranks: dict[str, int] = {}
    for turn, number in enumerate(sorted(range(len(specs)), key=lambda number: -weights[number])):
        spec = specs[number]
        roomy = [rank for rank, used in enumerate(taken) if used + spec.num_bytes <= memory]
        if not roomy:
            free = int(memory) - min(taken)
            shortfall = spec.num_bytes - free
            raise PlanError(
                f"table {spec.name!r} needs {spec.num_bytes} bytes on one rank, and the emptiest of {len(taken)} ranks "
                f"has {free} left: it lacks {shortfall} bytes. Use more ranks, raise plan.rank_memory_bytes, or "
                'cut the tables with planner = "row_wise".',
                shortfall_bytes=shortfall,
            )
        if weigh is None:
            chosen = min(roomy, key=lambda rank: (rank - turn) % world_size)
        else:
            chosen = min(roomy, key=lambda rank: (loads[rank], taken[rank], rank))
            loads[chosen] += weights[number]
        taken[chosen] += spec.num_bytes
        ranks[spec.name] = chosen
    placed = [Shard(spec.name, ranks[spec.name], (0, spec.rows), (0, spec.dim)) for spec in specs]
    return Plan((*placed, *pieces.shards))


def _cut(
    pieces: Callable[[TableSpec, int], Iterable[tuple[Range, Range]]],
    specs: Sequence[TableSpec],
    world_size: int,
    *_: object,
) -> Plan:
    """One piece of every table for each rank; the first rank moves on so that odd pieces spread over all of them."""
    shards = []
    for first, spec in enumerate(specs):
        for number, (rows, columns) in enumerate(pieces(spec, world_size)):
            if rows[0] < rows[1] and columns[0] < columns[1]:
                shards.append(Shard(spec.name, (first + number) % world_size, rows, columns))
    return Plan(tuple(shards))


def _row_pieces(spec: TableSpec, parts: int) -> list[tuple[Range, Range]]:
    bounds = near_equal_split(spec.rows, parts)
    return [((start, stop), (0, spec.dim)) for start, stop in pairwise(bounds)]


def _column_pieces(spec: TableSpec, parts: int) -> list[tuple[Range, Range]]:
    groups = near_equal_split(-(-spec.dim // COLUMN_MULTIPLE), parts)
    bounds = [min(group * COLUMN_MULTIPLE, spec.dim) for group in groups]
    return [((0, spec.rows), (start, stop)) for start, stop in pairwise(bounds)]


def _lookup_bytes(spec: TableSpec) -> float:
    return spec.lookups_per_sample * spec.dim * spec.bytes_per_value


_BY_TABLE: dict[str, Planner] = {
    "round_robin": partial(_place, None),
    "greedy": partial(_place, lambda spec: spec.num_bytes),
    "greedy_size": partial(_place, lambda spec: spec.num_bytes),
    "greedy_dim": partial(_place, lambda spec: spec.dim * len(spec.features)),
    "greedy_lookups": partial(_place, _lookup_bytes),
    "greedy_size_lookups": partial(_place, lambda spec: _lookup_bytes(spec) * math.log10(max(spec.rows, 10))),
    "row_wise": partial(_cut, _row_pieces),
    "column_wise": partial(_cut, _column_pieces),
    "replicated": _replicate,
}
"""Those that ask nothing but what a table is like, not what a step does with it."""

_OF_COSTS: dict[str, Planner] = {
    "neuroshard": plan_by_search,
    "oper": plan_rows,
    "torchrec": partial(_imported, "windrow.recsys.torchrec_plans:plan_with_torchrec"),
}
PLANNERS |= _BY_TABLE | _OF_COSTS
