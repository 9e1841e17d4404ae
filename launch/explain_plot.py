"""What `windrow.launch.explain` found, as a picture: rows that travel, and seconds of an epoch, over alpha."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from windrow.launch.explain import Explanation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["write_explanation_plot"]

SIZE_INCHES = (11.0, 4.2)
DOTS_PER_INCH = 130
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
"""Of Okabe and Ito's palette, told apart by colour-blind readers too."""

TICKS = (0.0, 0.01, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96)
"""Of the axis of alpha, where there is room for them."""

TICK_ROOM = 0.06
"""Share of the axis that a label takes."""


def write_explanation_plot(found: Explanation, path: Path, *, title: str) -> None:
    """Draw the curves.

    Args:
        found: what is expected.
        path: a .png file.
        title: above the picture.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    timed = found.knee.time is not None
    panels = figure.subplots(1, 2 if timed else 1, squeeze=False)[0]
    _draw_rows(panels[0], found)
    if timed:
        _draw_seconds(panels[1], found)
    for axes in panels:
        # Most happens where caches are small.
        axes.set_xscale("function", functions=(_root, np.square))
        axes.set_xlim(0, found.everything.alpha)
        ticks = _ticks(found.everything.alpha)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("alpha: remote rows kept by a rank, as a share of N / ranks")
        axes.grid(alpha=0.3, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.axvline(found.knee.alpha, color=PURPLE, linestyle=":", label=f"knee, {found.knee.alpha:.3g}")
        axes.axvline(
            found.automatic.alpha, color=GREEN, linestyle="--", label=f"auto, {found.automatic.alpha:.3g}"
        )
        axes.legend(edgecolor="none")
    figure.suptitle(title, weight="bold")
    figure.savefig(path)


def _root(alphas: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The square root; 0 for what Matplotlib asks about left of the axis."""
    roots: npt.NDArray[np.float64] = np.sqrt(np.maximum(alphas, 0.0))
    return roots


def _ticks(last: float) -> list[float]:
    chosen: list[float] = []
    for tick in TICKS:
        place, before = (float(np.sqrt(alpha / last)) for alpha in (tick, chosen[-1] if chosen else 0.0))
        if tick <= last and (not chosen or place - before >= TICK_ROOM):
            chosen.append(tick)
    return chosen


def _draw_rows(axes: "Axes", found: Explanation) -> None:
    points = sorted([*found.curve, *found.sizes], key=lambda one: one.alpha)
    axes.plot([p.alpha for p in points], [p.remote_rows for p in points], color=BLUE, label="remote rows")
    axes.set_title("Rows that travel")
    axes.set_ylabel("rows in an epoch, all ranks together")


def _draw_seconds(axes: "Axes", found: Explanation) -> None:
    points = sorted([*found.curve, *found.sizes], key=lambda one: one.alpha)
    timed = [(point.alpha, point.time) for point in points if point.time is not None]
    alphas = [alpha for alpha, _ in timed]
    for pipelined, colour, label in ((False, ORANGE, "no pipeline"), (True, BLUE, "pipeline")):
        axes.plot(alphas, [time.seconds(pipelined=pipelined) for _, time in timed], color=colour, label=label)
    axes.plot(alphas, [time.exchange_s for _, time in timed], color="#888888", label="exchange of rows")
    axes.set_title("Time")
    axes.set_ylabel("seconds of an epoch, without evaluation")
