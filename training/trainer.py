"""The trainer: steps, epochs, evaluation, checkpoints, records. What is learnt, and from what, is the task's.

A step::

    minibatch of the task -> forward, loss -> backward  -> sum gradients -> clip, optimiser -> task's own update
                                              buckets travel meanwhile

Everything random is a function of (seed, epoch, step, ...): a trainer holds no generator, so the whole state of a run
is that of model, optimiser and tables, and its position (epoch, step). For models whose forward method has no parameter
``dropout``, torch's generator, which `nn.Dropout` draws from, is seeded for every forward pass.
"""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from windrow.comm.errors import DataError, RecipeError, StoreError
from windrow.comm.gradients import GradientReducer
from windrow.comm.meter import Meter, Stopwatch
from windrow.comm.options import NonNegativeInt, PositiveInt, checked_dataclass
from windrow.comm.random import Stream, stream_key
from windrow.comm.wire import WireOptions
from windrow.comm.world import World
from windrow.training.callbacks import Callback
from windrow.training.checkpoint import (
    Checkpoint,
    CheckpointHeader,
    CheckpointOptions,
    WhichCheckpoint,
    best_checkpoint,
    check_fits,
    load_together,
    save_together,
)
from windrow.training.dropout import seeded_generator, takes_dropout
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
from windrow.training.optimizers import make_optimizer
from windrow.training.replicas import check_buffers, check_model, copy_from_rank_0
from windrow.training.run_folder import RunFolder, open_run_folder
from windrow.training.schedule import EarlyStopping, learning_rate_factor
from windrow.training.task import Setup, Task, TrainingOptions, device_of
from windrow.training.terminal import Progress, make_progress
from windrow.training.timeline import Timeline

__all__ = ["FitOptions", "Trainer"]


@checked_dataclass
class FitOptions(CheckpointOptions):
    """When to measure, stop and save."""

    evaluate_every: PositiveInt = 1
    """Epochs between two evaluations; the last is evaluated too, unless a callback's ``on_epoch`` ends the run."""
    patience: NonNegativeInt = 0
    """Stop when validation has not improved for this many epochs; 0: never."""


class Trainer:
    """Trains one model on one task, on all ranks of a world together. A context manager, which ends its threads.

        with wr.connect() as world:
            part = gnn.partition(graph, world)
            task = gnn.NodeTask(part, fanouts=(15, 10, 5), loss=my_loss, metrics={"f1": my_f1})
            with wr.Trainer(world, MyNet(), task, epochs=10, batch_size=1024, learning_rate=3e-3) as trainer:
                trainer.fit(run_folder="runs/mine", resume="auto")
                print(trainer.evaluate("test"))

    Making one is collective, and so are `fit`, `train_epoch`, `evaluate` and `predict`.

    Args:
        world: all its ranks make the same trainer. A meter is given to it where it has none.
        model: any module that the task can call; on the device to train on. Weights and buffers of rank 0 are copied to
            all ranks.
        task: minibatches, loss and metrics.
        options: how the weights are learnt; None: the task's defaults.
        changes: fields of `TrainingOptions` that take the place of those in `options`.
        seed: of everything random.
        wire: in which number formats rows and gradients travel; must agree. A name, "bf16" say, stands for vectors and
            sums in that format, those of "int8" and "int4" in fp8.
        sums_world: sums the gradients, over the same ranks: `world`, or what
            `windrow.comm.hierarchy.hierarchical` made of it. None: `world`.
        callbacks: called in this order; the same on all ranks.

    Raises:
        RecipeError: an option is out of range, or the model has batch normalisation, whose statistics would differ
            between ranks.
        WindrowError: what the task refuses.

    Attributes:
        should_stop: whether `fit` ends after this epoch; one rank's callback may say so for all.
        run_folder: of `fit`.
        finished_epochs: how many.
    """

    run_folder: RunFolder

    def __init__(
        self,
        world: World,
        model: nn.Module,
        task: Task[Any],
        options: TrainingOptions | None = None,
        *,
        seed: int = 0,
        wire: WireOptions | str | None = None,
        sums_world: World | None = None,
        callbacks: Sequence[Callback] = (),
        **changes: Any,
    ) -> None:
        self.world = world
        self.model = model
        self.task = task
        self.options = dataclasses.replace(options or task.default_options, **changes)
        self.seed = seed
        self.stopwatch = Stopwatch()
        self.should_stop = False
        self.finished_epochs = 0
        self._callbacks = list(callbacks)
        if not isinstance(wire, WireOptions):
            wire = WireOptions.of_name(wire or "fp32", tables=task.data == "log")
        if world.meter is None:
            world.meter = Meter()
        check_model(model)
        self._device = device = device_of(model)
        self._draws = not takes_dropout(model)
        watch = self.stopwatch
        task.attach(
            Setup(world=world, model=model, device=device, options=self.options, seed=seed, wire=wire, stopwatch=watch)
        )
        copy_from_rank_0(world, task.dense_state())
        task.start()
        # Needs the number of steps.
        learning_rate_factor(self.options.schedule, 0, self.options.epochs * task.steps_per_epoch)
        if wire.sums == "fp8" and sums_world not in (None, world):
            raise RecipeError(
                'wire.sums = "fp8" with a world of sums within hosts, which have no place for what fp8 leaves out: '
                'leave out sums_world, or set wire.sums = "bf16"'
            )
        self._make_reducer = functools.partial(
            GradientReducer, sums_world or world, codec=wire.sums_codec(), bucket_bytes=task.bucket_bytes
        )
        self._dense = task.dense_parameters()
        self._reducer, self._reduced = self._make_reducer(task.reduced_parameters()), self._to_reduce()
        self._optimizer = make_optimizer(self._dense, self.options)
        self._loss = 0.0

    # ------------------------------------------------------------------------------------------------------ learning

    @property
    def steps_per_epoch(self) -> int:
        """Steps in an epoch, the same on every rank."""
        return self.task.steps_per_epoch

    @property
    def learning_rate(self) -> float:
        """The dense part's rate at the last step."""
        rate: float = self._optimizer.param_groups[0]["lr"] if self._dense else self.options.learning_rate
        return rate

    def train_epoch(
        self,
        epoch: int,
        *,
        first_step: int = 0,
        loss_before: float = 0.0,
        after_step: Callable[[int], None] | None = None,
    ) -> float:
        """Run the steps of an epoch, or the rest of them, and nothing else. Collective.

        Args:
            epoch: from 0; chooses the shuffle, the samples and the dropout.
            first_step: steps of the epoch that are done already; a multiple of `accumulate`.
            loss_before: what `loss_so_far` gave after those.
            after_step: called after each step with the steps now done; it may call collectives.

        Returns:
            Mean loss over the samples of the epoch, each as its step saw it; the same on every rank.

        Raises:
            DataError: the loss became NaN or infinite.
        """
        self._loss = loss_before if self.world.rank == 0 else 0.0
        self.train_steps(epoch, range(first_step, self.steps_per_epoch), after_step)
        check_buffers(self.world, self.model, self.task.dense_state)
        return self.loss_so_far() / self.task.samples_per_epoch

    def train_step(self, epoch: int, step: int) -> float:
        """Run one step. Collective.

        Of steps whose gradients are added up (`accumulate`) the dense part learns in the last one, tables in each,
        since these calls look up one minibatch each.

        Returns:
            Loss summed (not averaged) over this rank's samples.
        """
        self._loss = 0.0
        self.train_steps(epoch, range(step, step + 1))
        return self._loss

    def loss_so_far(self) -> float:
        """Sum of the losses of the epoch's samples up to now, over all ranks. Collective.

        Asked for before every checkpoint too, so that no checkpoint of a training that is lost replaces a good one.

        Raises:
            DataError: the loss became NaN or infinite.
        """
        total = torch.tensor(self._loss, dtype=torch.float64)
        with self.stopwatch.measure("wait"):
            self.world.all_reduce(total, stage="loss")
        if not bool(torch.isfinite(total)):
            tables = "" if self.task.data == "graph" else " or that of the tables"
            raise DataError(
                f"the loss is {float(total)}: the training diverged; lower training.learning_rate "
                f"({self.options.learning_rate:g}){tables}"
            )
        return float(total)

    def state_dict(self) -> dict[str, Any]:
        """What all ranks have in common: dense weights and their optimiser. Tables are in `Task.local_tables`."""
        return {
            "model": self.task.dense_state(),
            "optimizer": self._optimizer.state_dict(),
            "task": dict(self.task.state()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave, on every rank, on any number of ranks."""
        self.task.load_dense_state(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.task.load_state(state.get("task", {}))
        self._follow_changes()

    def gather_residuals(self) -> dict[str, Any]:
        """On rank 0 what each rank's sums of gradients have left out (`windrow.comm.error_feedback`). Collective."""
        self._follow_changes()
        of_ranks = self.world.gather_object(self._reducer.residuals(), root=0, stage="checkpoint")
        return {"shapes": self._reducer.shapes, "of_ranks": of_ranks}

    def load_residuals(self, found: Mapping[str, Any]) -> None:
        """Go on with what `gather_residuals` gave; those of another number of ranks, or another plan, are dropped."""
        if len(found["of_ranks"]) == self.world.size and found["shapes"] == self._reducer.shapes:
            self._reducer.load_residuals(found["of_ranks"][self.world.rank])

    def close(self) -> None:
        """Detach from the model's parameters, and end the task's threads."""
        self._reducer.close()
        self.task.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def train_steps(self, epoch: int, steps: range, after_step: Callable[[int], None] | None = None) -> None:
        """Run consecutive steps of an epoch; `after_step` as of `train_epoch`. Collective."""
        self.model.train()
        with self.task.minibatches(epoch, steps) as minibatches:
            for step in steps:
                # Before the minibatch is asked for: its lookups find tables that learn at this rate.
                self._set_learning_rates(epoch, step)
                self._loss += self._learn(next(minibatches), epoch, step)
                if after_step is not None:
                    after_step(step + 1)

    def _learn(self, minibatch: Any, epoch: int, step: int) -> float:
        """Take a step on a minibatch; the loss summed over this rank's samples. Collective."""
        group = self._group_of(step)
        is_last = step + 1 == group.stop
        if step == group.start:
            self._follow_changes()
            self._reducer.start()
        elif self._reduced != self._to_reduce():
            raise RecipeError(
                f"tables moved, or weights were frozen or freed, after step {step}, but gradients of accumulate = "
                f"{self.options.accumulate} steps are added up: do it after a multiple of it"
            )
        with self._forward_mode(epoch, step):
            loss = self.task.loss(minibatch, epoch, step)
        value = 0.0
        if loss is not None:
            if not loss.requires_grad:
                raise RecipeError(
                    "the loss has no gradient: compute it from the output, without detach, item or no_grad; where the "
                    "model has no weights, call trainer.evaluate or trainer.predict alone"
                )
            samples = sum(self.task.global_batch_size(epoch, member) for member in group)
            with self.stopwatch.measure("backward"), self._reducer.holding(not is_last):
                (loss / samples).backward()
            value = loss.item()
        if not is_last:
            return value
        with self.stopwatch.measure("wait"):
            self._reducer.finish()
        with self.stopwatch.measure("update"):
            if self.options.clip_norm:
                nn.utils.clip_grad_norm_(self._dense, self.options.clip_norm)
            self._optimizer.step()
            self.task.update()
        return value

    def _to_reduce(self) -> tuple[int, list[bool]]:
        """What says which gradients are summed: moves of tables, and which weights are learnt."""
        return self.task.moves, [parameter.requires_grad for parameter in self._dense]

    def _follow_changes(self) -> None:
        """Sum the gradients of what every rank learns now; what sums have left out is dropped where that is new."""
        if self._reduced != (now := self._to_reduce()):
            self._reducer.close()
            # Of frozen ones the optimiser would go on with the last gradient.
            self._optimizer.zero_grad()
            self._reducer, self._reduced = self._make_reducer(self.task.reduced_parameters()), now

    @contextlib.contextmanager
    def _forward_mode(self, epoch: int, step: int) -> Iterator[None]:
        with contextlib.ExitStack() as modes:
            if self.options.autocast == "bf16":
                modes.enter_context(torch.autocast(self._device.type, torch.bfloat16))
            if self._draws:
                key = stream_key(self.seed, Stream.DROPOUT, epoch, step, self.world.rank)
                modes.enter_context(seeded_generator(key, self._device))
            yield

    def _group_of(self, step: int) -> range:
        """The steps whose gradients are added up with those of this one."""
        start = step - step % self.options.accumulate
        return range(start, min(start + self.options.accumulate, self.steps_per_epoch))

    def _set_learning_rates(self, epoch: int, step: int) -> None:
        # That of the last of the steps that are added up: some tables learn at the rate of their lookup.
        steps, last = self.steps_per_epoch, self._group_of(step)[-1]
        factor = learning_rate_factor(self.options.schedule, epoch * steps + last, self.options.epochs * steps)
        for group in self._optimizer.param_groups:
            group["lr"] = self.options.learning_rate * factor
        self.task.scale_learning_rate(factor)

    # ---------------------------------------------------------------------------------------------------------- a run

    def evaluate(self, *splits: str, **options: Any) -> dict[str, dict[str, float]]:
        """Measure the model. Collective.

        Args:
            splits: "train", "validation" or "test"; none: validation and test.
            options: see `evaluate` of the task.

        Returns:
            For each of them that has samples, values by name; the same on every rank. The model is left in evaluation
            mode.
        """
        return self.task.evaluate(splits or ("validation", "test"), **options)

    def predict(self, split: str | None = None, **options: Any) -> Tensor:
        """Compute outputs: see `predict` of the task, which says what other options there are. Collective."""
        return self.task.predict(split, **options)

    def fit(
        self,
        *,
        run_folder: Path | str | None = None,
        resume: Literal["auto"] | bool = False,
        name: str = "run",
        settings: Mapping[str, Any] | None = None,
        decisive: Mapping[str, Any] | None = None,
        trace: bool = False,
        **options: Any,
    ) -> TrainingResult:
        """Train all epochs: evaluate, print, write records and checkpoints into a run folder. Collective.

        Args:
            run_folder: where; None for the next free ``runs/<name>-<n>``.
            resume: whether to go on with the run in that folder, from its latest intact checkpoint; "auto": where there
                is one. What a run left that had none yet is removed then.
            name: of the run, for its folder and its plot.
            settings: all of the run, nested dictionaries for recipe.toml; None: those of trainer and task.
            decisive: those that the outcome depends on: a run is resumed under the same only. None: `settings`.
            trace: whether to write a timeline of the first epochs (`windrow.training.timeline`).
            options: fields of `FitOptions`: when to measure, stop and save.

        Returns:
            The figures at the best validation epoch, the same on every rank.

        Raises:
            StoreError: the folder is in use or cannot be written; the checkpoint is damaged, or of another run.
            RecipeError: an option is out of range; all epochs are done.
            DataError: the loss became NaN or infinite.
        """
        described = self.task.run_settings() if settings is None else settings
        run = _Run(self, FitOptions(**options), described if decisive is None else decisive)
        folder = None if run_folder is None else Path(run_folder)
        if resume and folder is None:
            raise RecipeError("resume needs the folder of the run: give run_folder")
        if resume == "auto":
            there = self.world.rank == 0 and folder is not None and RunFolder(folder).goes_on_or_clears()
            resume = self.world.broadcast_object(there, root=0, stage="run folder")
        if resume:
            assert folder is not None
            run.restore(folder)
        else:
            run.begin()
        # No rank makes a run folder until every rank has found its part of the data right.
        self.world.barrier(stage="ready")
        return run.finish(folder, resumed=bool(resume), name=name, settings=described, trace=trace)

    def load_weights(
        self, run_folder: Path | str, checkpoint: WhichCheckpoint = "best", *, grown: bool = False
    ) -> Checkpoint:
        """Take over weights and tables of another run, on any number of ranks. Collective.

        Args:
            run_folder: of that run.
            checkpoint: of its best epoch, or its last one.
            grown: whether tables take over optimiser state too, and may have more rows, see `restore_tables`.

        Returns:
            What was read, the same on every rank; of the state the dense weights alone.

        Raises:
            StoreError: there is no such checkpoint, it is damaged, of another model, or of a log whose ids mean other
                rows.
        """
        world, task = self.world, self.task
        folder = RunFolder(Path(run_folder))
        if world.rank == 0:
            open_run_folder(folder.path)

        def check(header: CheckpointHeader) -> None:
            if task.embeddings and header.data_fingerprint not in (task.fingerprint, *task.ancestors):
                prepared = "prepare the log with vocabularies_from = the store of that run, or "
                raise StoreError(
                    f"{folder.path} was trained on another {task.data}, whose ids name other rows: "
                    f"{prepared * (task.data == 'log')}name its own store"
                )

        found = load_together(world, folder.checkpoint_folder, check, checkpoint, weights_only=True)
        states = found.state, task.dense_state()
        theirs, own = ({(name, value.shape) for name, value in state.items()} for state in states)
        # In one alone, or of other shapes.
        differing = sorted({name for name, _ in theirs ^ own})
        if differing:
            raise StoreError(f"{found.path} holds another model: {', '.join(differing)} differ in name or shape")
        task.load_dense_state(found.state)
        task.restore_tables(found, grown=grown, weights_only=not grown)
        return found

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method of every callback."""
        for callback in self._callbacks:
            getattr(callback, method)(self, *arguments)


class _Run:
    """One call of `Trainer.fit` on one rank, and how far it is."""

    def __init__(self, trainer: Trainer, options: FitOptions, decisive: Mapping[str, Any]) -> None:
        self._trainer = trainer
        self._world = trainer.world
        self._task = trainer.task
        self._options = options
        self._decisive = decisive
        accumulate = trainer.options.accumulate
        if options.checkpoint_every_steps % accumulate:
            raise RecipeError(
                f"checkpoint_every_steps = {options.checkpoint_every_steps}: must be a multiple of training.accumulate "
                f"= {accumulate}, or gradients that wait would be lost"
            )
        if options.patience and not self._task.has_validation:
            raise RecipeError(
                f"patience = {options.patience} without a validation split: give it samples, or set patience to 0"
            )
        self._stopping = EarlyStopping(patience=options.patience, higher_is_better=self._task.higher_is_better)
        # Of the epoch that is under way: what was done of it before this process began.
        self._first_step = 0
        self._loss_before = 0.0
        self._costs_before: Sequence[RankCost] = ()

    def restore(self, folder: Path) -> None:
        """Go back to the latest checkpoint of a run. Collective."""
        if self._world.rank == 0:
            open_run_folder(folder)
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
            for message in checkpoint.damaged:
                print(f"windrow: skipped a damaged checkpoint: {message}")
            step = f" and {self._first_step} steps" if self._first_step else ""
            print(f"windrow: resuming after epoch {self._finished}{step} from {checkpoint.path}")

    def begin(self) -> None:
        """Start from the weights of another run, where that is asked for. Collective."""
        if self._finished >= self._trainer.options.epochs:
            raise RecipeError(f"all {self._finished} epochs of this trainer are done: make another one")
        source = self._options.init_from
        if source is None:
            return
        has_best = best_checkpoint(RunFolder(source).checkpoint_folder) is not None
        which: WhichCheckpoint = "best" if has_best else "latest"
        which = self._world.broadcast_object(which, root=0, stage="checkpoint")
        found = self._trainer.load_weights(source, which, grown=True)
        if self._world.rank == 0:
            print(f"windrow: starting from the weights of {found.path}, after epoch {found.header.epoch}")

    def finish(
        self, folder: Path | None, *, resumed: bool, name: str, settings: Mapping[str, Any], trace: bool
    ) -> TrainingResult:
        """Run the epochs that are left. Collective."""
        trainer, task = self._trainer, self._task
        journal: Journal | None = None
        if self._world.rank == 0:
            journal = Journal(
                name,
                settings,
                folder,
                resumed=resumed,
                finished_epochs=self._finished,
                shown_figures=task.shown_figures,
                placement=task.placement(),
            )
        path = self._world.broadcast_object(
            None if journal is None else journal.folder.path, root=0, stage="run folder"
        )
        trainer.run_folder = RunFolder(path)
        with contextlib.ExitStack() as until_the_end:
            progress = until_the_end.enter_context(make_progress(rank=self._world.rank))
            for line in task.opening_lines():
                progress.write(line)
            timeline: Timeline | None = None
            if trace:
                file = trainer.run_folder.trace_file
                timeline = Timeline(self._world, trainer.stopwatch, task.data, file, say=progress.write)
                until_the_end.enter_context(timeline)
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
            concluded = None if journal is None else journal.conclude()
            result: TrainingResult = self._world.broadcast_object(concluded, root=0, stage="result")
            trainer.call("on_end", result)
        return result

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
        if self._is_due(self._options.evaluate_every):
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
        check_fits(header, recipe=self._decisive, data_fingerprint=self._task.fingerprint, data=self._task.data)
        self._task.check_world_size(header.world_size)
