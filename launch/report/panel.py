"""Sections and panels of the page, each a figure or a table, and what all figures have in common.

A section has panels; a panel is a figure with views to choose from, or a table. Figures share colours, axes, legend,
and texts that are safe to show.
"""

import html
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windrow.launch.terminal import byte_size

if TYPE_CHECKING:
    from windrow.launch.report.read_run import ReportedRun

__all__ = [
    "INK",
    "MOST_RANKS_IN_LEGEND",
    "MUTED",
    "SURFACE",
    "Panel",
    "Section",
    "Table",
    "View",
    "axis",
    "bar_marker",
    "bars",
    "byte_unit",
    "curve",
    "exact_bytes",
    "layout",
    "per_run",
    "plain",
    "rank_axis",
    "series_colour",
    "whole_ticks",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """One way to look at a panel's figure, in Plotly's terms."""

    label: str
    """What a reader chooses it by, where there are several."""
    data: Sequence[Mapping[str, Any]]
    """Plotly's traces; texts from files have gone through `windrow.launch.report.panel.plain`."""
    layout: Mapping[str, Any]
    """Plotly's layout, from `windrow.launch.report.panel.layout`."""


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
    views: Sequence[View] = ()
    """The figure; the first view is shown until another is chosen."""
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


INK = "var(--ink)"
"""Colours are names of the page's own style sheet: its script puts in what they are in light or dark mode."""
MUTED = "var(--muted)"
GRID = "var(--grid)"
SURFACE = "var(--surface)"
NUM_COLOURS = 8
"""Colours of the palette; further series begin again with the first."""
FEW_POINTS = 25
"""Up to so many points of a curve are marked."""
MOST_RANKS_IN_LEGEND = 24
"""A longer legend of ranks would leave no room for the figure: the pointer tells them."""
FEW_EPOCHS = 12
"""Fewer epochs than this get a tick each."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
BYTE_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
PLOT_HEIGHT = 340
"""Pixels of a figure that has no rows to make room for."""


def plain(text: object) -> str:
    """A text from a file, so that Plotly shows it as it is: it takes some HTML for markup."""
    return html.escape(str(text), quote=False)


def series_colour(index: int) -> str:
    """The colour of the series (rank, stage, run) with this number."""
    return f"var(--series-{index % NUM_COLOURS})"


def bar_marker(index: int) -> dict[str, Any]:
    """Plotly's marker of the bars of the series with this number: hatched where the colours begin again."""
    shape = ("", "/", "x", ".")[index // NUM_COLOURS % 4]
    return {
        "color": series_colour(index),
        "line": {"color": SURFACE, "width": 1},
        "pattern": {"shape": shape, "fillmode": "overlay", "fgcolor": SURFACE, "size": 6, "solidity": 0.3},
    }


def per_run(
    runs: "Sequence[ReportedRun]", panel: "Callable[[ReportedRun, str], Panel]", **texts: Any
) -> Section:
    """A section with a panel for each run.

    Args:
        runs: at least one.
        panel: makes one of a run and a heading, which is empty where there is no other run to tell it from.
        texts: ``name``, ``title`` and ``lead`` of the section.
    """
    return Section(panels=[panel(run, run.name if len(runs) > 1 else "") for run in runs], **texts)


def bars(
    x: Sequence[object],
    series: Mapping[str, Sequence[float]],
    hover: str,
    *,
    told: Mapping[str, Sequence[str]] | None = None,
    marker: Callable[[int], Mapping[str, Any]] = bar_marker,
) -> list[dict[str, Any]]:
    """Plotly's traces of bars at the same places.

    Args:
        x: the places.
        series: name -> heights.
        hover: what the pointer shows, in Plotly's terms.
        told: name -> a text for each bar, as "%{customdata}" of `hover`.
        marker: of the series with this number.
    """
    return [
        {
            "type": "bar",
            "name": plain(name),
            "x": x,
            "y": heights,
            "hovertemplate": hover,
            "marker": marker(number),
            **({} if told is None else {"customdata": told[name]}),
        }
        for number, (name, heights) in enumerate(series.items())
    ]


def curve(
    name: str,
    x: Sequence[int],
    y: Sequence[float],
    *,
    colour: str,
    dash: str = "solid",
    hover: str = "epoch %{x}: %{y:.6~g}",
) -> dict[str, Any]:
    """Plotly's trace of a curve, whose points are marked while there are few."""
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(x) <= FEW_POINTS else "lines",
        "name": plain(name),
        "x": x,
        "y": y,
        "line": {"color": colour, "width": 2, "dash": dash},
        "marker": {"size": 6},
        "hovertemplate": f"%{{fullData.name}}<br>{hover}<extra></extra>",
    }


def rank_axis() -> dict[str, Any]:
    """The axis of bars that stand for ranks."""
    return axis("rank", type="category", showgrid=False)


def byte_unit(largest: float) -> tuple[float, str]:
    """Bytes per unit, and the unit's name, for an axis: the largest binary unit of which the largest value has one."""
    power = 0
    while power < len(BYTE_UNITS) - 1 and largest >= 1024.0 ** (power + 1):
        power += 1
    return 1024.0**power, BYTE_UNITS[power]


def exact_bytes(num_bytes: float) -> str:
    """Bytes to the last one, and as people read them."""
    exact = f"{num_bytes:,.0f} bytes"
    return exact if num_bytes < 1024 else f"{exact} ({byte_size(num_bytes)})"


def axis(title: str = "", **options: Any) -> dict[str, Any]:
    """An axis; the title has the unit in parentheses, and Plotly's options win over ours."""
    return {
        "title": {"text": title, "standoff": 10},
        "automargin": True,
        "gridcolor": GRID,
        "linecolor": GRID,
        "zerolinecolor": GRID,
        "zeroline": False,
        "ticks": "",
        "tickfont": {"color": MUTED},
        **options,
    }


def whole_ticks(epochs: Collection[int]) -> dict[str, Any]:
    """Options of an axis of epochs: few of them would get ticks in between."""
    few = max(epochs, default=1) - min(epochs, default=1) < FEW_EPOCHS
    return {"tickformat": "d", "dtick": 1} if few else {"tickformat": "d"}


def layout(
    *, x: Mapping[str, Any], y: Mapping[str, Any], height: int = PLOT_HEIGHT, **options: Any
) -> dict[str, Any]:
    """A figure's layout: no background of its own, the legend above the plot and never over it.

    The axes come from `axis`; the height is in pixels; Plotly's options win over ours.
    """
    return {
        "height": height,
        "xaxis": dict(x),
        "yaxis": dict(y),
        "margin": {"l": 8, "r": 20, "t": 12, "b": 8},
        "font": {"family": FONT, "size": 13, "color": INK},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hoverlabel": {"bgcolor": SURFACE, "bordercolor": GRID, "font": {"color": INK}, "align": "left"},
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1.02,
            "xanchor": "left",
            "yanchor": "bottom",
            "traceorder": "normal",
            "bgcolor": "rgba(0,0,0,0)",
        },
        **options,
    }
