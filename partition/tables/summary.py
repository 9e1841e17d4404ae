"""A plan as two small tables of text: by table, and by rank."""

from collections.abc import Sequence

from windrow.partition.tables.plan import Plan, rank_bytes
from windrow.partition.tables.spec import TableSpec, specs_by_name

__all__ = ["describe_plan"]

MOST_RANKS_SHOWN = 8


def describe_plan(plan: Plan, specs: Sequence[TableSpec], world_size: int) -> str:
    """What a plan puts where.

    Args:
        plan: a checked plan.
        specs: its tables.
        world_size: number of ranks.

    Returns:
        Lines of text. By table: rows, dim, bytes of one copy, how it is cut and which ranks hold it. By rank:
        pieces (replicated tables count), bytes, pooled numbers that its pieces give per sample, and the
        lookups to expect per sample of the whole minibatch (of a replicated table: its share).
    """
    tables = [
        (
            spec.name,
            f"{spec.rows:,}",
            str(spec.dim),
            f"{spec.num_bytes:,}",
            plan.kind_of(spec.name),
            _ranks(plan, spec.name),
        )
        for spec in specs
    ]
    ranks = _rank_lines(plan, specs, world_size)
    return "\n".join(
        [
            *_aligned(("table", "rows", "dim", "bytes", "plan", "ranks"), tables, left=(0, 4, 5)),
            "",
            *_aligned(("rank", "pieces", "bytes", "dims", "lookups/sample"), ranks, left=()),
        ]
    )


def _rank_lines(plan: Plan, specs: Sequence[TableSpec], world_size: int) -> list[tuple[str, ...]]:
    named = specs_by_name(specs)
    copies = [named[table] for table in plan.replicated]
    lines: list[tuple[str, ...]] = []
    for rank, num_bytes in enumerate(rank_bytes(plan, specs, world_size)):
        shards = plan.shards_on(rank)
        dims = sum(shard.num_columns * len(named[shard.table].features) for shard in shards)
        dims += sum(spec.dim * len(spec.features) for spec in copies)
        lookups = sum(spec.lookups_per_sample for spec in copies) / world_size
        lookups += sum(
            named[shard.table].lookups_per_sample * shard.num_rows / named[shard.table].rows
            for shard in shards
        )
        pieces = len(shards) + len(copies)
        lines.append((str(rank), str(pieces), f"{num_bytes:,}", str(dims), f"{lookups:.2f}"))
    return lines


def _ranks(plan: Plan, table: str) -> str:
    if table in plan.replicated:
        return "all"
    ranks = sorted({shard.rank for shard in plan.shards_of(table)})
    shown = ", ".join(map(str, ranks[:MOST_RANKS_SHOWN]))
    return shown if len(ranks) <= MOST_RANKS_SHOWN else f"{shown}, ... ({len(ranks)})"


def _aligned(
    header: tuple[str, ...], lines: Sequence[tuple[str, ...]], *, left: tuple[int, ...]
) -> list[str]:
    """Columns two blanks apart: text to the left, numbers to the right."""
    columns = list(zip(header, *lines, strict=True))
    widths = [max(map(len, column)) for column in columns]
    return [
        "  ".join(
            cell.ljust(width) if number in left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (header, *lines)
    ]
