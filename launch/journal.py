"""What rank 0 writes down about a run: its folder, the record of epochs, the table on the screen, the summary."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from windrow.comm.errors import StoreError
from windrow.launch.epoch_cost import RankCost
from windrow.launch.epoch_record import (
    EpochLines,
    EpochRecord,
    MetricsBoard,
    RankRecord,
    best_record,
    write_plot,
)
from windrow.launch.recipe import AnyRecipe
from windrow.launch.run_folder import create_run_folder, next_run_folder, open_run_folder
from windrow.launch.terminal import byte_size, count

__all__ = ["EpochTable", "Journal", "TrainingResult"]


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
    """Writes a run down, epoch by epoch. Rank 0 alone makes one. A context manager.

    Args:
        recipe: of the run.
        folder: for a new run, None for the recipe's or the next free one; of the run that is resumed.
        resumed: whether the folder holds this run already.
        finished_epochs: of a resumed run: records of later epochs are removed.
        shown_figures: figures that get a column of the table, with its header.
        placement: what each rank holds, from `windrow.launch.job`.

    Raises:
        StoreError: the folder is in use, cannot be made, or holds no run.
    """

    def __init__(
        self,
        recipe: AnyRecipe,
        folder: Path | None,
        *,
        resumed: bool,
        finished_epochs: int,
        shown_figures: Mapping[str, str],
        placement: Mapping[str, Any],
    ) -> None:
        self._recipe = recipe
        if resumed:
            assert folder is not None
            self.folder = open_run_folder(folder)
        else:
            path = folder or recipe.run.folder or next_run_folder(recipe.name)
            self.folder = create_run_folder(path, recipe.settings())
        self._table = EpochTable(figures=shown_figures)
        try:
            if resumed:
                self.folder.record_environment()
            # Also of a resumed run: its plan and its number of ranks may be others.
            self.folder.write_placement(placement)
            self._open_files(finished_epochs)
        except OSError as error:
            raise StoreError(
                f"cannot write into the run folder {self.folder.path}: {error.strerror}. Make room, or let it be "
                "written to; then go on with --resume, or start a new run."
            ) from error

    def _open_files(self, finished_epochs: int) -> None:
        with contextlib.ExitStack() as opened:
            self._board = None
            if self._recipe.run.tensorboard:
                board = MetricsBoard(self.folder.tensorboard_folder, finished_epochs=finished_epochs)
                self._board = opened.enter_context(contextlib.closing(board))
            metrics = EpochLines(self.folder.metrics_file, EpochRecord, finished_epochs=finished_epochs)
            self._metrics = opened.enter_context(contextlib.closing(metrics))
            ranks = EpochLines(self.folder.ranks_file, RankRecord, finished_epochs=finished_epochs)
            self._ranks = opened.enter_context(contextlib.closing(ranks))
            self._files = opened.pop_all()

    def append(self, record: EpochRecord, ranks: Sequence[RankCost]) -> list[str]:
        """Write down an epoch, all ranks together and each of them; the lines to show."""
        self._metrics.append(record)
        if self._board is not None:
            self._board.append(record)
        self._ranks.append(RankRecord(epoch=record.epoch, ranks=tuple(ranks)))
        return self._table.lines(record)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def conclude(self) -> TrainingResult:
        """Write plot and summary, and say how it went.

        Raises:
            StoreError: the record is gone.
        """
        records = self._metrics.records
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
        write_plot(records, self.folder.plot_file, title=self._recipe.name)
        self.folder.write_summary({**asdict(result), "run_folder": str(self.folder.path)})
        return result


WIDEST_EPOCH = 5
NUMBER_WIDTH = 9
ABSENT = "-"

SHORT_NAMES = {"normalised_entropy": "NE"}
"""Of metrics whose names are too long for a column."""
LARGEST_WITH_DECIMALS = 100


class EpochTable:
    """Formats records as rows of one table.

    The columns are fixed by the first record: epoch, loss, validation and test metric, chosen figures (with their
    headers), seconds in all and per stage, rows and bytes fetched. The header comes again after so many rows.
    """

    def __init__(self, *, figures: Mapping[str, str] | None = None, repeat_header_every: int = 20) -> None:
        self._figures = dict(figures or {})
        self._repeat_header_every = repeat_header_every
        self._rows = 0
        self._stages: tuple[str, ...] = ()
        self._widths: list[int] = []

    def lines(self, record: EpochRecord) -> list[str]:
        """The lines to print for one epoch: the row, after a header where one is due."""
        if self._rows == 0:
            self._stages = tuple(record.stage_seconds)
        header = self._header(record.metric)
        self._widths = [max(len(name), width) for name, width in zip(header, self._minimum(), strict=True)]
        lines = []
        if self._rows % self._repeat_header_every == 0:
            lines = [
                _format_row(header, self._widths),
                _format_row(["-" * width for width in self._widths], self._widths),
            ]
        self._rows += 1
        return [*lines, _format_row(self._cells(record), self._widths)]

    def _header(self, metric: str) -> list[str]:
        name = SHORT_NAMES.get(metric, metric)
        metrics = [f"val {name}", f"test {name}", *self._figures.values()]
        return ["epoch", "loss", *metrics, "total s", *self._stages, "rows", "fetched"]

    def _minimum(self) -> list[int]:
        figures, stages = [8 for _ in self._figures], [5 for _ in self._stages]
        return [WIDEST_EPOCH, 7, 7, 7, *figures, 7, *stages, 6, NUMBER_WIDTH]

    def _cells(self, record: EpochRecord) -> list[str]:
        return [
            str(record.epoch),
            f"{record.loss:.5f}",
            _metric(record.validation),
            _metric(record.test),
            *[_metric(record.figures.get(name)) for name in self._figures],
            f"{record.seconds:.2f}",
            *[f"{record.stage_seconds.get(stage, 0.0):.2f}" for stage in self._stages],
            count(record.rows_fetched),
            byte_size(record.bytes_fetched),
        ]


def _format_row(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Cells aligned to the right in columns of the given widths, two spaces apart."""
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))


def _metric(value: float | None) -> str:
    if value is None:
        return ABSENT
    return f"{value:.4f}" if abs(value) < LARGEST_WITH_DECIMALS else f"{value:.0f}"
