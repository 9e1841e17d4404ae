"""A whole training run: join the job, load, train epoch by epoch, measure, record, checkpoint, resume."""

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from windrow.comm.world import World
from windrow.launch.checkpoint import CheckpointHeader, check_fits, load_together, restore_tables, save_together
from windrow.launch.epoch_cost import (
    EpochCost,
    RankCost,
    cache_hit_rate,
    communication_share,
    gather_cost,
    home_share,
    own_time,
    own_traffic,
)
from windrow.launch.job import TrainingJob
from windrow.launch.journal import EpochRecord, Journal, TrainingResult
from windrow.launch.rank_process import joined_job
from windrow.launch.recipe import AnyRecipe, Recipe
from windrow.launch.run_folder import RunFolder, open_run_folder
from windrow.launch.terminal import Progress, make_progress
from windrow.launch.timeline import Timeline
from windrow.training.schedule import EarlyStopping, learning_rate_factor

__all__ = ["TrainingResult", "train"]


def train(
    recipe: AnyRecipe, *, resume: Path | None = None, run_folder: Path | None = None, trace: bool = False
) -> TrainingResult:
    """Train as a recipe says. Collective: every process that the launcher started calls it, with the same arguments.

    Args:
        recipe: from `windrow.launch.recipe.load_any_recipe`.
        resume: folder of a run to go on with, from its latest intact checkpoint; None to begin a new run.
        run_folder: folder for a new run; None for the recipe's, or the next free ``runs/<name>-<n>``.
        trace: whether to write a timeline of the first epochs into the run folder (`windrow.launch.timeline`).

    Returns:
        The figures at the best validation epoch, the same on every rank.

    Raises:
        WindrowError: the store, the recipe or the checkpoint does not fit; before training starts.
    """
    with joined_job(recipe.run) as (world, device), contextlib.closing(_open_job(world, recipe, device)) as job:
        # Its checks need the number of steps, which only the data tell.
        learning_rate_factor(recipe.training.schedule, 0, recipe.training.epochs * job.trainer.steps_per_epoch)
        run = _Run(world, recipe, job)
        if resume is not None:
            run.restore(resume)
        # No rank makes a run folder until every rank has found its part of the store right.
        world.barrier(stage="ready")
        return run.finish(resume or run_folder, trace=trace)


def _open_job(world: World, recipe: AnyRecipe, device: torch.device) -> TrainingJob:
    """The job of a recipe. Collective."""
    if isinstance(recipe, Recipe):
        from windrow.launch.graph_job import GraphJob

        return GraphJob(world, recipe, device)
    from windrow.launch.recommendation_job import RecommendationJob

    return RecommendationJob(world, recipe, device)


class _Run:
    """A run on one rank, and how far it is."""

    def __init__(self, world: World, recipe: AnyRecipe, job: TrainingJob) -> None:
        self._world = world
        self._recipe = recipe
        self._job = job
        self._stopping = EarlyStopping(
            patience=recipe.evaluation.patience_epochs or None, higher_is_better=job.higher_is_better
        )
        self._resumed = False
        self._finished_epochs = 0
        # Of the epoch that is under way: what was done of it before this process began.
        self._first_step = 0
        self._loss_before = 0.0
        self._cost_before = EpochCost()

    def restore(self, folder: Path) -> None:
        """Go back to the latest checkpoint of a run. Collective."""
        if self._world.rank == 0:
            open_run_folder(folder)
        checkpoint = load_together(self._world, RunFolder(folder).checkpoint_folder, self._check)
        state, header = checkpoint.state, checkpoint.header
        self._job.trainer.load_state_dict(state["trainer"])
        tables = self._job.local_tables()
        if tables is not None:
            restore_tables(checkpoint, tables)
        self._stopping.load_state_dict(state["early_stopping"])
        self._finished_epochs, self._first_step = header.position
        self._loss_before = state["loss"]
        self._cost_before = EpochCost.from_dict(state["cost"])
        self._resumed = True
        if self._world.rank == 0:
            for message in checkpoint.damaged:
                print(f"windrow: passed over a damaged checkpoint: {message}")
            step = f" and {self._first_step} steps" if self._first_step else ""
            print(f"windrow: resuming after epoch {self._finished_epochs}{step} from {checkpoint.path}")

    def finish(self, folder: Path | None, *, trace: bool) -> TrainingResult:
        """Run the epochs that are left. Collective."""
        result = None
        with contextlib.ExitStack() as open_until_the_end:
            progress = open_until_the_end.enter_context(make_progress(rank=self._world.rank))
            for line in self._job.opening_lines:
                progress.write(line)
            journal: Journal | None = None
            if self._world.rank == 0:
                journal = open_until_the_end.enter_context(
                    Journal(
                        self._recipe,
                        folder,
                        resumed=self._resumed,
                        finished_epochs=self._finished_epochs,
                        shown_figures=self._job.shown_figures,
                        placement=self._job.placement(),
                    )
                )
            checkpoints = self._world.broadcast_object(
                None if journal is None else journal.folder.checkpoint_folder, root=0, stage="run folder"
            )
            timeline: Timeline | None = None
            if trace:
                file = RunFolder(checkpoints.parent).trace_file
                timeline = open_until_the_end.enter_context(Timeline(self._world, self._job, file, say=progress.write))
            while self._finished_epochs < self._recipe.training.epochs and not self._stopping.should_stop:
                record, ranks, improved = self._one_epoch(progress, checkpoints)
                if journal is not None:
                    for line in journal.append(record, ranks):
                        progress.write(line)
                if self._is_due(self._recipe.run.checkpoint_every_epochs) or improved:
                    self._save(checkpoints, best=improved)
                if timeline is not None:
                    timeline.epoch_finished(self._finished_epochs)
            if journal is not None:
                result = journal.conclude()
        result = self._world.broadcast_object(result, root=0, stage="result")
        assert result is not None
        return result

    def _one_epoch(self, progress: Progress, checkpoints: Path) -> tuple[EpochRecord, tuple[RankCost, ...], bool]:
        started = time.perf_counter()
        assert self._world.meter is not None
        self._world.meter.reset()
        self._job.trainer.stopwatch.reset()
        progress.start(f"epoch {self._finished_epochs + 1}", self._job.trainer.steps_per_epoch - self._first_step)
        every = self._recipe.run.checkpoint_every_steps

        def after_step(done: int) -> None:
            progress.advance()
            if every and done % every == 0 and done < self._job.trainer.steps_per_epoch:
                self._save(checkpoints, step=done, started=started)

        loss = self._job.trainer.train_epoch(
            self._finished_epochs, first_step=self._first_step, loss_before=self._loss_before, after_step=after_step
        )
        progress.finish()
        training_seconds = self._cost_before.seconds + time.perf_counter() - started
        traffic = own_traffic(self._world, self._job.traffic())
        self._finished_epochs += 1
        values: Mapping[str, Mapping[str, float]] = {}
        if self._is_due(self._recipe.evaluation.every_epochs):
            with self._job.trainer.stopwatch.measure("evaluate"):
                values = self._job.evaluate()
        metric = self._job.metric
        improved = "validation" in values and self._stopping.update(self._finished_epochs, values["validation"][metric])
        cost = self._cost_so_far(started, traffic)
        shares = {
            "share of rows found at home": home_share([cost]),
            "hit rate of the cache": cache_hit_rate([cost]),
            "share of time in communication": communication_share(cost.ranks),
        }
        record = EpochRecord(
            epoch=self._finished_epochs,
            step=self._finished_epochs * self._job.trainer.steps_per_epoch,
            loss=loss,
            learning_rate=self._job.trainer.learning_rate,
            metric=metric,
            higher_is_better=self._job.higher_is_better,
            validation=values.get("validation", {}).get(metric),
            test=values.get("test", {}).get(metric),
            figures={
                **_named_figures(values, metric),
                "samples per second": self._job.samples_per_epoch / training_seconds,
                **{name: share for name, share in shares.items() if share is not None},
            },
            seconds=cost.seconds,
            stage_seconds=cost.stage_seconds,
            rows_fetched=cost.rows_fetched,
            bytes_fetched=cost.bytes_fetched,
        )
        self._first_step, self._loss_before, self._cost_before = 0, 0.0, EpochCost()
        return record, cost.ranks, improved

    def _cost_so_far(self, started: float, traffic: EpochCost) -> EpochCost:
        """What the epoch has cost since its beginning, on all ranks, those of an earlier start too. Collective."""
        time_taken = own_time(time.perf_counter() - started, self._job.trainer.stopwatch.seconds)
        return self._cost_before + gather_cost(self._world, traffic + time_taken)

    def _is_due(self, every_epochs: int) -> bool:
        is_last = self._finished_epochs == self._recipe.training.epochs or self._stopping.should_stop
        return is_last or self._finished_epochs % every_epochs == 0

    def _save(self, checkpoints: Path, *, best: bool = False, step: int = 0, started: float = 0.0) -> None:
        """Write a checkpoint, at the end of an epoch or after some of its steps. Collective."""
        loss, cost = 0.0, EpochCost()
        if step:
            loss = self._job.trainer.loss_so_far()
            cost = self._cost_so_far(started, own_traffic(self._world, self._job.traffic()))
        header = CheckpointHeader(
            recipe=self._recipe.decisive_settings(),
            data_fingerprint=self._job.data_fingerprint,
            epoch=self._finished_epochs,
            step=step,
            world_size=self._world.size,
            best=best,
        )
        state = {
            "trainer": self._job.trainer.state_dict(),
            "early_stopping": self._stopping.state_dict(),
            "loss": loss,
            "cost": cost.to_dict(),
        }
        save_together(
            self._world, checkpoints, header, state, self._job.local_tables(), keep=self._recipe.run.keep_checkpoints
        )

    def _check(self, header: CheckpointHeader) -> None:
        check_fits(
            header,
            recipe=self._recipe.decisive_settings(),
            data_fingerprint=self._job.data_fingerprint,
            data=self._job.data,
        )
        self._job.check_resumable(header)


def _named_figures(values: Mapping[str, Mapping[str, float]], metric: str) -> dict[str, float]:
    """What an evaluation found beside the metric: "test log loss" and the like."""
    return {
        f"{split} {name.replace('_', ' ')}": value
        for split, figures in values.items()
        for name, value in figures.items()
        if name != metric
    }
