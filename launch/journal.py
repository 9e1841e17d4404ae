"""What rank 0 writes down about a run: its folder, the record of epochs, the table on the screen, the summary."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from windrow.comm.errors import StoreError
from windrow.launch.any_recipe import AnyRecipe
from windrow.launch.epoch_lines import EpochLines
from windrow.launch.epoch_record import EpochRecord, best_record
from windrow.launch.epoch_table import EpochTable
from windrow.launch.metrics_log import MetricsLog
from windrow.launch.plot import write_plot
from windrow.launch.rank_cost import RankCost
from windrow.launch.rank_record import RankRecord
from windrow.launch.run_folder import create_run_folder, next_run_folder, open_run_folder

__all__ = ["Journal", "TrainingResult"]


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
        placement: what each rank holds, from `windrow.launch.placement`.

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
        recipe = self._recipe
        with contextlib.ExitStack() as opened:
            self._log = opened.enter_context(
                MetricsLog(
                    self.folder.metrics_file,
                    tensorboard_folder=self.folder.tensorboard_folder if recipe.run.tensorboard else None,
                    finished_epochs=finished_epochs,
                )
            )
            ranks = EpochLines(self.folder.ranks_file, RankRecord.from_json, finished_epochs=finished_epochs)
            self._ranks = opened.enter_context(contextlib.closing(ranks))
            self._files = opened.pop_all()

    def append(self, record: EpochRecord, ranks: Sequence[RankCost]) -> list[str]:
        """Write down an epoch.

        Args:
            record: all ranks together.
            ranks: each of them.

        Returns:
            The lines to show.
        """
        self._log.append(record)
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
        records = self._log.records
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
