"""The record of a run, epoch by epoch: JSON lines for programs, TensorBoard for people."""

from pathlib import Path
from typing import TYPE_CHECKING, Self

from windrow.comm.errors import RecipeError
from windrow.launch.epoch_lines import EpochLines, read_lines
from windrow.launch.epoch_record import EpochRecord

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

__all__ = ["MetricsLog", "read_records"]


class MetricsLog:
    """Appends one record per epoch. Rank 0 alone makes one. A context manager.

    Args:
        path: the file of JSON lines.
        tensorboard_folder: where event files go; None for none.
        finished_epochs: of the checkpoint that is resumed from: records of later epochs are removed, since
            those epochs are run again. 0 for a new run.

    Raises:
        RecipeError: TensorBoard is asked for and not installed.
        StoreError: the file of an earlier run cannot be understood.
    """

    def __init__(
        self, path: Path, *, tensorboard_folder: Path | None = None, finished_epochs: int = 0
    ) -> None:
        self._writer = None if tensorboard_folder is None else _writer(tensorboard_folder, finished_epochs)
        self._lines = EpochLines(path, EpochRecord.from_json, finished_epochs=finished_epochs)
        self._records = list(self._lines.kept)

    @property
    def records(self) -> tuple[EpochRecord, ...]:
        """All records of the run, those from before it was resumed included."""
        return tuple(self._records)

    def append(self, record: EpochRecord) -> None:
        """Write one record; it is on its way to the disk when this returns.

        Raises:
            StoreError: the disk is full, say.
        """
        self._records.append(record)
        self._lines.append(record)
        if self._writer is not None:
            for name, value in _scalars(record).items():
                self._writer.add_scalar(name, value, record.epoch)
            self._writer.flush()

    def close(self) -> None:
        """Close the files."""
        self._lines.close()
        if self._writer is not None:
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_records(path: Path) -> list[EpochRecord]:
    """Read the records of a run.

    Args:
        path: a metrics.jsonl; need not exist.

    Returns:
        The records in order. A last line that a killed process left unfinished is passed over.

    Raises:
        StoreError: another line is not a record.
    """
    return read_lines(path, EpochRecord.from_json)


def _writer(folder: Path, finished_epochs: int) -> "SummaryWriter":
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError as error:
        raise RecipeError(
            "[run] tensorboard = true, but TensorBoard is not installed: install it, or set this to false"
        ) from error
    return SummaryWriter(log_dir=str(folder), purge_step=finished_epochs + 1 if finished_epochs else None)


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
