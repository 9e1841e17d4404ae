"""The parts of a graph as bars, each cut into the ranks' shares."""

from collections.abc import Mapping, Sequence

from windrow.launch.report.figure import (
    MOST_RANKS_IN_LEGEND,
    MUTED,
    axis,
    bar_marker,
    exact_bytes,
    layout,
    series_colour,
)
from windrow.launch.report.panel import View

__all__ = ["graph_note", "graph_views"]

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


def graph_views(ranks: Sequence[Mapping[str, int]]) -> list[View]:
    """Shares of the ranks in each quantity, and each quantity in numbers.

    Args:
        ranks: for each rank its vertices, training vertices, edges and bytes of features; rows and bytes of its
            cache where there is one.

    Raises:
        KeyError: a number is missing.
    """
    quantities = QUANTITIES
    if any(rank.get("cached_rows") for rank in ranks):
        quantities = QUANTITIES | CACHED
    return [_shares(ranks, quantities), *(_numbers(ranks, key, name) for key, name in quantities.items())]


def graph_note(num_ranks: int) -> str:
    """What the dotted lines are, where there are any."""
    return "Dotted lines are equal shares." if 1 < num_ranks <= MOST_RANKS_WITH_LINES else ""


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
                "customdata": [_told(key, name, int(rank[key])) for key, name in quantities.items()],
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


def _numbers(ranks: Sequence[Mapping[str, int]], key: str, name: str) -> View:
    values = [int(rank[key]) for rank in ranks]
    title = f"{name} ({'bytes' if _is_bytes(key) else 'count'})"
    data = [
        {
            "type": "bar",
            "x": [str(rank) for rank in range(len(ranks))],
            "y": values,
            "customdata": [_told(key, name, value) for value in values],
            "hovertemplate": "rank %{x}: %{customdata}<extra></extra>",
            "marker": {"color": [series_colour(rank) for rank in range(len(ranks))]},
        }
    ]
    return View(
        label=name,
        data=data,
        layout=layout(
            x=axis("rank", type="category", showgrid=False),
            y=axis(title, rangemode="tozero"),
            bargap=0.35,
            showlegend=False,
        ),
    )


def _is_bytes(key: str) -> bool:
    return key.endswith("_bytes")


def _told(key: str, name: str, value: int) -> str:
    return exact_bytes(value) if _is_bytes(key) else f"{value:,} {name}"
