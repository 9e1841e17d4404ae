"""Embedding tables as bars, cut into the pieces that ranks hold."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from windrow.launch.formatting import byte_size
from windrow.launch.report.figure import (
    MOST_RANKS_IN_LEGEND,
    axis,
    bar_marker,
    byte_unit,
    exact_bytes,
    layout,
    plain,
)
from windrow.launch.report.panel import View

__all__ = ["table_note", "table_views"]

MOST_TABLES = 40
"""More bars than this are no picture; the largest tables are shown, and a note says so."""
BAR_PIXELS, FRAME_PIXELS, LEAST_HEIGHT = 26, 110, 300
MOST_LETTERS = 24
REPLICATED = "replicated"
COPY_OPACITY = 0.45
"""Copies are paler than pieces of which there is one: hatching tells ranks beyond the eighth apart."""

PlacedTable = Mapping[str, Any]


def table_views(tables: Sequence[PlacedTable], world_size: int) -> list[View]:
    """The tables sized by bytes, all equally wide, and what each rank holds in all.

    Args:
        tables: as in placement.json.
        world_size: number of ranks.

    Raises:
        KeyError: a number is missing.
    """
    return [
        _bars(tables, world_size, "bytes"),
        _bars(tables, world_size, "percent"),
        _by_rank(tables, world_size),
    ]


def table_note(tables: Sequence[PlacedTable]) -> str:
    """How many tables there are, and how many of them are shown."""
    held = sum(int(shard["bytes"]) for table in tables for shard in table["shards"])
    once = sum(int(table["bytes"]) for table in tables)
    copies = sum(table["plan"] == REPLICATED for table in tables)
    parts = [f"{len(tables)} tables, {byte_size(once)}"]
    if copies:
        parts.append(f"{copies} of them (pale) copied to every rank, {byte_size(held)} with all copies")
    if len(tables) > MOST_TABLES:
        parts.append(f"the {MOST_TABLES} largest are shown by name")
    return "; ".join(parts) + "."


def _bars(tables: Sequence[PlacedTable], world_size: int, scale: Literal["bytes", "percent"]) -> View:
    shown = sorted(tables, key=lambda table: -_held(table))[:MOST_TABLES]
    divisor, unit = byte_unit(max((_held(table) for table in shown), default=0))
    data = []
    for rank in range(world_size):
        pieces = [
            (index, table, shard)
            for index, table in enumerate(shown)
            for shard in table["shards"]
            if int(shard["rank"]) == rank
        ]
        pale = [COPY_OPACITY if table["plan"] == REPLICATED else 1.0 for _, table, _ in pieces]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": f"rank {rank}",
                "y": [index for index, _, _ in pieces],
                "x": [
                    int(shard["bytes"]) / divisor
                    if scale == "bytes"
                    else 100 * int(shard["bytes"]) / (_held(table) or 1)
                    for _, table, shard in pieces
                ],
                "customdata": [_told(table, shard) for _, table, shard in pieces],
                "hovertemplate": "%{customdata}<extra></extra>",
                "marker": bar_marker(rank) | {"opacity": pale},
            }
        )
    title = f"bytes of all pieces ({unit})" if scale == "bytes" else "share of the table (%)"
    options: dict[str, Any] = {"range": [0, 100]} if scale == "percent" else {"rangemode": "tozero"}
    names = [_short(str(table["name"])) for table in shown]
    return View(
        label="sized by bytes" if scale == "bytes" else "each table as 100 %",
        data=data,
        layout=layout(
            x=axis(title, **options),
            y=axis(autorange="reversed", showgrid=False, tickvals=list(range(len(shown))), ticktext=names),
            height=max(LEAST_HEIGHT, FRAME_PIXELS + BAR_PIXELS * len(shown)),
            barmode="stack",
            bargap=0.25,
            showlegend=1 < world_size <= MOST_RANKS_IN_LEGEND,
        ),
    )


def _by_rank(tables: Sequence[PlacedTable], world_size: int) -> View:
    plans = list(dict.fromkeys(str(table["plan"]) for table in tables))
    held = {plan: [0] * world_size for plan in plans}
    for table in tables:
        for shard in table["shards"]:
            held[str(table["plan"])][int(shard["rank"])] += int(shard["bytes"])
    largest = max((sum(held[plan][rank] for plan in plans) for rank in range(world_size)), default=0)
    divisor, unit = byte_unit(largest)
    data = [
        {
            "type": "bar",
            "name": plain(plan),
            "x": [str(rank) for rank in range(world_size)],
            "y": [value / divisor for value in held[plan]],
            "customdata": [exact_bytes(value) for value in held[plan]],
            "hovertemplate": "rank %{x}, %{fullData.name}: %{customdata}<extra></extra>",
            "marker": bar_marker(index),
        }
        for index, plan in enumerate(plans)
    ]
    return View(
        label="what each rank holds",
        data=data,
        layout=layout(
            x=axis("rank", type="category", showgrid=False),
            y=axis(f"tables ({unit})", rangemode="tozero"),
            barmode="stack",
            bargap=0.35,
            showlegend=True,
        ),
    )


def _held(table: PlacedTable) -> int:
    """Bytes of all pieces, each copy counted."""
    return sum(int(shard["bytes"]) for shard in table["shards"])


def _told(table: PlacedTable, shard: Mapping[str, Any]) -> str:
    rows = f"rows {_range(shard['first_row'], shard['rows'])} of {int(table['rows']):,}"
    columns = f"columns {_range(shard['first_column'], shard['columns'])} of {int(table['dim'])}"
    return (
        f"<b>{plain(table['name'])}</b> ({plain(table['plan'])})<br>rank {int(shard['rank'])}: {rows}, {columns}<br>"
        f"{exact_bytes(int(shard['bytes']))}"
    )


def _range(first: Any, count: Any) -> str:
    return f"{int(first):,} to {int(first) + int(count) - 1:,}"


def _short(name: str) -> str:
    return plain(name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…")
