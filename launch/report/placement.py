"""Figures of what each rank holds: parts of a graph, or rectangles of embedding tables.

Parts of a graph are bars, each cut into the ranks' shares. Embedding tables are bars, cut into the pieces that ranks
hold.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from windrow.comm.errors import StoreError
from windrow.launch.report.panel import (
    MOST_RANKS_IN_LEGEND,
    MUTED,
    Panel,
    Section,
    View,
    axis,
    bar_marker,
    bars,
    byte_unit,
    exact_bytes,
    layout,
    per_run,
    plain,
    rank_axis,
    series_colour,
)
from windrow.launch.report.read_run import ReportedRun
from windrow.launch.terminal import byte_size

__all__ = ["placement_section"]


def placement_section(runs: Sequence[ReportedRun]) -> Section:
    """One panel per run.

    Raises:
        StoreError: a placement.json is not what this version writes.
    """
    return per_run(
        runs,
        _panel,
        name="placement",
        title="Placement",
        lead="What each rank holds (placement.json), one colour per rank: of a graph its share of vertices, edges and "
        "features; of a click log the pieces of the embedding tables, weights and optimiser state together.",
    )


def _panel(run: ReportedRun, title: str) -> Panel:
    placement = run.placement
    if placement is None:
        return Panel(
            title=title,
            missing="Not recorded: this run has no placement.json, which older versions did not write.",
        )
    kind = placement.get("kind")
    try:
        if kind == "graph":
            return Panel(
                title=title,
                description=f"Bars: how vertices, edges and features of {run.name} are spread over its ranks.",
                views=_graph_views(placement["ranks"]),
                note="Dotted lines are equal shares."
                if 1 < len(placement["ranks"]) <= MOST_RANKS_WITH_LINES
                else "",
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


def _graph_views(ranks: Sequence[Mapping[str, int]]) -> list[View]:
    """Shares of the ranks in each quantity, and each quantity in numbers."""
    quantities = QUANTITIES
    if any(rank.get("cached_rows") for rank in ranks):
        quantities = QUANTITIES | CACHED
    return [
        _shares(ranks, quantities),
        *(_quantity_numbers(ranks, key, name) for key, name in quantities.items()),
    ]


def _shares(ranks: Sequence[Mapping[str, int]], quantities: Mapping[str, str]) -> View:
    totals = {key: sum(int(rank[key]) for rank in ranks) for key in quantities}
    data = []
    for number, rank in enumerate(ranks):
        percent = [100 * int(rank[key]) / totals[key] if totals[key] else 0.0 for key in quantities]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": f"rank {number}",
                "y": list(quantities.values()),
                "x": percent,
                "customdata": [_amount_text(key, name, int(rank[key])) for key, name in quantities.items()],
                "text": [f"{share:.1f} %" if share >= 8 else "" for share in percent],
                "textposition": "inside",
                "insidetextanchor": "middle",
                "hovertemplate": f"rank {number}: " + "%{customdata}, %{x:.2f} %<extra>%{y}</extra>",
                "marker": bar_marker(number),
            }
        )
    lines = [
        {
            "type": "line",
            "yref": "paper",
            "x0": 100 * n / len(ranks),
            "x1": 100 * n / len(ranks),
            "y0": 0,
            "y1": 1,
            "line": {"color": MUTED, "width": 1, "dash": "dot"},
        }
        for n in range(1, len(ranks))
        if len(ranks) <= MOST_RANKS_WITH_LINES
    ]
    return View(
        label="shares",
        data=data,
        layout=layout(
            x=axis("share (%)", range=[0, 100], showgrid=False),
            y=axis(autorange="reversed", showgrid=False),
            barmode="stack",
            bargap=0.3,
            shapes=lines,
            showlegend=1 < len(ranks) <= MOST_RANKS_IN_LEGEND,
        ),
    )


def _quantity_numbers(ranks: Sequence[Mapping[str, int]], key: str, name: str) -> View:
    values = [int(rank[key]) for rank in ranks]
    title = f"{name} ({'bytes' if _is_bytes(key) else 'count'})"
    return View(
        label=name,
        data=bars(
            [str(rank) for rank in range(len(ranks))],
            {name: values},
            "rank %{x}: %{customdata}<extra></extra>",
            told={name: [_amount_text(key, name, value) for value in values]},
            marker=lambda _: {"color": [series_colour(rank) for rank in range(len(ranks))]},
        ),
        layout=layout(
            x=rank_axis(),
            y=axis(title, rangemode="tozero"),
            bargap=0.35,
            showlegend=False,
        ),
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


def _table_views(tables: Sequence[PlacedTable], world_size: int) -> list[View]:
    """The tables sized by bytes, all equally wide, and what each rank holds in all."""
    return [
        _bars(tables, world_size, "bytes"),
        _bars(tables, world_size, "percent"),
        _by_rank(tables, world_size),
    ]


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
                "customdata": [_shard_text(table, shard) for _, table, shard in pieces],
                "hovertemplate": "%{customdata}<extra></extra>",
                "marker": bar_marker(rank) | {"opacity": pale},
            }
        )
    title = f"bytes of all pieces ({unit})" if scale == "bytes" else "share of the table (%)"
    options: dict[str, Any] = {"range": [0, 100]} if scale == "percent" else {"rangemode": "tozero"}
    names = [_short_name(str(table["name"])) for table in shown]
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
    return View(
        label="what each rank holds",
        data=bars(
            [str(rank) for rank in range(world_size)],
            {plan: [value / divisor for value in held[plan]] for plan in plans},
            "rank %{x}, %{fullData.name}: %{customdata}<extra></extra>",
            told={plan: [exact_bytes(value) for value in held[plan]] for plan in plans},
        ),
        layout=layout(
            x=rank_axis(),
            y=axis(f"tables ({unit})", rangemode="tozero"),
            barmode="stack",
            bargap=0.35,
            showlegend=True,
        ),
    )


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


def _short_name(name: str) -> str:
    return plain(name if len(name) <= MOST_LETTERS_OF_TABLE else f"{name[: MOST_LETTERS_OF_TABLE - 1]}…")
