"""What is called while a trainer trains: base class, and TensorBoard as one of them."""

from pathlib import Path
from typing import TYPE_CHECKING

from windrow.comm.errors import RecipeError
from windrow.training.journal import EpochRecord, TrainingResult

if TYPE_CHECKING:
    from windrow.training.trainer import Trainer

__all__ = ["Callback", "TensorBoard"]


class Callback:
    """Called on every rank, in the same order, so that collectives may be called; each method here does nothing.

    To stop training after the epoch that is under way, set ``trainer.should_stop = True`` on all ranks.
    """

    def on_start(self, trainer: "Trainer") -> None:
        """Before the first epoch; `trainer.run_folder` is there."""

    def on_step(self, trainer: "Trainer", done: int) -> None:
        """After each step, with those that are done of the epoch."""

    def on_epoch(self, trainer: "Trainer", record: EpochRecord) -> None:
        """After an epoch was trained, evaluated and written down."""

    def on_checkpoint(self, trainer: "Trainer", folder: Path) -> None:
        """After a checkpoint was written into this folder."""

    def on_end(self, trainer: "Trainer", result: TrainingResult) -> None:
        """After the last epoch."""


class TensorBoard(Callback):
    """Shows epochs in TensorBoard; event files go to ``tensorboard/`` of the run folder.

    Raises:
        RecipeError: when training starts: TensorBoard is not installed.
    """

    def on_start(self, trainer: "Trainer") -> None:
        """Open the event file, on rank 0."""
        if trainer.world.rank:
            return
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError as error:
            raise RecipeError(
                "[run] tensorboard = true, but TensorBoard is not installed: install it, or set this to false"
            ) from error
        folder = trainer.run_folder.tensorboard_folder
        # Later epochs of a run that is resumed are shown anew.
        purge = trainer.finished_epochs + 1 if trainer.finished_epochs else None
        self._writer = SummaryWriter(log_dir=str(folder), purge_step=purge)

    def on_epoch(self, trainer: "Trainer", record: EpochRecord) -> None:
        """Show one epoch."""
        if trainer.world.rank:
            return
        for name, value in _scalars(record).items():
            self._writer.add_scalar(name, value, record.epoch)
        self._writer.flush()

    def on_end(self, trainer: "Trainer", result: TrainingResult) -> None:
        """Close the files."""
        del result
        if not trainer.world.rank:
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
