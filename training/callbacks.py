"""What is called while a trainer trains: base class, and what shows metrics in TensorBoard, wandb and MLflow."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from windrow.comm.errors import RecipeError
from windrow.training.journal import EpochRecord, TrainingResult
from windrow.training.run_folder import write_json

if TYPE_CHECKING:
    from windrow.training.trainer import Trainer

__all__ = ["Callback", "MLflow", "TensorBoard", "WeightsAndBiases"]


class Callback:
    """Called on every rank, in the same order, so that collectives may be called; each method here does nothing.

    To stop training after the epoch that is under way, set ``trainer.should_stop = True``, on one rank or more.
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

    def on_close(self, trainer: "Trainer", error: BaseException | None) -> None:
        """At the end, also where an error ended the run: other ranks may not come here."""


Log: TypeAlias = Callable[[dict[str, float], int], object]
Close: TypeAlias = Callable[[bool], object]


class Tracker(Callback, ABC):
    """Shows the metrics of every epoch in another program; rank 0 does, the others do nothing."""

    _close: Close | None = None

    @abstractmethod
    def _open(self, trainer: "Trainer", known: str | None) -> tuple[Log, Close, str | None]:
        """Begin; what shows the values of an epoch, what ends, told whether the run failed, and what its run is called.

        `known` is what an earlier start of this run called it.
        """

    def on_start(self, trainer: "Trainer") -> None:
        """Begin, on rank 0."""
        if trainer.world.rank == 0:
            alike = [callback for callback in trainer.callbacks if type(callback) is type(self)]
            file, own = trainer.run_folder.trackers_file, f"{type(self).__name__} {alike.index(self) + 1}"
            known: dict[str, str | None] = json.loads(file.read_text()) if file.exists() else {}
            self._log, self._close, called = self._open(trainer, known.get(own))
            if called != known.get(own):
                write_json(file, known | {own: called})

    def on_epoch(self, trainer: "Trainer", record: EpochRecord) -> None:
        """Show one epoch, on rank 0: its loss, metrics, seconds and bytes by name."""
        if trainer.world.rank == 0:
            self._log(_scalars(record), record.epoch)

    def on_close(self, trainer: "Trainer", error: BaseException | None) -> None:  # noqa: ARG002
        """End, on rank 0."""
        if self._close is not None:
            self._close(error is not None)
            self._close = None


class TensorBoard(Tracker):
    """Event files go to ``tensorboard/`` of the run folder.

    Raises:
        RecipeError: when training starts: TensorBoard is not installed.
    """

    def _open(self, trainer: "Trainer", known: str | None) -> tuple[Log, Close, str | None]:  # noqa: ARG002
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError as error:
            raise RecipeError(
                "[run] tensorboard = true, but TensorBoard is not installed: install it, or set this to false"
            ) from error
        # What an earlier start showed of epochs that come again is shown anew.
        folder, next_epoch = trainer.run_folder.tensorboard_folder, trainer.finished_epochs + 1
        writer = SummaryWriter(log_dir=str(folder), purge_step=next_epoch)

        def log(scalars: dict[str, float], epoch: int) -> None:
            for name, value in scalars.items():
                writer.add_scalar(name, value, epoch)
            writer.flush()

        return log, lambda _: writer.close(), None


class WeightsAndBiases(Tracker):
    """A run of Weights & Biases with the name of the run folder, which is resumed with the training.

    Args:
        options: of ``wandb.init``, such as ``project`` and ``mode``.

    Raises:
        RecipeError: when training starts: wandb is not installed.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options

    def _open(self, trainer: "Trainer", known: str | None) -> tuple[Log, Close, str | None]:
        wandb = _installed("wandb")
        folder = trainer.run_folder.path
        name = {"name": folder.name, "id": known, "resume": "allow", "dir": str(folder)}
        run = wandb.init(**{**name, **self._options})

        def log(scalars: dict[str, float], epoch: int) -> None:
            run.log(scalars, step=epoch, commit=True)

        return log, lambda failed: run.finish(exit_code=int(failed)), run.id


class MLflow(Tracker):
    """A run of MLflow with the name of the run folder, which is resumed with the training.

    Args:
        experiment: its name; None: MLflow's default. Which server: MLFLOW_TRACKING_URI in the environment.

    Raises:
        RecipeError: when training starts: mlflow is not installed.
    """

    def __init__(self, experiment: str | None = None) -> None:
        self._experiment = experiment

    def _open(self, trainer: "Trainer", known: str | None) -> tuple[Log, Close, str | None]:
        mlflow = _installed("mlflow")
        if self._experiment is not None:
            mlflow.set_experiment(self._experiment)
        run = mlflow.start_run(known, run_name=trainer.run_folder.path.name)

        def log(scalars: dict[str, float], epoch: int) -> None:
            # MLflow's names have no "@", as in recall@20.
            mlflow.log_metrics({name.replace("@", "_at_"): value for name, value in scalars.items()}, step=epoch)

        return log, lambda failed: mlflow.end_run("FAILED" if failed else "FINISHED"), run.info.run_id


def _installed(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise RecipeError(f"a callback needs {name}, which is not installed: pip install {name}") from error


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
