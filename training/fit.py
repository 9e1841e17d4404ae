"""One call of `windrow.training.trainer.Trainer.fit`: epochs, records, checkpoints, and when to measure and stop."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from windrow.comm.errors import RecipeError
from windrow.comm.options import NonNegativeInt, PositiveInt, checked_dataclass
from windrow.training.callbacks import Callback
from windrow.training.checkpoint import (
    CheckpointHeader,
    CheckpointOptions,
    WhichCheckpoint,
    best_checkpoint,
    check_fits,
    load_together,
    save_together,
)
from windrow.training.epoch_cost import (
    RankCost,
    cache_hit_rate,
    communication_share,
    gather_costs,
    home_share,
    own_traffic,
    with_time,
)
from windrow.training.journal import EpochRecord, Journal, TrainingResult
from windrow.training.run_folder import RunFolder, Start, open_run_folder
from windrow.training.schedule import EarlyStopping
from windrow.training.terminal import Progress, make_progress
from windrow.training.timeline import Timeline

if TYPE_CHECKING:
    from windrow.training.trainer import Trainer

__all__ = ["FitOptions", "Run"]


@contextlib.contextmanager
def _closing_callbacks(trainer: "Trainer") -> Iterator[None]:
    """Call `on_close` of each callback, whatever another one's has raised."""

    def close(own: Callback, _: object, error: BaseException | None, __: object) -> None:
        own.on_close(trainer, error)  # What it returns must not take the error for dealt with.

    with contextlib.ExitStack() as stack:
        for callback in reversed(trainer.callbacks):
            stack.push(functools.partial(close, callback))
        yield


@checked_dataclass
class FitOptions(CheckpointOptions):
    """When to measure, stop and save."""

    evaluate_every: PositiveInt | None = None
    """Epochs between two evaluations; None: ``every_epochs`` of the task's evaluation options."""
    patience: NonNegativeInt | None = None
    """Stop when validation has not improved for this many epochs, 0: never; None: ``patience_epochs`` of those."""


class Run:
    """One call of `Trainer.fit` on one rank, and how far it is."""

    def __init__(self, trainer: "Trainer", options: FitOptions, decisive: Mapping[str, Any]) -> None:
        self._trainer = trainer
        self._world = trainer.world
        self._task = trainer.task
        self._options = options
        self._decisive = decisive
        trainer.should_stop = False
        accumulate = trainer.options.accumulate
        if options.checkpoint_every_steps % accumulate:
            raise RecipeError(
                f"checkpoint_every_steps = {options.checkpoint_every_steps}: must be a multiple of training.accumulate "
                f"= {accumulate}, or gradients that wait would be lost"
            )
        told = {"every_epochs": options.evaluate_every, "patience_epochs": options.patience}
        self._task.evaluation_times = times = dataclasses.replace(
            self._task.evaluation_times, **{name: value for name, value in told.items() if value is not None}
        )
        if times.patience_epochs and not self._task.has_validation:
            raise RecipeError(
                f"patience = {times.patience_epochs} without a validation split: give it samples, or set patience to 0"
            )
        self._stopping = EarlyStopping(patience=times.patience_epochs, higher_is_better=self._task.higher_is_better)
        # Of the epoch that is under way: what was done of it before this process began.
        self._first_step = 0
        self._loss_before = 0.0
        self._costs_before: Sequence[RankCost] = ()

    def restore(self, folder: Path) -> None:
        """Go back to the latest checkpoint of a run. Collective."""
        self._world.from_rank_0(lambda: open_run_folder(folder), stage="run folder")
        checkpoint = load_together(self._world, RunFolder(folder).checkpoint_folder, self._check)
        state, header = checkpoint.state, checkpoint.header
        self._trainer.load_state_dict(state["trainer"])
        self._trainer.load_residuals(state["residuals"])
        self._task.restore_tables(checkpoint)
        self._stopping.load_state_dict(state["early_stopping"])
        self._trainer.finished_epochs, self._first_step = header.position
        self._loss_before = state["loss"]
        cost = state["cost"]
        # Older versions wrote sums over ranks beside what each one cost.
        self._costs_before = [RankCost(**rank) for rank in (cost.get("ranks", ()) if isinstance(cost, dict) else cost)]
        if self._world.rank == 0:
            # Later commands, and starts, take the recipe of the folder.
            RunFolder(folder).set_epochs(self._trainer.options.epochs)
            step = f" and {self._first_step} steps" if self._first_step else ""
            print(f"windrow: resuming after epoch {self._finished}{step} from {checkpoint.path}")

    def begin(self) -> None:
        """Start from the weights of another run, where that is asked for. Collective."""
        if self._finished >= self._trainer.options.epochs:
            raise RecipeError(f"all {self._finished} epochs of this trainer are done: make another one")
        source = self._options.init_from
        if source is None:
            return
        checkpoints = RunFolder(source).checkpoint_folder
        has_best = self._world.from_rank_0(lambda: best_checkpoint(checkpoints) is not None, stage="checkpoint")
        which: WhichCheckpoint = "best" if has_best else "latest"
        found = self._trainer.load_weights(source, which, grown=True)
        if self._world.rank == 0:
            print(f"windrow: starting from the weights of {found.path}, after epoch {found.header.epoch}")

    def finish(
        self, folder: Path | None, start: Start, *, name: str, settings: Mapping[str, Any], trace: bool
    ) -> TrainingResult:
        """Run the epochs that are left. Collective."""
        trainer, task = self._trainer, self._task
        journal = self._open_journal(folder, start, name, settings)

        def conclude() -> TrainingResult:
            assert journal is not None
            return journal.conclude()

        with contextlib.ExitStack() as until_the_end:
            progress = until_the_end.enter_context(make_progress(rank=self._world.rank))
            for line in task.opening_lines():
                progress.write(line)
            timeline: Timeline | None = None
            if trace:
                file = trainer.run_folder.trace_file
                timeline = Timeline(self._world, trainer.stopwatch, task.data, file, say=progress.write)
                until_the_end.enter_context(timeline)
            until_the_end.enter_context(_closing_callbacks(trainer))
            trainer.call("on_start")
            self._agree_to_stop()
            while not self._is_over():
                record, ranks, improved = self._one_epoch(progress)
                if journal is not None:
                    for line in journal.append(record, ranks):
                        progress.write(line)
                trainer.call("on_epoch", record)
                self._agree_to_stop()
                if journal is not None and task.moves:
                    journal.write_placement(task.placement())
                if self._is_due(self._options.checkpoint_every_epochs) or improved:
                    self._save(best=improved)
                if timeline is not None:
                    timeline.epoch_finished(self._finished)
            task.settle()
            result = self._world.from_rank_0(conclude, stage="result")
            trainer.call("on_end", result)
        return result

    def _open_journal(
        self, folder: Path | None, start: Start, name: str, settings: Mapping[str, Any]
    ) -> Journal | None:
        """What rank 0 keeps in the run folder, which all ranks know from then on. Collective."""
        made: list[Journal] = []

        def open_folder() -> Path:
            told = {"shown_figures": self._task.shown_figures, "placement": self._task.placement()}
            made.append(Journal(name, settings, folder, start, finished_epochs=self._finished, **told))
            return made[0].folder.path

        self._trainer.run_folder = RunFolder(self._world.from_rank_0(open_folder, stage="run folder"))
        return made[0] if made else None

    @property
    def _finished(self) -> int:
        return self._trainer.finished_epochs

    def _agree_to_stop(self) -> None:
        """Callbacks of one rank may ask all to. Collective."""
        asked = torch.tensor(int(self._trainer.should_stop))
        self._world.all_reduce(asked, op="max", stage="whether to stop")
        self._trainer.should_stop = bool(asked)

    def _is_over(self) -> bool:
        return self._stopping.should_stop or self._trainer.should_stop or self._finished >= self._trainer.options.epochs

    def _is_due(self, every_epochs: int) -> bool:
        return self._is_over() or self._finished % every_epochs == 0

    def _one_epoch(self, progress: Progress) -> tuple[EpochRecord, tuple[RankCost, ...], bool]:
        trainer, task = self._trainer, self._task
        started = time.perf_counter()
        assert self._world.meter is not None
        self._world.meter.reset()
        trainer.stopwatch.reset()
        progress.start(f"epoch {self._finished + 1}", trainer.steps_per_epoch - self._first_step)
        every = self._options.checkpoint_every_steps

        def after_step(done: int) -> None:
            progress.advance()
            trainer.call("on_step", done)
            if every and done % every == 0 and done < trainer.steps_per_epoch:
                self._save(step=done, started=started)

        loss = trainer.train_epoch(
            self._finished, first_step=self._first_step, loss_before=self._loss_before, after_step=after_step
        )
        progress.finish()
        self._agree_to_stop()
        training_seconds = (
            time.perf_counter() - started + max((cost.seconds for cost in self._costs_before), default=0.0)
        )
        traffic = own_traffic(self._world, task.traffic())
        trainer.finished_epochs += 1
        values: Mapping[str, Mapping[str, float]] = {}
        if self._is_due(task.evaluation_times.every_epochs):
            with trainer.stopwatch.measure("evaluate"):
                values = trainer.evaluate()
        metric = task.metric
        improved = "validation" in values and self._stopping.update(self._finished, values["validation"][metric])
        ranks = self._costs_so_far(started, traffic)
        record: EpochRecord | None = None
        if self._world.rank == 0:
            shares = {
                "samples per second": task.samples_per_epoch / training_seconds,
                "share of local rows": home_share(ranks),
                "hit rate of the cache": cache_hit_rate(ranks),
                "share of time in communication": communication_share(ranks),
            }
            record = EpochRecord(
                epoch=self._finished,
                step=self._finished * trainer.steps_per_epoch,
                loss=loss,
                learning_rate=trainer.learning_rate,
                metric=metric,
                higher_is_better=task.higher_is_better,
                validation=values.get("validation", {}).get(metric),
                test=values.get("test", {}).get(metric),
                figures={
                    **{
                        f"{split} {name.replace('_', ' ')}": value
                        for split, found in values.items()
                        for name, value in found.items()
                        if name != metric
                    },
                    **{name: share for name, share in shares.items() if share is not None},
                },
                seconds=max(cost.seconds for cost in ranks),
                stage_seconds={
                    stage: max(cost.stage_seconds.get(stage, 0.0) for cost in ranks)
                    for stage in dict.fromkeys(stage for cost in ranks for stage in cost.stage_seconds)
                },
                rows_fetched=sum(cost.rows_fetched for cost in ranks),
                bytes_fetched=sum(cost.bytes_fetched for cost in ranks),
            )
        record = self._world.broadcast_object(record, root=0, stage="figures")
        assert record is not None
        self._first_step, self._loss_before, self._costs_before = 0, 0.0, ()
        return record, ranks, improved

    def _costs_so_far(self, started: float, traffic: RankCost) -> tuple[RankCost, ...]:
        """On rank 0 what the epoch has cost each rank since its beginning, an earlier start too. Collective."""
        own = with_time(traffic, time.perf_counter() - started, self._trainer.stopwatch.seconds)
        return gather_costs(self._world, own, self._costs_before)

    def _save(self, *, best: bool = False, step: int = 0, started: float = 0.0) -> None:
        """Write a checkpoint, at the end of an epoch or after some of its steps. Collective."""
        loss = 0.0
        costs: tuple[RankCost, ...] = ()
        if step:
            loss = self._trainer.loss_so_far()
            costs = self._costs_so_far(started, own_traffic(self._world, self._task.traffic()))
        header = CheckpointHeader(
            recipe=self._decisive,
            data_fingerprint=self._task.fingerprint,
            epoch=self._finished,
            step=step,
            world_size=self._world.size,
            best=best,
        )
        state = {
            "trainer": self._trainer.state_dict(),
            "early_stopping": self._stopping.state_dict(),
            "loss": loss,
            "cost": [dataclasses.asdict(cost) for cost in costs],
            "residuals": self._trainer.gather_residuals(),
        }
        folder = self._trainer.run_folder.checkpoint_folder
        save_together(
            self._world, folder, header, state, self._task.local_tables(), keep=self._options.keep_checkpoints
        )
        self._trainer.call("on_checkpoint", folder)

    def _check(self, header: CheckpointHeader) -> None:
        asked, epochs = dict(self._decisive), self._trainer.options.epochs
        before: Any = header.recipe.get("training", {}).get("epochs")
        depends = self._trainer.options.schedule.kind != "constant" or self._task.bound_to_epochs
        if not depends and "training" in asked and before is not None and epochs > before:
            asked["training"] = {**asked["training"], "epochs": before}
        check_fits(header, recipe=asked, data_fingerprint=self._task.fingerprint, data=self._task.data)
        self._task.check_world_size(header.world_size)
