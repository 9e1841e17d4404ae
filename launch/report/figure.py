"""What all figures of the page have in common: colours, axes, legend, and texts that are safe to show."""

import html
from collections.abc import Collection, Mapping
from typing import Any

from windrow.launch.formatting import byte_size

__all__ = [
    "FEW_POINTS",
    "INK",
    "MOST_RANKS_IN_LEGEND",
    "MUTED",
    "SURFACE",
    "axis",
    "bar_marker",
    "byte_unit",
    "exact_bytes",
    "layout",
    "line_mode",
    "plain",
    "run_title",
    "series_colour",
    "whole_ticks",
]

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


def run_title(name: str, num_runs: int) -> str:
    """Heading of a run's panel: none where there is no other run to tell it from."""
    return name if num_runs > 1 else ""


def line_mode(num_points: int) -> str:
    """Plotly's mode of a curve: points are marked while there are few."""
    return "lines+markers" if num_points <= FEW_POINTS else "lines"


def byte_unit(largest: float) -> tuple[float, str]:
    """The unit for an axis of bytes.

    Args:
        largest: number of bytes on the axis.

    Returns:
        Bytes per unit, and the unit's name: the largest binary unit of which there is at least one.
    """
    power = 0
    while power < len(BYTE_UNITS) - 1 and largest >= 1024.0 ** (power + 1):
        power += 1
    return 1024.0**power, BYTE_UNITS[power]


def exact_bytes(num_bytes: float) -> str:
    """Bytes to the last one, and as people read them."""
    exact = f"{num_bytes:,.0f} bytes"
    return exact if num_bytes < 1024 else f"{exact} ({byte_size(num_bytes)})"


def axis(title: str = "", **options: Any) -> dict[str, Any]:
    """An axis.

    Args:
        title: what it shows, with the unit in parentheses.
        options: Plotly's, which win over ours.
    """
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

    Args:
        x: from `axis`.
        y: from `axis`.
        height: of the figure in pixels.
        options: Plotly's, which win over ours.
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
