"""The record of a run, epoch by epoch: metrics.jsonl, ranks.jsonl, TensorBoard, and the curves as one picture.

A line of metrics.jsonl is also a row of the printed table and a point of the curves: loss, validation and test metric,
seconds per stage. Both files survive a kill, and forget the epochs that are run again.
A line of ranks.jsonl says what each rank did in one epoch::

    {"epoch": 1, "ranks": [{"host": "a", "seconds": 1.2, "stage_seconds": {"sample": 0.1, ...},
                            "bytes_sent": {"features: rows": [0, 1234]}, "bytes_received": {"features: rows": [0, 980]},
                            "bytes_reduced": 4096, "rows_local": 10, "rows_cached": 5, "rows_remote": 20,
                            "peak_memory_bytes": 123, ...},
                           ...]}

The place in a list is a rank: ``ranks[p]["bytes_sent"][stage][q]`` is what p sent to q. What a line of an older version
lacks has its default: no row was found in a cache.
"""

import contextlib
import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from windrow.comm.errors import RecipeError, StoreError
from windrow.launch.epoch_cost import RankCost
from windrow.partition.atomic_writes import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "COLOURS",
    "METRIC_NAMES",
    "EpochLines",
    "EpochRecord",
    "MetricsBoard",
    "RankRecord",
    "best_record",
    "new_figure",
    "read_rank_records",
    "read_records",
    "write_plot",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochRecord:
    """Figures of one epoch, over all ranks together unless a field says otherwise."""

    epoch: int
    """Epochs finished, this one included: the first has 1."""
    step: int
    """Optimiser steps finished since the start of the run."""
    loss: float
    """Mean training loss over the epoch's seeds or samples."""
    learning_rate: float
    """At the last step."""
    metric: str
    """What validation and test were measured by, for example "roc_auc"."""
    higher_is_better: bool = True
    """Whether the metric should rise."""
    validation: float | None = None
    """The metric on the validation split; None in an epoch without evaluation."""
    test: float | None = None
    """The metric on the test split; None in an epoch without evaluation."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What else was measured, by name, for example "test log loss" or "samples per second"."""
    seconds: float
    """Wall-clock seconds of the epoch, evaluation included."""
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds per stage, on the slowest rank of each; stages that overlap add up to more than the epoch."""
    rows_fetched: int = 0
    """Rows that came from another rank."""
    bytes_fetched: int = 0
    """Bytes of those rows on the wire."""

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(line: str) -> "EpochRecord":
        """The inverse of `to_json`.

        Raises:
            ValueError: the line is no JSON object, or has not exactly the fields of a record.
        """
        values = json.loads(line)
        try:
            return EpochRecord(**values)
        except TypeError as error:
            raise ValueError(f"not the record of an epoch: {line[:100]!r}") from error


def best_record(records: Iterable[EpochRecord]) -> EpochRecord | None:
    """The epoch with the best validation metric; None where nothing was evaluated.

    As in early stopping, a tie is not better and NaN never is.
    """
    best: tuple[float, EpochRecord] | None = None
    for record in records:
        if record.validation is not None:
            value = record.validation if record.higher_is_better else -record.validation
            if value > (best[0] if best else -math.inf):
                best = value, record
    return best[1] if best else None


@dataclass(frozen=True, kw_only=True, slots=True)
class RankRecord:
    """One epoch, rank by rank."""

    epoch: int
    """Epochs finished, this one included: the first has 1."""
    ranks: tuple[RankCost, ...]
    """One for each rank."""

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(line: str) -> "RankRecord":
        """The inverse of `to_json`.

        Raises:
            ValueError: the line is no JSON object, or has not exactly the fields of a record.
        """
        values = json.loads(line)
        try:
            ranks = tuple(RankCost(**rank) for rank in values.pop("ranks"))
            return RankRecord(**values, ranks=ranks)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not the record of an epoch's ranks: {line[:100]!r}") from error


Record = TypeVar("Record", EpochRecord, RankRecord)


class EpochLines(Generic[Record]):
    """Appends one record per epoch to a file. Rank 0 alone makes one.

    Args:
        path: the file; one of an earlier run is gone on with.
        kind: of the records.
        finished_epochs: of the checkpoint that is resumed from: records of later epochs are removed, since those
            epochs are run again. 0 for a new run.

    Raises:
        StoreError: the file of an earlier run cannot be understood.
    """

    def __init__(self, path: Path, kind: type[Record], *, finished_epochs: int = 0) -> None:
        self.records: list[Record] = [
            record for record in _read_lines(path, kind) if record.epoch <= finished_epochs
        ]
        """All records of the run, those from before it was resumed included."""
        write_atomically(path, b"".join(f"{record.to_json()}\n".encode() for record in self.records))
        self._file = path.open("a", encoding="utf-8")

    def append(self, record: Record) -> None:
        """Write one record; it is on its way to the disk when this returns.

        Raises:
            StoreError: the disk is full, say.
        """
        self.records.append(record)
        try:
            self._file.write(record.to_json() + "\n")
            self._file.flush()
        except OSError as error:
            # Closing writes what is left, which fails once more; a second close does nothing.
            with contextlib.suppress(OSError):
                self._file.close()
            raise StoreError(
                f"cannot write {self._file.name}: {error.strerror}. Make room, then go on with --resume."
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_records(path: Path) -> list[EpochRecord]:
    """Read a metrics.jsonl, which need not exist.

    Returns:
        The records in order. A last line that a killed process left unfinished is passed over.

    Raises:
        StoreError: another line is not a record.
    """
    return _read_lines(path, EpochRecord)


def read_rank_records(path: Path) -> list[RankRecord]:
    """Read a ranks.jsonl; else as `read_records`."""
    return _read_lines(path, RankRecord)


def _read_lines(path: Path, kind: type[Record]) -> list[Record]:
    if not path.exists():
        return []
    finished = path.read_text(encoding="utf-8").split("\n")[:-1]
    found: list[Record] = []
    for number, line in enumerate(finished, start=1):
        try:
            found.append(kind.from_json(line))
        except ValueError as error:
            raise StoreError(f"{path}, line {number}: {error}. Remove that line.") from error
    return found


class MetricsBoard:
    """Shows records in TensorBoard. Rank 0 alone makes one.

    Args:
        folder: where event files go.
        finished_epochs: of the checkpoint that is resumed from: later epochs are shown anew.

    Raises:
        RecipeError: TensorBoard is not installed.
    """

    def __init__(self, folder: Path, *, finished_epochs: int = 0) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError as error:
            raise RecipeError(
                "[run] tensorboard = true, but TensorBoard is not installed: install it, or set this to false"
            ) from error
        purge = finished_epochs + 1 if finished_epochs else None
        self._writer = SummaryWriter(log_dir=str(folder), purge_step=purge)

    def append(self, record: EpochRecord) -> None:
        """Show one record."""
        for name, value in _scalars(record).items():
            self._writer.add_scalar(name, value, record.epoch)
        self._writer.flush()

    def close(self) -> None:
        """Close the files."""
        self._writer.close()


def _scalars(record: EpochRecord) -> dict[str, float]:
    named: dict[str, float | None] = {
        "loss/train": record.loss,
        f"{record.metric}/validation": record.validation,
        f"{record.metric}/test": record.test,
        **{f"figures/{name.replace(' ', '_')}": value for name, value in record.figures.items()},
        "learning_rate": record.learning_rate,
        "seconds/epoch": record.seconds,
        **{f"seconds/{stage}": seconds for stage, seconds in record.stage_seconds.items()},
        "fetched/rows": float(record.rows_fetched),
        "fetched/bytes": float(record.bytes_fetched),
    }
    return {name: value for name, value in named.items() if value is not None}


PANEL_INCHES, HEIGHT_INCHES = 4.4, 4.2
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
    """Draw the curves of a run with at least one record into a .png file."""
    figure, (loss, metric, seconds) = new_figure(3)
    _draw_loss(loss, records)
    _draw_metric(metric, records)
    _draw_seconds(seconds, records)
    for axes in (loss, metric, seconds):
        axes.set_xlabel("epoch")
        axes.locator_params(axis="x", integer=True)
    figure.suptitle(title, weight="bold")
    figure.savefig(path, format="png")


def new_figure(panels: int) -> "tuple[Figure, Sequence[Axes]]":
    """A picture for Matplotlib to draw, with so many panels side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(PANEL_INCHES * panels, HEIGHT_INCHES), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    drawn = figure.subplots(1, panels, squeeze=False)[0]
    for axes in drawn:
        axes.grid(alpha=0.3, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, drawn


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
