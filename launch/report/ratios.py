"""Ratios with their intervals as dots and whiskers."""

from collections.abc import Mapping

from windrow.launch.benchmark.measurement import Comparison
from windrow.launch.report.figure import MUTED, SURFACE, axis, layout, plain, series_colour
from windrow.launch.report.panel import View

__all__ = ["ratio_view"]

ROW_PIXELS, FRAME_PIXELS = 46, 70
LABEL_SHIFT_PIXELS = 17
MOST_LETTERS = 40


def ratio_view(comparisons: Mapping[str, Comparison]) -> View:
    """One row per variant, in groups by setting; labels stand above the dots, so that narrow windows suffice.

    Args:
        comparisons: setting -> variants that were timed in it.
    """
    labels: list[str] = []
    rows: list[tuple[int, Comparison, str, str]] = []
    for setting, comparison in comparisons.items():
        others = [name for name in comparison.variants if name != comparison.baseline]
        if others:
            labels.append(f"<b>{_short(setting)}</b>, against {_short(comparison.baseline)}")
            for name in others:
                rows.append((len(labels), comparison, name, setting))
                labels.append(f"{_short(name)}: {comparison.ratio(name)}")
    ratios = [comparison.ratio(name) for _, comparison, name, _ in rows]
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": [ratio.median for ratio in ratios],
        "y": [place for place, _, _, _ in rows],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [ratio.high - ratio.median for ratio in ratios],
            "arrayminus": [ratio.median - ratio.low for ratio in ratios],
            "color": series_colour(0),
            "thickness": 2,
            "width": 5,
        },
        "marker": {"size": 10, "color": series_colour(0)},
        "customdata": [
            f"<b>{plain(name)}</b><br>{plain(setting)}<br>{ratio} times as fast as {plain(comparison.baseline)}"
            f"<br>median {comparison.variants[name].median_s:.4g} s per {plain(comparison.per)}"
            for (_, comparison, name, setting), ratio in zip(rows, ratios, strict=True)
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    notes = [
        {
            "xref": "paper",
            "yref": "y",
            "x": 0,
            "y": place,
            "yshift": LABEL_SHIFT_PIXELS,
            "xanchor": "left",
            "text": text,
            "showarrow": False,
            "bgcolor": SURFACE,
            "align": "left",
        }
        for place, text in enumerate(labels)
    ]
    equal = {
        "type": "line",
        "yref": "paper",
        "x0": 1,
        "x1": 1,
        "y0": 0,
        "y1": 1,
        "line": {"color": MUTED, "width": 1.5, "dash": "dot"},
    }
    return View(
        label="ratios",
        data=[trace],
        layout=layout(
            x=axis("ratio to the baseline (log scale)", type="log"),
            y=axis(range=[len(labels) - 0.5, -0.8], showticklabels=False, showgrid=False),
            height=FRAME_PIXELS + ROW_PIXELS * len(labels),
            shapes=[equal],
            annotations=notes,
            showlegend=False,
        ),
    )


def _short(name: str) -> str:
    return plain(name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…")
