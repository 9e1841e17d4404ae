"""What rank 0 writes down about a run: records of epochs, curves, the table on the screen, the summary.

A line of metrics.jsonl is also a row of the printed table and a point of the curves: loss, validation and test metric,
seconds per stage. Both files of lines survive a kill, and forget the epochs that are run again.
A line of ranks.jsonl says what each rank did in one epoch::

    {"epoch": 1, "ranks": [{"host": "a", "seconds": 1.2, "stage_seconds": {"sample": 0.1, ...},
                            "bytes_sent": {"features: rows": [0, 1234]}, "bytes_received": {"features: rows": [0, 980]},
                            "bytes_reduced": 4096, "rows_local": 10, "rows_cached": 5, "rows_remote": 20,
                            "peak_memory_bytes": 123, ...},
                           ...]}

The place in a list is a rank: ``ranks[p]["bytes_sent"][stage][q]`` is what p sent to q. What a line of an older version
lacks has its default: no row was found in a cache.
"""

import json
import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import TypeAdapter, ValidationError

from windrow.comm.errors import StoreError
from windrow.partition.atomic_writes import write_atomically
from windrow.training.epoch_cost import STRICT, RankCost
from windrow.training.run_folder import Start, create_run_folder, next_run_folder, open_run_folder, write_json
from windrow.training.terminal import byte_size, count, terminal_columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "COLOURS",
    "METRIC_NAMES",
    "EpochRecord",
    "EpochTable",
    "Journal",
    "RankRecord",
    "TrainingResult",
    "best_record",
    "first_epoch_dwarfs_others",
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

    __pydantic_config__: ClassVar = STRICT


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


LARGE_RATIO = 4.0
"""Of the first epoch's time to the median of the others, from which on an axis that shows both flattens the others."""


def first_epoch_dwarfs_others(records: Sequence[EpochRecord]) -> bool:
    """Whether the first epoch, which compiles, took so long that the others could not be told apart beside it."""
    others = [record.seconds for record in records[1:]]
    return bool(others) and records[0].seconds > LARGE_RATIO * statistics.median(others)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankRecord:
    """One epoch, rank by rank."""

    epoch: int
    """Epochs finished, this one included: the first has 1."""
    ranks: tuple[RankCost, ...]
    """One for each rank."""

    __pydantic_config__: ClassVar = STRICT

    def __post_init__(self) -> None:
        for place, rank in enumerate(self.ranks):
            for stage, row in rank.bytes_sent.items():
                if len(row) != len(self.ranks):
                    raise ValueError(
                        f"bytes_sent of rank {place} in {stage!r} has {len(row)} numbers for {len(self.ranks)} ranks"
                    )


Record = TypeVar("Record", EpochRecord, RankRecord)


def read_records(path: Path) -> list[EpochRecord]:
    """Read a metrics.jsonl, which need not exist; a last line that a killed process left unfinished is skipped.

    Raises:
        StoreError: another line is not a record.
    """
    return _read_lines(path, EpochRecord)


def read_rank_records(path: Path) -> list[RankRecord]:
    """Read a ranks.jsonl; else as `read_records`."""
    return _read_lines(path, RankRecord)


def _line(record: EpochRecord | RankRecord) -> bytes:
    return (json.dumps(asdict(record)) + "\n").encode()


def _append(path: Path, record: EpochRecord | RankRecord) -> None:
    """Add a record to a file; it is on its way to the disk when this returns."""
    try:
        with path.open("ab") as file:
            file.write(_line(record))
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}. Make room, then go on with --resume.") from error


def _cut(path: Path, kind: type[Record], finished_epochs: int) -> list[Record]:
    """Keep the records of the epochs that a resumed run goes on from; later ones are run again. Of a new run: none."""
    kept = [record for record in _read_lines(path, kind) if record.epoch <= finished_epochs]
    write_atomically(path, b"".join(_line(record) for record in kept))
    return kept


def _read_lines(path: Path, kind: type[Record]) -> list[Record]:
    if not path.exists():
        return []
    finished = path.read_text(encoding="utf-8").split("\n")[:-1]
    parser = TypeAdapter[Record](kind)
    found: list[Record] = []
    for number, line in enumerate(finished, start=1):
        try:
            found.append(parser.validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "line"
            raise StoreError(
                f"{path}, line {number}: not the record of an epoch: {place}: {first['msg']}, got "
                f"{first['input']!r:.100}. Remove that line."
            ) from error
    return found


PANEL_INCHES, HEIGHT_INCHES = 4.4, 4.2
DOTS_PER_INCH = 130
FEW_EPOCHS = 25
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#666666")
"""Okabe and Ito's palette, told apart by colour-blind readers too."""

METRIC_NAMES = {
    "roc_auc": "ROC-AUC",
    "macro_f1": "macro-F1",
    "micro_f1": "micro-F1",
    "auc": "ROC-AUC",
    "normalised_entropy": "normalised entropy",
}


def write_plot(records: Sequence[EpochRecord], path: Path, *, title: str) -> None:
    """Draw the curves of a run with at least one record into a .png file."""
    figure, (loss, metric) = new_figure(2)
    marker = "o" if len(records) <= FEW_EPOCHS else None
    loss.plot([r.epoch for r in records], [r.loss for r in records], color=COLOURS[0], marker=marker)
    loss.set_title("Training loss")
    loss.set_ylabel("mean loss per training sample")
    _draw_metric(metric, records, marker)
    for axes in (loss, metric):
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


def _draw_metric(axes: "Axes", records: Sequence[EpochRecord], marker: str | None) -> None:
    best = best_record(records)
    axes.set_title("Not evaluated")
    axes.set_ylabel(METRIC_NAMES.get(records[-1].metric, records[-1].metric))
    for split, colour in (("validation", COLOURS[1]), ("test", COLOURS[2])):
        values = {r.epoch: getattr(r, split) for r in records if getattr(r, split) is not None}
        if values:
            axes.plot(list(values), list(values.values()), color=colour, label=split, marker=marker)
    if best is not None:
        axes.axvline(best.epoch, color="#888888", linestyle=":", linewidth=1.2, label=f"best epoch, {best.epoch}")
        told = {"validation": best.validation, "test": best.test}
        parts = [f"{split} {value:.4f}" for split, value in told.items() if value is not None]
        axes.set_title(f"Best epoch: {', '.join(parts)}")
        # Below the axes: wherever it stood inside, it would cover some run's curve.
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3, frameon=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingResult:
    """What a run came to; also in summary.json of its folder."""

    run_folder: Path
    """Where everything about the run is."""
    metric: str
    """What was measured, for example "roc_auc"."""
    best_epoch: int | None
    """Epochs finished when validation was best; None where nothing was evaluated."""
    validation: float | None
    """The metric on the validation split at the best epoch."""
    test: float | None
    """The metric on the test split at the best epoch; at the last one where nothing validates."""
    epochs: int
    """Epochs finished; fewer than asked for after an early stop."""
    seconds: float
    """Wall-clock seconds of all epochs, evaluation included, those before a resume too."""
    figures: Mapping[str, float] = field(default_factory=dict, hash=False)
    """What else was measured at the best epoch (the last one where there is none), by name."""


class Journal:
    """Writes a run down, epoch by epoch. Rank 0 alone makes one.

    Args:
        name: of the run, for its plot, and its folder where that is None: the next free ``runs/<name>-<n>``.
        settings: for recipe.toml.
        folder: of the run.
        start: what the folder holds of this run already.
        finished_epochs: of a resumed run: records of later epochs are removed.
        shown_figures: figures that get a column of the table, with its header.
        placement: what each rank holds, from `Task.placement`.

    Raises:
        StoreError: the folder is in use, cannot be made, or holds no run.
    """

    def __init__(
        self,
        name: str,
        settings: Mapping[str, Any],
        folder: Path | None,
        start: Start,
        *,
        finished_epochs: int,
        shown_figures: Mapping[str, str],
        placement: Mapping[str, Any],
    ) -> None:
        self._name = name
        if start == "resumed":
            assert folder is not None
            self.folder = open_run_folder(folder)
        else:
            self.folder = create_run_folder(folder or next_run_folder(name), settings, again=start == "again")
        self._table = EpochTable(figures=shown_figures, width=terminal_columns(sys.stdout) or TABLE_COLUMNS)
        try:
            if start == "resumed":
                self.folder.record_environment()
            # Also of a resumed run: its plan and its number of ranks may be others.
            self.write_placement(placement)
            self.records = _cut(self.folder.metrics_file, EpochRecord, finished_epochs)
            _cut(self.folder.ranks_file, RankRecord, finished_epochs)
        except OSError as error:
            raise StoreError(
                f"cannot write into the run folder {self.folder.path}: {error.strerror}. Make room, or let it be "
                "written to; then go on with --resume, or start a new run."
            ) from error

    def write_placement(self, placement: Mapping[str, Any]) -> None:
        """Write down what each rank holds now."""
        write_json(self.folder.placement_file, placement)

    def append(self, record: EpochRecord, ranks: Sequence[RankCost]) -> list[str]:
        """Write down an epoch, all ranks together and each of them; the lines to show.

        Raises:
            StoreError: the disk is full, say.
        """
        self.records.append(record)
        _append(self.folder.metrics_file, record)
        _append(self.folder.ranks_file, RankRecord(epoch=record.epoch, ranks=tuple(ranks)))
        return self._table.lines(record)

    def conclude(self) -> TrainingResult:
        """Write plot and summary, and say how it went.

        Raises:
            StoreError: the record is gone.
        """
        records = self.records
        if not records:
            raise StoreError(f"{self.folder.metrics_file} holds no epoch: was it deleted? Start a new run")
        best = best_record(records)
        # Where nothing validates there is no choice of an epoch: the last one counts.
        told = best or next((record for record in reversed(records) if record.test is not None), records[-1])
        result = TrainingResult(
            run_folder=self.folder.path,
            metric=records[-1].metric,
            best_epoch=best.epoch if best else None,
            validation=best.validation if best else None,
            test=told.test,
            epochs=records[-1].epoch,
            seconds=sum(record.seconds for record in records),
            figures=told.figures,
        )
        write_plot(records, self.folder.plot_file, title=self._name)
        write_json(self.folder.summary_file, {**asdict(result), "run_folder": str(self.folder.path)})
        return result


ABSENT = "-"

TABLE_COLUMNS = 100
"""Width of the table where it is not printed on a terminal."""

SHORT_NAMES = {"normalised_entropy": "NE"}
"""Of metrics whose names are too long for a column."""
LARGEST_WITH_DECIMALS = 100
HEADER_EVERY = 20
"""Rows after which the header comes again."""


class EpochTable:
    """Formats records as rows of one table.

    The columns are fixed by the first record: epoch, loss, validation and test metric (where there is one), chosen
    figures (with their headers), seconds in all and per stage, rows and bytes fetched. Where that is too wide, the
    shortest stages are summed up in a column "other", and then what comes last is left out: metrics.jsonl has it all.

    Args:
        figures: chosen figures, with their headers.
        width: what is printed must fit into.
    """

    def __init__(self, *, figures: Mapping[str, str] | None = None, width: int = TABLE_COLUMNS) -> None:
        self._figures = dict(figures or {})
        self._width = width
        self._rows = 0
        self._stages: tuple[str, ...] = ()
        self._left_out: set[str] = set()

    def lines(self, record: EpochRecord) -> list[str]:
        """The lines to print for one epoch: the row, after a header where one is due."""
        if self._rows == 0:
            self._stages = tuple(record.stage_seconds)
            shortest_first = sorted(self._stages, key=record.stage_seconds.__getitem__)
            for name in (*shortest_first, "fetched", "rows", *reversed(self._figures.values())):
                if sum(width + 2 for _, width, _ in self._columns(record)) - 2 <= self._width:
                    break
                self._left_out.add(name)
        names, widths, cells = zip(*self._columns(record), strict=True)
        header = [names, ["-" * width for width in widths]] if self._rows % HEADER_EVERY == 0 else []
        self._rows += 1
        return [
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in [*header, cells]
        ]

    def _columns(self, record: EpochRecord) -> list[tuple[str, int, str]]:
        """Header, width and cell of each."""
        metric = SHORT_NAMES.get(record.metric, record.metric)
        splits = (("valid", record.validation), ("test", record.test)) if metric else ()
        stages = {stage: record.stage_seconds.get(stage, 0.0) for stage in self._stages}
        short = [stages.pop(stage) for stage in self._stages if stage in self._left_out]
        if short:
            stages["other"] = sum(short)
        columns = [
            ("epoch", 5, str(record.epoch)),
            ("loss", 7, f"{record.loss:.5f}"),
            *[(f"{split} {metric}", 7, _metric(value)) for split, value in splits],
            *[(header, 8, _metric(record.figures.get(name))) for name, header in self._figures.items()],
            ("total s", 7, f"{record.seconds:.2f}"),
            *[(stage, 5, f"{taken:.2f}") for stage, taken in stages.items()],
            ("rows", 6, count(record.rows_fetched)),
            ("fetched", 9, byte_size(record.bytes_fetched)),
        ]
        return [(name, max(len(name), least), cell) for name, least, cell in columns if name not in self._left_out]


def _metric(value: float | None) -> str:
    if value is None:
        return ABSENT
    return f"{value:.4f}" if abs(value) < LARGEST_WITH_DECIMALS else f"{value:.0f}"
