"""What each rank holds, from placement.json: parts of a graph, or shards of embedding tables, as bars of shares."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windrow.comm.errors import StoreError
from windrow.launch.report.panel import Panel, chart, plain, series_rows
from windrow.launch.report.read_run import ReportedRun
from windrow.training.terminal import byte_size

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["placement_panel"]


def placement_panel(run: ReportedRun) -> Panel:
    """How a graph or the tables of a log are spread over ranks.

    Raises:
        StoreError: placement.json is not what this version writes.
    """
    placement = run.placement
    if placement is None:
        return Panel(missing="Not recorded: this run has no placement.json, which older versions did not write.")
    kinds = {"graph": _graph_panel, "log": _tables_panel}
    try:
        return kinds[placement["kind"]](placement)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise StoreError(
            f"{run.path / 'placement.json'}: not what this version of windrow writes "
            f"({type(error).__name__}: {error}). Remove the file to go without it."
        ) from error


QUANTITIES = {
    "vertices": "vertices",
    "train_vertices": "training vertices",
    "edges": "edges",
    "feature_bytes": "bytes of features",
}
CACHED = {"cached_rows": "cached rows", "cached_bytes": "bytes of cache"}
"""Shown where there is a cache; older versions did not write them."""


def _graph_panel(placement: Mapping[str, Any]) -> Panel:
    import pandas as pd

    parts = placement["ranks"]
    quantities = QUANTITIES | (CACHED if any(part.get("cached_rows") for part in parts) else {})
    amounts = pd.DataFrame(parts)[list(quantities)].astype(int).rename(columns=quantities).T.add_prefix("rank ")
    told = amounts.apply(lambda held: [f"{amount:,} {what}" for what, amount in held.items()])
    shares = series_rows(100 * amounts.div(amounts.sum(axis=1).replace(0, 1), axis=0), told)
    figure = chart(
        "bar",
        shares.rename(columns={"x": "y", "y": "x"}),
        x="share (%)",
        y="",
        hover="%{fullData.name}: %{customdata[0]}, %{x:.2f} %<br>%{y}",
        orientation="h",
        text=shares["y"].map("{:.1f} %".format),
        range_x=[0, 100],
        layout={"bargap": 0.3, "yaxis_autorange": "reversed", "uniformtext": {"minsize": 10, "mode": "hide"}},
    ).update_traces(textposition="inside", insidetextanchor="middle")
    return Panel(views={"shares": figure})


MOST_TABLES = 40
"""More bars than this are no picture; the largest tables are shown, and a note says so."""
BAR_PIXELS, FRAME_PIXELS, LEAST_HEIGHT = 26, 110, 300
MOST_LETTERS = 24
"""Of a table's name."""
REPLICATED = "replicated"
COPY_OPACITY = 0.45
"""Copies are paler than pieces of which there is one: hatching tells ranks beyond the eighth apart."""


def _tables_panel(placement: Mapping[str, Any]) -> Panel:
    import pandas as pd

    tables, world_size = placement["tables"], int(placement["world_size"])
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
    shards["series"] = "rank " + shards["rank"].astype(str)
    names = [plain(table["name"]) for table in tables]
    labels = [label if len(label) <= MOST_LETTERS else f"{label[: MOST_LETTERS - 1]}…" for label in names]
    copies = sum(table["plan"] == REPLICATED for table in tables)
    parts = [f"{len(tables)} tables, {byte_size(sum(int(table['bytes']) for table in tables))}"]
    if copies:
        held = byte_size(shards["bytes"].sum())
        parts.append(f"{copies} of them (pale) copied to every rank, {held} with all copies")
    if len(tables) > MOST_TABLES:
        parts.append(f"the {MOST_TABLES} largest are shown by name")
    by_rank = shards.pivot_table(index="rank", columns="plan", values="bytes", aggfunc="sum", sort=False)
    return Panel(
        views={
            "sized by bytes": _bars(shards, labels, world_size),
            "each table as 100 %": _bars(shards, labels, world_size).update_layout(
                barnorm="percent", xaxis={"title_text": "share of the table (%)", "tickformat": None}
            ),
            "what each rank holds": chart(
                "bar",
                series_rows(by_rank.reindex(range(world_size)).fillna(0)),
                x="rank",
                y="tables (bytes)",
                hover="rank %{x}, %{fullData.name}: %{y:,.0f} bytes",
                layout={"showlegend": True, "yaxis_tickformat": "~s"},
            ),
        },
        note="; ".join(parts) + ".",
    )


def _bars(shards: "pd.DataFrame", labels: Sequence[str], world_size: int) -> Any:
    """The largest tables, as long as their bytes."""
    sizes = shards.groupby("table")["bytes"].sum().sort_values(ascending=False, kind="stable").head(MOST_TABLES)
    places = {table: place for place, table in enumerate(sizes.index)}
    shown = shards[shards["table"].isin(sizes.index)]
    rows = shown.assign(y=shown["table"].map(places), x=shown["bytes"]).sort_values("y", kind="stable")
    figure = chart(
        "bar",
        rows,
        x="bytes of all pieces",
        y="",
        hover="%{customdata[0]}",
        orientation="h",
        names=[f"rank {rank}" for rank in range(world_size)],
        layout={
            "height": max(LEAST_HEIGHT, FRAME_PIXELS + BAR_PIXELS * len(places)),
            "bargap": 0.25,
            "xaxis_tickformat": "~s",
        },
    )
    opacity = (rows["plan"] == REPLICATED).map({True: COPY_OPACITY, False: 1.0})
    figure.for_each_trace(lambda trace: trace.update(marker_opacity=opacity[rows["series"] == trace.name].tolist()))
    return figure.update_yaxes(
        autorange="reversed", tickvals=list(places.values()), ticktext=[labels[table] for table in places]
    )


def _shard_text(table: Mapping[str, Any], shard: Mapping[str, Any]) -> str:
    rows = f"rows {_range(shard['first_row'], shard['rows'])} of {int(table['rows']):,}"
    if int(shard["first_row"]) >= int(table["rows"]):
        rows = f"copies of {int(shard['rows']):,} rows"
    columns = f"columns {_range(shard['first_column'], shard['columns'])} of {int(table['dim'])}"
    return (
        f"<b>{plain(table['name'])}</b> ({plain(table['plan'])})<br>rank {int(shard['rank'])}: {rows}, {columns}<br>"
        f"{int(shard['bytes']):,} bytes"
    )


def _range(first: Any, count: Any) -> str:
    return f"{int(first):,} to {int(first) + int(count) - 1:,}"
