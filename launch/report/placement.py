"""Figures of what each rank holds: parts of a graph, or shards of embedding tables.

Parts of a graph are bars, each cut into the ranks' shares. Embedding tables are bars, cut into the pieces that ranks
hold.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from windrow.comm.errors import StoreError
from windrow.launch.report.panel import (
    MUTED,
    Panel,
    byte_unit,
    chart,
    exact_bytes,
    looks,
    per_run,
    plain,
    series_colour,
    shortened,
)
from windrow.launch.report.read_run import ReportedRun
from windrow.training.terminal import byte_size

__all__ = ["placement_section"]


def _panel(run: ReportedRun, title: str) -> Panel:
    placement = run.placement
    if placement is None:
        return Panel(
            title=title, missing="Not recorded: this run has no placement.json, which older versions did not write."
        )
    kind = placement.get("kind")
    try:
        if kind == "graph":
            return Panel(
                title=title,
                description=f"Bars: how vertices, edges and features of {run.name} are spread over its ranks.",
                views=_graph_views(placement["ranks"]),
                note="Dotted lines are equal shares." if 1 < len(placement["ranks"]) <= MOST_RANKS_WITH_LINES else "",
            )
        if kind == "log":
            return Panel(
                title=title,
                description=f"Bars: how the embedding tables of {run.name} are cut into pieces on its ranks.",
                views=_table_views(placement["tables"], int(placement["world_size"])),
                note=_table_note(placement["tables"]),
            )
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise StoreError(
            f"{run.path / 'placement.json'}: not what this version of windrow writes "
            f"({type(error).__name__}: {error}). Remove the file to go without it."
        ) from error
    raise StoreError(
        f'{run.path / "placement.json"}: kind = {kind!r} is neither "graph" nor "log". Remove the file to go '
        "without it."
    )


placement_section = partial(
    per_run,
    panel=_panel,
    name="placement",
    title="Placement",
    lead="What each rank holds (placement.json), one colour per rank: of a graph its share of vertices, edges and "
    "features; of a click log the pieces of the embedding tables, weights and optimiser state together.",
)
"""One panel per run; a StoreError where a placement.json is not what this version writes."""


QUANTITIES = {
    "vertices": "vertices",
    "train_vertices": "training vertices",
    "edges": "edges",
    "feature_bytes": "features",
}
CACHED = {"cached_rows": "cached rows", "cached_bytes": "cache"}
"""Shown where there is a cache; older versions did not write them."""
MOST_RANKS_WITH_LINES = 16
"""More lines of equal shares would be a thicket."""
LEAST_SHARE_WITH_TEXT = 8
"""Percent: a smaller piece has no room for its number."""


def _graph_views(ranks: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    """Shares of the ranks in each quantity, and each quantity in numbers."""
    quantities = QUANTITIES
    if any(rank.get("cached_rows") for rank in ranks):
        quantities = QUANTITIES | CACHED
    return {
        "shares": _shares(ranks, quantities),
        **{name: _quantity_numbers(ranks, key, name) for key, name in quantities.items()},
    }


def _shares(ranks: Sequence[Mapping[str, int]], quantities: Mapping[str, str]) -> Any:
    totals = {key: sum(int(rank[key]) for rank in ranks) for key in quantities}
    rows: list[dict[str, Any]] = [
        {
            "series": f"rank {number}",
            "y": name,
            "x": 100 * int(rank[key]) / (totals[key] or 1),
            "told": _amount_text(key, name, int(rank[key])),
        }
        for number, rank in enumerate(ranks)
        for key, name in quantities.items()
    ]
    figure = chart(
        "bar",
        rows,
        x="share (%)",
        y="",
        hover="%{fullData.name}: %{customdata[0]}, %{x:.2f} %<br>%{y}",
        orientation="h",
        text=[f"{row['x']:.1f} %" if row["x"] >= LEAST_SHARE_WITH_TEXT else "" for row in rows],
        range_x=[0, 100],
        layout={"bargap": 0.3},
    )
    figure.update_traces(textposition="inside", insidetextanchor="middle")
    figure.update_yaxes(autorange="reversed")
    for number in range(1, len(ranks) if len(ranks) <= MOST_RANKS_WITH_LINES else 0):
        figure.add_vline(100 * number / len(ranks), line={"color": MUTED, "width": 1, "dash": "dot"})
    return figure


def _quantity_numbers(ranks: Sequence[Mapping[str, int]], key: str, name: str) -> Any:
    rows = [
        {"x": number, "y": int(rank[key]), "told": _amount_text(key, name, int(rank[key]))}
        for number, rank in enumerate(ranks)
    ]
    title = f"{name} ({'bytes' if _is_bytes(key) else 'count'})"
    colours = [series_colour(rank) for rank in range(len(ranks))]
    return chart("bar", rows, x="rank", y=title, hover="rank %{x}: %{customdata[0]}").update_traces(
        marker_color=colours
    )


def _is_bytes(key: str) -> bool:
    return key.endswith("_bytes")


def _amount_text(key: str, name: str, value: int) -> str:
    return exact_bytes(value) if _is_bytes(key) else f"{value:,} {name}"


MOST_TABLES = 40
"""More bars than this are no picture; the largest tables are shown, and a note says so."""
BAR_PIXELS, FRAME_PIXELS, LEAST_HEIGHT = 26, 110, 300
MOST_LETTERS_OF_TABLE = 24
REPLICATED = "replicated"
COPY_OPACITY = 0.45
"""Copies are paler than pieces of which there is one: hatching tells ranks beyond the eighth apart."""

PlacedTable = Mapping[str, Any]


def _table_views(tables: Sequence[PlacedTable], world_size: int) -> dict[str, Any]:
    """The tables sized by bytes, all equally wide, and what each rank holds in all."""
    return {
        "sized by bytes": _bars(tables, world_size, "bytes"),
        "each table as 100 %": _bars(tables, world_size, "percent"),
        "what each rank holds": _by_rank(tables, world_size),
    }


def _table_note(tables: Sequence[PlacedTable]) -> str:
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


def _bars(tables: Sequence[PlacedTable], world_size: int, scale: Literal["bytes", "percent"]) -> Any:
    shown = sorted(tables, key=lambda table: -_held(table))[:MOST_TABLES]
    divisor, unit = byte_unit(max((_held(table) for table in shown), default=0))
    rows = [
        {
            "series": f"rank {int(shard['rank'])}",
            "y": place,
            "x": int(shard["bytes"]) / (divisor if scale == "bytes" else _held(table) / 100 or 1),
            "told": _shard_text(table, shard),
            "opacity": COPY_OPACITY if table["plan"] == REPLICATED else 1.0,
        }
        for place, table in enumerate(shown)
        for shard in table["shards"]
    ]
    figure = chart(
        "bar",
        rows,
        x=f"bytes of all pieces ({unit})" if scale == "bytes" else "share of the table (%)",
        y="",
        hover="%{customdata[0]}",
        orientation="h",
        **looks([f"rank {rank}" for rank in range(world_size)]),
        range_x=None if scale == "bytes" else [0, 100],
        layout={"height": max(LEAST_HEIGHT, FRAME_PIXELS + BAR_PIXELS * len(shown)), "bargap": 0.25},
    )
    for trace in figure.data:
        trace.marker.opacity = [row["opacity"] for row in rows if row["series"] == trace.name]
    names = [plain(shortened(str(table["name"]), MOST_LETTERS_OF_TABLE)) for table in shown]
    return figure.update_yaxes(autorange="reversed", tickvals=list(range(len(shown))), ticktext=names)


def _by_rank(tables: Sequence[PlacedTable], world_size: int) -> Any:
    held = {str(table["plan"]): [0] * world_size for table in tables}
    for table in tables:
        for shard in table["shards"]:
            held[str(table["plan"])][int(shard["rank"])] += int(shard["bytes"])
    divisor, unit = byte_unit(max(map(sum, zip(*held.values(), strict=True)), default=0))
    rows = [
        {"x": rank, "series": plan, "y": value / divisor, "told": exact_bytes(value)}
        for plan, values in held.items()
        for rank, value in enumerate(values)
    ]
    hover = "rank %{x}, %{fullData.name}: %{customdata[0]}"
    return chart("bar", rows, x="rank", y=f"tables ({unit})", hover=hover, layout={"showlegend": True})


def _held(table: PlacedTable) -> int:
    """Bytes of all pieces, each copy counted."""
    return sum(int(shard["bytes"]) for shard in table["shards"])


def _shard_text(table: PlacedTable, shard: Mapping[str, Any]) -> str:
    rows = f"rows {_range(shard['first_row'], shard['rows'])} of {int(table['rows']):,}"
    columns = f"columns {_range(shard['first_column'], shard['columns'])} of {int(table['dim'])}"
    return (
        f"<b>{plain(table['name'])}</b> ({plain(table['plan'])})<br>rank {int(shard['rank'])}: {rows}, {columns}<br>"
        f"{exact_bytes(int(shard['bytes']))}"
    )


def _range(first: Any, count: Any) -> str:
    return f"{int(first):,} to {int(first) + int(count) - 1:,}"
