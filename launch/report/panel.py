"""Panels of the page, and charts of Plotly Express in its style."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["INK", "MUTED", "NUM_COLOURS", "TEMPLATE", "Panel", "chart", "plain", "series_rows"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """A box on the page: a figure, or a table, or why there is neither."""

    title: str = ""
    """Heading of the box; empty where the section's says it all."""
    views: Mapping[str, Any] = field(default_factory=dict)
    """What a reader chooses a view by -> ``plotly.graph_objects.Figure``, from `chart`; the first is shown at first."""
    table: "pd.DataFrame | None" = None
    """Texts, with a heading for each row and column."""
    note: str = ""
    """Small print below."""
    missing: str = ""
    """Why there is nothing to show; empty where there is."""


INK = "var(--ink)"
"""Colours are names of the page's own style sheet: its script puts in what they are in light or dark mode."""
MUTED = "var(--muted)"
_GRID, _SURFACE = "var(--grid)", "var(--surface)"
NUM_COLOURS = 8
"""Colours of the palette; further series begin again with the first, and their bars are hatched."""
_COLOURS = [f"var(--series-{number})" for number in range(NUM_COLOURS)]
_PATTERNS = [shape for shape in ("", "/", "x", ".") for _ in _COLOURS]
HEIGHT = 340
"""Pixels of a figure that has no rows to make room for."""
FEW_POINTS = 25
"""Up to so many points of a curve are marked."""
MOST_IN_LEGEND = 24
"""A longer legend would leave no room for the figure: the pointer tells what is what."""
FEW_EPOCHS = 12
"""Fewer epochs than this get a tick each: Plotly would put ticks in between."""

_AXIS = {
    "title": {"standoff": 10},
    "automargin": True,
    "gridcolor": _GRID,
    "linecolor": _GRID,
    "zeroline": False,
    "ticks": "",
    "tickfont": {"color": MUTED},
}

TEMPLATE: Mapping[str, Any] = {
    "layout": {
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "bargap": 0.35,
        "margin": {"l": 8, "r": 20, "t": 12, "b": 8},
        "font": {
            "family": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif",
            "size": 13,
            "color": INK,
        },
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hoverlabel": {"bgcolor": _SURFACE, "bordercolor": _GRID, "font": {"color": INK}, "align": "left"},
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1.02,
            "xanchor": "left",
            "yanchor": "bottom",
            "traceorder": "normal",
            "bgcolor": "rgba(0,0,0,0)",
        },
    },
    "data": {
        "bar": [
            {
                "marker": {
                    "line": {"color": _SURFACE, "width": 1},
                    "pattern": {"fillmode": "overlay", "fgcolor": _SURFACE, "size": 6, "solidity": 0.3},
                }
            }
        ],
        "scatter": [{"line": {"width": 2}, "marker": {"size": 6}}],
    },
}
"""Plotly's template of all figures, which the page puts in: no background of their own, the legend above the plot and
never over it."""


def chart(
    kind: Literal["bar", "line"],
    rows: "pd.DataFrame",
    *,
    x: str,
    y: str,
    hover: str,
    names: Sequence[object] = (),
    layout: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """A ``plotly.graph_objects.Figure`` of stacked bars, or of curves, points marked while there are few.

    Args:
        kind: which.
        rows: columns "x" and "y" or other names given to `options`, "series", where there are several, and "told",
            what the pointer says as "%{customdata[0]}".
        x: title of the axis, its unit in parentheses; that of epochs is "epoch", and "rank" has names for numbers.
        y: the same.
        hover: what the pointer shows, in Plotly's terms.
        names: of series, whose places choose colour and hatching; rows need not have all of them.
        layout: Plotly's options, which win over the template's.
        options: of `plotly.express`.
    """
    import plotly.express as px

    series = [plain(name) for name in names]
    # The style is the page's: Plotly's own template would be checked anew for every figure.
    defaults: dict[str, Any] = {
        "x": "x",
        "y": "y",
        "template": "none",
        "color_discrete_sequence": _COLOURS,
        "color_discrete_map": {name: _COLOURS[place % NUM_COLOURS] for place, name in enumerate(series)},
    }
    if "series" in rows:
        rows = rows.assign(series=rows["series"].map(plain))
        defaults |= {"color": "series", "category_orders": {"series": series}}
        if kind == "bar":
            shapes = {name: _PATTERNS[place % len(_PATTERNS)] for place, name in enumerate(series)}
            defaults |= {
                "pattern_shape": "series", "pattern_shape_sequence": _PATTERNS, "pattern_shape_map": shapes,
            }  # fmt: skip
    if "told" in rows:
        defaults["custom_data"] = ["told"]
    figure = getattr(px, kind)(rows, **defaults | options)
    x_axis: dict[str, Any] = {"title_text": x, "showgrid": kind != "bar"}
    if x == "rank":
        x_axis["type"] = "category"
    if x == "epoch" and len(rows):
        few = rows["x"].max() - rows["x"].min() < FEW_EPOCHS
        x_axis |= {"tickformat": "d", "dtick": 1 if few else None}
    for trace in figure.data if kind == "line" else ():
        trace.mode = "lines+markers" if len(trace.x) <= FEW_POINTS else "lines"
    return (
        figure.update_traces(hovertemplate=f"{hover}<extra></extra>")
        .update_layout(
            xaxis=x_axis,
            yaxis={"title_text": y, "rangemode": "tozero" if kind == "bar" else None},
            legend_title_text="",
            height=HEIGHT,
            margin_t=12,
            barmode="stack",
            showlegend=1 < len(figure.data) <= MOST_IN_LEGEND,
        )
        .update_layout(layout or {})
    )


def series_rows(values: "pd.DataFrame", told: "pd.DataFrame | None" = None) -> "pd.DataFrame":
    """Rows for `chart` of a frame whose index is x and whose columns are series; cells without a number are left out.

    `told` is of the same shape: what the pointer says.
    """
    rows = values.rename_axis("x").melt(var_name="series", value_name="y", ignore_index=False).reset_index()
    if told is not None:
        rows["told"] = told.melt()["value"]
    return rows.dropna(subset="y")


def plain(text: object) -> str:
    """A text from a file, so that Plotly shows it as it is: it takes some HTML for markup."""
    return html.escape(str(text), quote=False)
