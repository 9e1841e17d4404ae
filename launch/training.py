"""A whole training run: join the job, load, train epoch by epoch, measure, record, checkpoint, resume."""

import contextlib
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch

from windrow.comm.connect import connect, ending_all_ranks
from windrow.comm.errors import RecipeError, StoreError
from windrow.comm.launcher import launched_local_rank
from windrow.comm.meter import Meter
from windrow.comm.world import World
from windrow.training.early_stopping import EarlyStopping
from windrow.gnn.evaluation import Evaluator
from windrow.gnn.models import build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.training.schedule import learning_rate_factor
from windrow.gnn.trainer import MinibatchTrainer
from windrow.launch.checkpoint import (
    Checkpoint,
    check_fits,
    check_world_size,
    load_latest,
    save_checkpoint,
)
from windrow.launch.checkpoint_file import CheckpointHeader
from windrow.launch.environment import usable_cores
from windrow.launch.epoch_record import EpochRecord
from windrow.launch.epoch_table import EpochTable
from windrow.launch.metrics_log import MetricsLog
from windrow.launch.plot import write_plot
from windrow.launch.progress import Progress, make_progress
from windrow.launch.recipe import Recipe
from windrow.launch.run_folder import (
    RunFolder,
    create_run_folder,
    next_run_folder,
    open_run_folder,
)
from windrow.launch.run_options import RunOptions

__all__ = ["TrainingResult", "train"]


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
    """The metric on the validation vertices at the best epoch."""
    test: float | None
    """The metric on the test vertices at the best epoch."""
    epochs: int
    """Epochs finished; fewer than asked for after an early stop."""
    seconds: float
    """Wall-clock seconds of all epochs, evaluation included, those before a resume too."""


def train(recipe: Recipe, *, resume: Path | None = None, run_folder: Path | None = None) -> TrainingResult:
    """Train as a recipe says. Collective: every process that the launcher started calls it, with the same arguments.

    Args:
        recipe: from `windrow.launch.recipe.load_recipe`.
        resume: folder of a run to go on with, from its latest intact checkpoint; None to begin a new run.
        run_folder: folder for a new run; None for the recipe's, or the next free ``runs/<name>-<n>``.

    Returns:
        The figures at the best validation epoch, the same on every rank.

    Raises:
        WindrowError: the store, the recipe or the checkpoint does not fit; before training starts.
    """
    options = recipe.run
    with ending_all_ranks():
        device = _own_device(options)
    with connect(
        options.backend,
        deadline_s=options.deadline_s,
        debug=options.debug,
        cuda_aware_mpi=options.cuda_aware_mpi,
    ) as world:
        torch.set_num_threads(options.threads or max(1, usable_cores() // _ranks_on_this_machine(world)))
        graph = PartitionedGraph.open(recipe.store, rank=world.rank, size=world.size)
        run = _Run(world, recipe, graph, device)
        if resume is not None:
            run.restore(resume)
        # No rank makes a run folder until every rank has found its part of the store right.
        world.barrier(stage="ready")
        return run.finish(resume or run_folder)


class _Run:
    """The parts of a run on one rank, and how far it is."""

    def __init__(self, world: World, recipe: Recipe, graph: PartitionedGraph, device: torch.device) -> None:
        self._world = world
        self._recipe = recipe
        self._graph = graph
        world.meter = Meter()
        model = build_model(
            recipe.model,
            in_features=graph.features.shape[1],
            out_features=graph.outputs,
            seed=recipe.run.seed,
        )
        self._trainer = MinibatchTrainer(
            world,
            graph,
            model.to(device),
            sampler_options=recipe.sampler,
            options=recipe.training,
            seed=recipe.run.seed,
        )
        # Its checks need the number of steps, which only the graph tells.
        learning_rate_factor(
            recipe.training.schedule, 0, recipe.training.epochs * self._trainer.steps_per_epoch
        )
        self._evaluator = Evaluator(
            world, graph, recipe.evaluation, fanouts=recipe.sampler.fanouts, seed=recipe.run.seed
        )
        self._stopping = EarlyStopping(patience=recipe.evaluation.patience_epochs or None)
        self._finished_epochs = 0

    def restore(self, folder: Path) -> None:
        """Go back to the latest checkpoint of a run. Collective; only rank 0 reads the disk."""
        checkpoint: Checkpoint | None = None
        if self._world.rank == 0:
            checkpoint = load_latest(open_run_folder(folder).checkpoint_folder)
            check_fits(
                checkpoint.header,
                recipe=self._recipe.decisive_settings(),
                graph_fingerprint=self._graph.fingerprint,
            )
            check_world_size(checkpoint.header, self._world.size, order=self._recipe.sampler.order)
        checkpoint = self._world.broadcast_object(checkpoint, root=0, stage="checkpoint")
        assert checkpoint is not None
        self._trainer.load_state_dict(checkpoint.state["trainer"])
        self._stopping.load_state_dict(checkpoint.state["early_stopping"])
        self._finished_epochs = checkpoint.header.epoch
        if self._world.rank == 0:
            for message in checkpoint.damaged:
                print(f"windrow: passed over a damaged checkpoint: {message}")
            print(f"windrow: resuming after epoch {self._finished_epochs} from {checkpoint.path}")

    def finish(self, folder: Path | None) -> TrainingResult:
        """Run the epochs that are left. Collective."""
        result = None
        with contextlib.ExitStack() as open_until_the_end:
            progress = open_until_the_end.enter_context(make_progress(rank=self._world.rank))
            open_until_the_end.callback(self._trainer.close)
            journal = None
            if self._world.rank == 0:
                journal = open_until_the_end.enter_context(
                    _Journal(self._recipe, folder, self._finished_epochs)
                )
            while self._finished_epochs < self._recipe.training.epochs and not self._stopping.should_stop:
                record, improved = self._one_epoch(progress)
                if journal is not None:
                    for line in journal.append(record):
                        progress.write(line)
                    if self._is_due(self._recipe.run.checkpoint_every_epochs) or improved:
                        self._save(journal.folder, best=improved)
            if journal is not None:
                result = journal.conclude()
        result = self._world.broadcast_object(result, root=0, stage="result")
        assert result is not None
        return result

    def _one_epoch(self, progress: Progress) -> tuple[EpochRecord, bool]:
        started = time.perf_counter()
        assert self._world.meter is not None
        self._world.meter.reset()
        self._trainer.stopwatch.reset()
        progress.start(f"epoch {self._finished_epochs + 1}", self._trainer.steps_per_epoch)
        loss = self._trainer.train_epoch(self._finished_epochs, after_step=progress.advance)
        progress.finish()
        self._finished_epochs += 1
        traffic = self._world.meter.totals("features: rows")
        values: dict[Any, float] = {}
        if self._is_due(self._recipe.evaluation.every_epochs):
            with self._trainer.stopwatch.measure("evaluate"):
                values = self._evaluator.evaluate(self._trainer.model)
        improved = "validation" in values and self._stopping.update(
            self._finished_epochs, values["validation"]
        )
        mine = (self._trainer.stopwatch.seconds, traffic.rows_received, traffic.bytes_received)
        all_seconds, all_rows, all_bytes = zip(
            *self._world.all_gather_object(mine, stage="figures"), strict=True
        )
        record = EpochRecord(
            epoch=self._finished_epochs,
            step=self._finished_epochs * self._trainer.steps_per_epoch,
            loss=loss,
            learning_rate=self._trainer.learning_rate,
            metric=self._evaluator.metric,
            validation=values.get("validation"),
            test=values.get("test"),
            seconds=time.perf_counter() - started,
            stage_seconds={
                stage: max(seconds.get(stage, 0.0) for seconds in all_seconds)
                for stage in dict.fromkeys(stage for seconds in all_seconds for stage in seconds)
            },
            rows_fetched=sum(all_rows),
            bytes_fetched=sum(all_bytes),
        )
        return record, improved

    def _is_due(self, every_epochs: int) -> bool:
        is_last = self._finished_epochs == self._recipe.training.epochs or self._stopping.should_stop
        return is_last or self._finished_epochs % every_epochs == 0

    def _save(self, folder: RunFolder, *, best: bool) -> None:
        header = CheckpointHeader(
            recipe=self._recipe.decisive_settings(),
            graph_fingerprint=self._graph.fingerprint,
            epoch=self._finished_epochs,
            step=0,
            world_size=self._world.size,
            best=best,
        )
        state = {"trainer": self._trainer.state_dict(), "early_stopping": self._stopping.state_dict()}
        save_checkpoint(folder.checkpoint_folder, header, state, keep=self._recipe.run.keep_checkpoints)


class _Journal:
    """What rank 0 writes down: the run folder, its log and the table on the screen."""

    def __init__(self, recipe: Recipe, folder: Path | None, finished_epochs: int) -> None:
        self._recipe = recipe
        if finished_epochs > 0:
            assert folder is not None
            self.folder = open_run_folder(folder)
            self.folder.record_environment()
        else:
            path = folder or recipe.run.folder or next_run_folder(recipe.name)
            self.folder = create_run_folder(path, recipe.settings())
        self._table = EpochTable()
        self._log = MetricsLog(
            self.folder.metrics_file,
            tensorboard_folder=self.folder.tensorboard_folder if recipe.run.tensorboard else None,
            finished_epochs=finished_epochs,
        )

    def append(self, record: EpochRecord) -> list[str]:
        """Write a record; returns the lines to show."""
        self._log.append(record)
        return self._table.lines(record)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()

    def conclude(self) -> TrainingResult:
        """Write plot and summary, and say how it went."""
        records = self._log.records
        if not records:
            raise StoreError(f"{self.folder.metrics_file} holds no epoch: was it deleted? Start a new run")
        best: EpochRecord | None = None
        for record in records:
            # As in EarlyStopping: a tie is not better, and NaN never is.
            if record.validation is not None and record.validation > (
                best.validation or 0.0 if best else -1.0
            ):
                best = record
        result = TrainingResult(
            run_folder=self.folder.path,
            metric=records[-1].metric,
            best_epoch=best.epoch if best else None,
            validation=best.validation if best else None,
            test=best.test if best else None,
            epochs=records[-1].epoch,
            seconds=sum(record.seconds for record in records),
        )
        write_plot(records, self.folder.plot_file, title=self._recipe.name)
        self.folder.write_summary({**asdict(result), "run_folder": str(self.folder.path)})
        return result


def _own_device(options: RunOptions) -> torch.device:
    """This process's device, made the current one where it is a GPU: NCCL and allocations go by that."""
    if options.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RecipeError('run.device = "cuda", but PyTorch finds no GPU on this machine: use "cpu"')
    device = torch.device("cuda", launched_local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _ranks_on_this_machine(world: World) -> int:
    """How many ranks share this machine's cores. Collective."""
    hosts = world.all_gather_object(os.uname().nodename, stage="hosts")
    return hosts.count(hosts[world.rank])
