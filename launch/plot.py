"""The curves of a run as one picture: loss, validation and test metric, seconds per stage."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from windrow.launch.epoch_record import EpochRecord, best_record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["write_plot"]

SIZE_INCHES = (13.0, 4.2)
DOTS_PER_INCH = 130
FEW_EPOCHS = 25
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#666666")
"""Okabe and Ito's palette, told apart by colour-blind readers too."""

METRIC_NAMES = {
    "roc_auc": "ROC-AUC",
    "macro_f1": "macro-F1",
    "auc": "ROC-AUC",
    "normalised_entropy": "normalised entropy",
}


def write_plot(records: Sequence[EpochRecord], path: Path, *, title: str) -> None:
    """Draw the curves.

    Args:
        records: of a run, at least one.
        path: a .png file.
        title: above the picture.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    loss, metric, seconds = figure.subplots(1, 3)
    _draw_loss(loss, records)
    _draw_metric(metric, records)
    _draw_seconds(seconds, records)
    for axes in (loss, metric, seconds):
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, weight="bold")
    figure.savefig(path)


def _draw_loss(axes: "Axes", records: Sequence[EpochRecord]) -> None:
    axes.plot(
        [r.epoch for r in records], [r.loss for r in records], color=COLOURS[0], marker=_marker(records)
    )
    axes.set_title("Training loss")
    axes.set_ylabel("mean loss per training sample")


def _draw_metric(axes: "Axes", records: Sequence[EpochRecord]) -> None:
    name = records[-1].metric
    for label, colour, points in (
        ("validation", COLOURS[1], [(r.epoch, r.validation) for r in records if r.validation is not None]),
        ("test", COLOURS[2], [(r.epoch, r.test) for r in records if r.test is not None]),
    ):
        if points:
            epochs, values = zip(*points, strict=True)
            axes.plot(epochs, values, color=colour, label=label, marker=_marker(points))
    axes.set_title("Not evaluated")
    best = best_record(records)
    if best is not None:
        axes.axvline(
            best.epoch, color="#888888", linestyle=":", linewidth=1.2, label=f"best epoch, {best.epoch}"
        )
        axes.set_title(_best_title(best))
        axes.legend(loc="lower right" if best.higher_is_better else "upper right", edgecolor="none")
    axes.set_ylabel(METRIC_NAMES.get(name, name))


def _draw_seconds(axes: "Axes", records: Sequence[EpochRecord]) -> None:
    stages = list(dict.fromkeys(stage for record in records for stage in record.stage_seconds))
    epochs = np.array([record.epoch for record in records])
    bottom = np.zeros(len(records))
    for index, stage in enumerate(stages):
        height = np.array([record.stage_seconds.get(stage, 0.0) for record in records])
        colour = COLOURS[index % len(COLOURS)]
        axes.bar(epochs, height, bottom=bottom, width=1.0, color=colour, label=stage, linewidth=0)
        bottom += height
    axes.plot(
        epochs, [record.seconds for record in records], color="black", linewidth=1.0, label="whole epoch"
    )
    axes.set_ylim(bottom=0)
    axes.set_title("Seconds per stage")
    axes.set_ylabel("seconds (each stage: its slowest rank)")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, reverse=True)


def _best_title(best: EpochRecord) -> str:
    parts = [
        f"{name} {value:.4f}"
        for name, value in (("validation", best.validation), ("test", best.test))
        if value is not None
    ]
    return f"Best epoch: {', '.join(parts)}"


def _marker(points: Sequence[object]) -> str | None:
    return "o" if len(points) <= FEW_EPOCHS else None
