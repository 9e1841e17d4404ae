"""A plan: which rank holds which rectangle of which embedding table.

            columns 0        8       16
    rows   0 ┌───────┬───────┐
             │ rank 0│ rank 1│        table-wise    one rectangle
         500 ├───────┴───────┤        column-wise   whole columns
             │     rank 2    │        row-wise      whole rows
        1000 └───────────────┘        grid          anything else, as here

A replicated table is held whole by every rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from windrow.comm.errors import PlanError
from windrow.partition.tables.spec import TableSpec, rectangle_bytes, specs_by_name

__all__ = ["COLUMN_MULTIPLE", "Kind", "Plan", "Range", "Shard", "check_plan", "rank_bytes"]

COLUMN_MULTIPLE = 4
"""Tables are cut between columns at multiples of 4: FBGEMM's kernels read four float32 numbers at once."""

Kind: TypeAlias = Literal["table-wise", "column-wise", "row-wise", "grid", "replicated"]
Range: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Shard:
    """A rectangle of a table on one rank."""

    table: str
    """Name of the table."""
    rank: int
    """Who holds it."""
    rows: Range
    """First row, and the row after the last."""
    columns: Range
    """First column, and the column after the last."""

    @property
    def num_rows(self) -> int:
        """Height."""
        return self.rows[1] - self.rows[0]

    @property
    def num_columns(self) -> int:
        """Width."""
        return self.columns[1] - self.columns[0]

    def __str__(self) -> str:
        return f"rows {_shown(self.rows)}, columns {_shown(self.columns)} (rank {self.rank})"


@dataclass(frozen=True, slots=True)
class Plan:
    """Where every embedding table of a model lives. Nothing is checked here: see `check_plan`."""

    shards: tuple[Shard, ...]
    """Rectangles; those of a table cover it exactly once."""
    replicated: tuple[str, ...] = ()
    """Tables that every rank holds whole."""

    def shards_of(self, table: str) -> tuple[Shard, ...]:
        """The rectangles of a table, in the plan's order; none of a replicated one."""
        return tuple(shard for shard in self.shards if shard.table == table)

    def shards_on(self, rank: int) -> tuple[Shard, ...]:
        """The rectangles on a rank, in the plan's order; replicated tables are not among them."""
        return tuple(shard for shard in self.shards if shard.rank == rank)

    def kind_of(self, table: str) -> Kind:
        """How a table is cut.

        Raises:
            PlanError: the plan does not hold the table.
        """
        if table in self.replicated:
            return "replicated"
        shards = self.shards_of(table)
        if not shards:
            raise PlanError(f"the plan does not say where table {table!r} lives")
        if len(shards) == 1:
            return "table-wise"
        if len({shard.rows for shard in shards}) == 1:
            return "column-wise"
        return "row-wise" if len({shard.columns for shard in shards}) == 1 else "grid"


def rank_bytes(plan: Plan, specs: Sequence[TableSpec], world_size: int) -> list[int]:
    """Memory that each rank needs for its pieces and for the replicated tables: weights and optimiser state.

    Args:
        plan: of these tables on these ranks.
        specs: the tables.
        world_size: number of ranks.

    Returns:
        Bytes by rank.
    """
    named = specs_by_name(specs)
    total = [sum(named[table].num_bytes for table in plan.replicated)] * world_size
    for shard in plan.shards:
        total[shard.rank] += rectangle_bytes(named[shard.table], shard.num_rows, shard.num_columns)
    return total


def check_plan(
    plan: Plan, specs: Sequence[TableSpec], world_size: int, rank_memory_bytes: int | None = None
) -> None:
    """Refuse a plan that cannot be carried out. A rank may hold nothing, and several pieces of one table.

    Args:
        plan: what to check.
        specs: the tables it has to place.
        world_size: number of ranks.
        rank_memory_bytes: what each rank has for tables and optimiser state; None for no limit.

    Raises:
        PlanError: a table is unknown, missing or placed twice; a row is covered twice or never; a rank is not there;
            columns are cut elsewhere than at multiples of 4; or a rank's memory overflows, with the shortfall of
            the fullest rank in ``shortfall_bytes``.
    """
    if world_size < 1:
        raise PlanError(f"a plan needs at least 1 rank, got {world_size}")
    named = specs_by_name(specs)
    _check_tables(plan, named)
    for shard in plan.shards:
        _check_shard(shard, named[shard.table], world_size)
    for table in named:
        if table not in plan.replicated:
            _check_tiling(plan.shards_of(table), named[table])
    if rank_memory_bytes is not None:
        _check_memory(rank_bytes(plan, specs, world_size), rank_memory_bytes)


def _check_tables(plan: Plan, named: dict[str, TableSpec]) -> None:
    sharded = {shard.table for shard in plan.shards}
    for table in (*(shard.table for shard in plan.shards), *plan.replicated):
        if table not in named:
            raise PlanError(f"the plan names a table {table!r}, but the tables are {', '.join(named)}")
    for table in plan.replicated:
        if table in sharded or plan.replicated.count(table) > 1:
            raise PlanError(f"table {table!r} is replicated and placed once more: keep one of the two")
    for table in named:
        if table not in sharded and table not in plan.replicated:
            raise PlanError(f"the plan misses table {table!r}: give it a rank, shards, or replicate it")


def _check_shard(shard: Shard, spec: TableSpec, world_size: int) -> None:
    if not 0 <= shard.rank < world_size:
        raise PlanError(
            f"table {spec.name!r}: {shard}: there is no rank {shard.rank} among {world_size} "
            f"(0 to {world_size - 1}): start more ranks, or place the piece elsewhere"
        )
    for what, (start, stop), length in (
        ("rows", shard.rows, spec.rows),
        ("columns", shard.columns, spec.dim),
    ):
        if not 0 <= start < stop <= length:
            raise PlanError(
                f"table {spec.name!r}: {shard}: {what} [{start}, {stop}) are not a range inside [0, {length})"
            )
    for column in shard.columns:
        if column % COLUMN_MULTIPLE and column != spec.dim:
            raise PlanError(
                f"table {spec.name!r}: {shard}: columns are cut at {column}, which is no multiple of {COLUMN_MULTIPLE}"
            )


def _check_tiling(shards: tuple[Shard, ...], spec: TableSpec) -> None:
    """Count how often each cell between all the cuts is covered."""
    rows = sorted({0, spec.rows, *(row for shard in shards for row in shard.rows)})
    columns = sorted({0, spec.dim, *(column for shard in shards for column in shard.columns)})
    row_number = {row: number for number, row in enumerate(rows)}
    column_number = {column: number for number, column in enumerate(columns)}
    times = np.zeros((len(rows) - 1, len(columns) - 1), dtype=np.int64)
    for shard in shards:
        top, bottom = (row_number[row] for row in shard.rows)
        left, right = (column_number[column] for column in shard.columns)
        times[top:bottom, left:right] += 1
    wrong = np.argwhere(times != 1)
    if not len(wrong):
        return
    row, column = (int(number) for number in wrong[0])
    where = (
        f"rows {_shown((rows[row], rows[row + 1]))}, columns {_shown((columns[column], columns[column + 1]))}"
    )
    if not times[row, column]:
        raise PlanError(f"table {spec.name!r}: {where} are on no rank: add a shard that covers them")
    holders = [
        f"rank {shard.rank}"
        for shard in shards
        if shard.rows[0] <= rows[row] < shard.rows[1]
        and shard.columns[0] <= columns[column] < shard.columns[1]
    ]
    raise PlanError(
        f"table {spec.name!r}: {where} are covered {len(holders)} times, by {', '.join(holders)}: "
        "the shards of a table must not overlap"
    )


def _check_memory(needed: list[int], available: int) -> None:
    rank = max(range(len(needed)), key=needed.__getitem__)
    shortfall = needed[rank] - available
    if shortfall > 0:
        raise PlanError(
            f"rank {rank} needs {needed[rank]} bytes for tables and optimiser state, but has {available}: it lacks "
            f"{shortfall} bytes. Use more ranks, raise plan.rank_memory_bytes, or move tables to other ranks.",
            shortfall_bytes=shortfall,
        )


def _shown(bounds: Range) -> str:
    return f"{bounds[0]}-{bounds[1] - 1}" if bounds[1] - bounds[0] > 1 else str(bounds[0])
