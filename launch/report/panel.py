"""Sections and panels of the page, and charts in its style.

A section has panels; a panel is a figure with views to choose from, or a table. Charts are of Plotly Express, from a
pandas frame or what makes one.
"""

import html
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from windrow.training.terminal import BYTE_UNITS, byte_size

if TYPE_CHECKING:
    import pandas as pd

    from windrow.launch.report.read_run import ReportedRun

__all__ = [
    "INK",
    "MUTED",
    "TEMPLATE",
    "Panel",
    "Section",
    "Table",
    "byte_unit",
    "chart",
    "exact_bytes",
    "looks",
    "per_run",
    "plain",
    "series_colour",
    "series_rows",
    "shortened",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows of text."""

    header: Sequence[str]
    """Names of the columns."""
    rows: Sequence[Sequence[str]]
    """As many cells each as there are columns; the first one names the row."""
    marked: frozenset[tuple[int, int]] = frozenset()
    """(row, column) of the cells that are shown in bold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """A box on the page: a figure, or a table, or why there is neither."""

    title: str
    """Heading of the box; empty where the section's says it all."""
    description: str = ""
    """What the figure shows, for those who do not see it."""
    views: Mapping[str, Any] = field(default_factory=dict)
    """What a reader chooses a view by -> ``plotly.graph_objects.Figure``, from `chart`; the first is shown at first."""
    table: Table | None = None
    """A table, below the figure where there is one."""
    folded: str = ""
    """What the table is folded behind; empty for one that is seen at once."""
    note: str = ""
    """Small print below."""
    missing: str = ""
    """Why there is nothing to show; empty where there is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Panels under a common heading, side by side where the window is wide enough."""

    name: str
    """Of its anchor: lower case letters and hyphens."""
    title: str
    """Heading."""
    lead: str
    """One or two sentences: what is to be seen and where the numbers come from."""
    panels: Sequence[Panel]
    """At least one."""
    packed: bool = False
    """Whether panels fill columns from the top, where their heights differ much and rows mean nothing."""


def per_run(runs: "Sequence[ReportedRun]", panel: "Callable[[ReportedRun, str], Panel]", **texts: Any) -> Section:
    """A section with a panel for each run.

    Args:
        runs: at least one.
        panel: makes one of a run and a heading, which is empty where there is no other run to tell it from.
        texts: ``name``, ``title`` and ``lead`` of the section.
    """
    return Section(panels=[panel(run, run.name if len(runs) > 1 else "") for run in runs], **texts)


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
    kind: Literal["bar", "line", "scatter"],
    rows: Any,
    *,
    x: str,
    y: str,
    hover: str,
    layout: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """A ``plotly.graph_objects.Figure`` of bars (stacked), curves (points marked while there are few) or points.

    Args:
        kind: which.
        rows: what ``pandas.DataFrame`` takes: columns "x" and "y" or other names given to `options`, "series", where
            there are several, and "told", what the pointer says as "%{customdata[0]}".
        x: title of the axis, its unit in parentheses; that of epochs is "epoch", and "rank" has names for numbers.
        y: the same.
        hover: what the pointer shows, in Plotly's terms.
        layout: Plotly's options, which win over the template's.
        options: of `plotly.express`.
    """
    import pandas as pd
    import plotly.express as px

    frame = pd.DataFrame(rows if len(rows) else {"x": [], "y": []})
    # The style is the page's: Plotly's own template would be checked anew for every figure.
    defaults: dict[str, Any] = {"x": "x", "y": "y", "template": "none", "color_discrete_sequence": _COLOURS}
    if kind == "bar":
        defaults["pattern_shape_sequence"] = _PATTERNS
    if "series" in frame:
        # Plotly takes some HTML for markup.
        frame["series"] = frame["series"].map(plain)
        defaults |= {"color": "series"} | ({"pattern_shape": "series"} if kind == "bar" else {})
    if "told" in frame:
        defaults["custom_data"] = ["told"]
    if kind != "bar":
        options.pop("pattern_shape_map", None)
    figure = getattr(px, kind)(frame, **defaults | options)
    figure.update_traces(hovertemplate=f"{hover}<extra></extra>")
    x_axis: dict[str, Any] = {"title_text": x, "showgrid": kind != "bar"}
    if x == "rank":
        x_axis["type"] = "category"
    if x == "epoch" and len(frame):
        few = frame["x"].max() - frame["x"].min() < FEW_EPOCHS
        x_axis |= {"tickformat": "d", "dtick": 1 if few else None}
    figure.update_layout(
        xaxis=x_axis,
        yaxis={"title_text": y, "rangemode": "tozero" if kind == "bar" else None},
        legend_title_text="",
        height=HEIGHT,
        margin_t=12,
        barmode="stack",
        showlegend=1 < len(figure.data) <= MOST_IN_LEGEND,
    )
    for trace in figure.data if kind == "line" else ():
        trace.mode = "lines+markers" if len(trace.x) <= FEW_POINTS else "lines"
    return figure.update_layout(layout or {})


def series_rows(values: "pd.DataFrame", told: "pd.DataFrame | None" = None) -> "pd.DataFrame":
    """Rows for `chart` of a frame whose index is x and whose columns are series; cells without a number are left out.

    `told` is of the same shape: what the pointer says.
    """
    rows = values.rename_axis("x").melt(var_name="series", value_name="y", ignore_index=False).reset_index()
    if told is not None:
        rows["told"] = told.melt()["value"]
    return rows.dropna(subset="y")


def looks(series: Sequence[object]) -> dict[str, Any]:
    """Options of `chart` that draw series in this order, each as its place says, whether those before it are there."""
    names = [plain(name) for name in series]
    shapes = itertools.cycle(_PATTERNS)
    return {
        "category_orders": {"series": names},
        "color_discrete_map": {name: series_colour(place) for place, name in enumerate(names)},
        "pattern_shape_map": dict(zip(names, shapes, strict=False)),
    }


def series_colour(index: int) -> str:
    """The colour of the series (rank, stage, run) with this number."""
    return f"var(--series-{index % NUM_COLOURS})"


def plain(text: object) -> str:
    """A text from a file, so that Plotly shows it as it is: it takes some HTML for markup."""
    return html.escape(str(text), quote=False)


def shortened(text: str, letters: int) -> str:
    """A text of at most so many letters; an ellipsis stands for what is cut off."""
    return text if len(text) <= letters else f"{text[: letters - 1]}…"


def byte_unit(largest: float) -> tuple[float, str]:
    """Bytes per unit, and the unit's name, for an axis: the largest binary unit of which the largest value has one."""
    power = 0
    while power < len(BYTE_UNITS) - 1 and largest >= 1024.0 ** (power + 1):
        power += 1
    return 1024.0**power, BYTE_UNITS[power] if power else "bytes"


def exact_bytes(num_bytes: float) -> str:
    """Bytes to the last one, and as people read them."""
    exact = f"{num_bytes:,.0f} bytes"
    return exact if num_bytes < 1024 else f"{exact} ({byte_size(num_bytes)})"
