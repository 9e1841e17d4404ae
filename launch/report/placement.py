"""Figures of what each rank holds: parts of a graph, or shards of embedding tables.

Parts of a graph are bars, each cut into the ranks' shares. Embedding tables are bars, cut into the pieces that ranks
hold.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

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
    series_rows,
    shortened,
)
from windrow.launch.report.read_run import ReportedRun
from windrow.training.terminal import byte_size

if TYPE_CHECKING:
    import pandas as pd

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
SIZES = ("features", "cache")
"""In bytes; all else is counted."""
MOST_RANKS_WITH_LINES = 16
"""More lines of equal shares would be a thicket."""
LEAST_SHARE_WITH_TEXT = 8
"""Percent: a smaller piece has no room for its number."""


def _graph_views(ranks: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    """Shares of the ranks in each quantity, and each quantity in numbers."""
    import pandas as pd

    quantities = QUANTITIES | (CACHED if any(rank.get("cached_rows") for rank in ranks) else {})
    amounts = pd.DataFrame(ranks)[list(quantities)].astype(int).rename(columns=quantities)
    told = amounts.apply(lambda column: [_amount_text(column.name, amount) for amount in column])
    return {"shares": _shares(amounts, told)} | {
        name: chart(
            "bar",
            series_rows(amounts[[name]], told[[name]]),
            x="rank",
            y=f"{name} ({'bytes' if name in SIZES else 'count'})",
            hover="rank %{x}: %{customdata[0]}",
        ).update_traces(marker_color=[series_colour(rank) for rank in amounts.index])
        for name in amounts
    }


def _shares(amounts: "pd.DataFrame", told: "pd.DataFrame") -> Any:
    shares = 100 * amounts / amounts.sum().replace(0, 1)
    rows = series_rows(shares.T.add_prefix("rank "), told.T).rename(columns={"x": "y", "y": "x"})
    figure = chart(
        "bar",
        rows,
        x="share (%)",
        y="",
        hover="%{fullData.name}: %{customdata[0]}, %{x:.2f} %<br>%{y}",
        orientation="h",
        text=rows["x"].map("{:.1f} %".format).where(rows["x"] >= LEAST_SHARE_WITH_TEXT, ""),
        range_x=[0, 100],
        layout={"bargap": 0.3},
    )
    figure.update_traces(textposition="inside", insidetextanchor="middle")
    figure.update_yaxes(autorange="reversed")
    ranks = len(amounts)
    for number in range(1, ranks if ranks <= MOST_RANKS_WITH_LINES else 0):
        figure.add_vline(100 * number / ranks, line={"color": MUTED, "width": 1, "dash": "dot"})
    return figure


def _amount_text(name: str, amount: int) -> str:
    return exact_bytes(amount) if name in SIZES else f"{amount:,} {name}"


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
    import pandas as pd

    shards = pd.DataFrame(
        {
            "table": place,
            "plan": str(table["plan"]),
            "rank": int(shard["rank"]),
            "bytes": int(shard["bytes"]),
            "told": _shard_text(table, shard),
        }
        for place, table in enumerate(tables)
        for shard in table["shards"]
    )
    if not shards["rank"].between(0, world_size - 1).all():
        raise ValueError(f"a shard is on none of {world_size} ranks")
    names = [plain(shortened(str(table["name"]), MOST_LETTERS_OF_TABLE)) for table in tables]
    return {
        "sized by bytes": _bars(shards, names, world_size, "bytes"),
        "each table as 100 %": _bars(shards, names, world_size, "percent"),
        "what each rank holds": _by_rank(shards, world_size),
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


def _bars(shards: "pd.DataFrame", names: Sequence[str], world_size: int, scale: Literal["bytes", "percent"]) -> Any:
    sizes = shards.groupby("table")["bytes"].sum().sort_values(ascending=False, kind="stable").head(MOST_TABLES)
    divisor, unit = byte_unit(sizes.max())
    places = {table: place for place, table in enumerate(sizes.index)}
    shown = shards[shards["table"].isin(sizes.index)]
    rows = shown.assign(
        series="rank " + shown["rank"].astype(str),
        y=shown["table"].map(places),
        x=shown["bytes"] / (divisor if scale == "bytes" else shown["table"].map(sizes.replace(0, 1)) / 100),
    ).sort_values("y", kind="stable")
    figure = chart(
        "bar",
        rows,
        x=f"bytes of all pieces ({unit})" if scale == "bytes" else "share of the table (%)",
        y="",
        hover="%{customdata[0]}",
        orientation="h",
        **looks([f"rank {rank}" for rank in range(world_size)]),
        range_x=None if scale == "bytes" else [0, 100],
        layout={"height": max(LEAST_HEIGHT, FRAME_PIXELS + BAR_PIXELS * len(places)), "bargap": 0.25},
    )
    opacity = (rows["plan"] == REPLICATED).map({True: COPY_OPACITY, False: 1.0})
    figure.for_each_trace(lambda trace: trace.update(marker_opacity=opacity[rows["series"] == trace.name].tolist()))
    return figure.update_yaxes(
        autorange="reversed", tickvals=list(places.values()), ticktext=[names[table] for table in places]
    )


def _by_rank(shards: "pd.DataFrame", world_size: int) -> Any:
    held = shards.pivot_table(index="rank", columns="plan", values="bytes", aggfunc="sum", sort=False)
    held = held.reindex(range(world_size)).fillna(0)
    divisor, unit = byte_unit(held.sum(axis=1).max())
    rows = series_rows(held / divisor, held.map(exact_bytes))
    hover = "rank %{x}, %{fullData.name}: %{customdata[0]}"
    return chart("bar", rows, x="rank", y=f"tables ({unit})", hover=hover, layout={"showlegend": True})


def _shard_text(table: PlacedTable, shard: Mapping[str, Any]) -> str:
    rows = f"rows {_range(shard['first_row'], shard['rows'])} of {int(table['rows']):,}"
    columns = f"columns {_range(shard['first_column'], shard['columns'])} of {int(table['dim'])}"
    return (
        f"<b>{plain(table['name'])}</b> ({plain(table['plan'])})<br>rank {int(shard['rank'])}: {rows}, {columns}<br>"
        f"{exact_bytes(int(shard['bytes']))}"
    )


def _range(first: Any, count: Any) -> str:
    return f"{int(first):,} to {int(first) + int(count) - 1:,}"
