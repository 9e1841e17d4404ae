"""The trainer: steps and epochs. What is learnt, and from what, is the task's; runs are in `windrow.training.fit`.

A step::

    minibatch of the task -> forward, loss -> backward  -> sum gradients -> clip, optimiser -> task's own update
                                              buckets travel meanwhile

Everything random is a function of (seed, epoch, step, ...): a trainer holds no generator, so the whole state of a run
is that of model, optimiser and tables, and its position (epoch, step). Torch's generator, which `nn.Dropout` draws
from, is seeded for every forward pass that may draw from it.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from windrow.comm.errors import DataError, RecipeError, StoreError
from windrow.comm.gradients import GradientReducer
from windrow.comm.meter import Meter, Stopwatch
from windrow.comm.random import Stream, stream_key
from windrow.comm.wire import WireOptions
from windrow.comm.world import World
from windrow.training.callbacks import Callback
from windrow.training.checkpoint import Checkpoint, CheckpointHeader, WhichCheckpoint, load_together
from windrow.training.dropout import draws_from_torch, seeded_generator
from windrow.training.fit import FitOptions, Run
from windrow.training.journal import TrainingResult
from windrow.training.optimizers import make_optimizer
from windrow.training.replicas import check_buffers, check_model, copy_from_rank_0
from windrow.training.run_folder import RunFolder, Start, open_run_folder
from windrow.training.schedule import learning_rate_factor
from windrow.training.task import Setup, Task, TrainingOptions, device_of

__all__ = ["Trainer"]


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
        model: any module that the task can call; on the device to train on. Weights and buffers of rank 0, but for
            those that its state dict leaves out, are copied to all ranks.
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
        callbacks: in the order in which they are called.
        finished_epochs: how many.

    After `fit` the model has the weights of the last epoch; ``load_weights(run_folder)`` takes those of the best one.
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
        self.callbacks = list(callbacks)
        if not isinstance(wire, WireOptions):
            wire = WireOptions.of_name(wire or "fp32", tables=task.data == "log")
        if wire.topology != "flat" and sums_world is None:
            raise RecipeError(
                f'wire.topology = "{wire.topology}" says how recipes sum: here give sums_world = '
                "windrow.comm.hierarchy.hierarchical(world, hosts)"
            )
        if wire.sums == "fp8" and sums_world not in (None, world):
            raise RecipeError(
                'wire.sums = "fp8" with a world of sums within hosts, which have no place for what fp8 leaves out: '
                'leave out sums_world, or set wire.sums = "bf16"'
            )
        if world.meter is None:
            world.meter = Meter()
        check_model(model)
        self._device = device = device_of(model)
        self._draws = draws_from_torch(model)
        watch = self.stopwatch
        task.attach(
            Setup(world=world, model=model, device=device, options=self.options, seed=seed, wire=wire, stopwatch=watch)
        )
        copy_from_rank_0(world, task.dense_state())
        task.start()
        # Needs the number of steps.
        learning_rate_factor(self.options.schedule, 0, self.options.epochs * task.steps_per_epoch)
        self._make_reducer = functools.partial(
            GradientReducer, sums_world or world, codec=wire.sums_codec(), bucket_bytes=task.bucket_bytes
        )
        self._dense = task.dense_parameters()
        self._reducer, self._reduced = self._make_reducer(task.reduced_parameters()), self._to_reduce()
        self._optimizer = make_optimizer(self._dense, self.options)
        self._loss = torch.zeros((), dtype=torch.float64, device=device)

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
        self._loss.fill_(loss_before if self.world.rank == 0 else 0.0)
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
        self._loss.zero_()
        self.train_steps(epoch, range(step, step + 1))
        return float(self._loss)

    def loss_so_far(self) -> float:
        """Sum of the losses of the epoch's samples up to now, over all ranks. Collective.

        Asked for before every checkpoint too, so that no checkpoint of a training that is lost replaces a good one.

        Raises:
            DataError: the loss became NaN or infinite.
        """
        total = self._loss.to("cpu", copy=True)
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
            "learnt": [parameter.requires_grad for parameter in self._dense],
            "task": dict(self.task.state()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave, on every rank, on any number of ranks."""
        self.task.load_dense_state(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        learnt = state.get("learnt", [])
        if learnt and learnt != self._to_reduce()[1] and self.world.rank == 0:
            print("windrow: weights are frozen, or not, as they were in the checkpoint", flush=True)
        for parameter, is_learnt in zip(self._dense, learnt, strict=False):
            parameter.requires_grad_(is_learnt)
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
                # Added up where it was computed: to read it would be to wait for a GPU.
                self._loss += self._learn(next(minibatches), epoch, step)
                if after_step is not None:
                    after_step(step + 1)
                    if not self.model.training:  # It has measured.
                        self.model.train()

    def _learn(self, minibatch: Any, epoch: int, step: int) -> Tensor | float:
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
        value: Tensor | float = 0.0
        if loss is not None:
            if not loss.requires_grad:
                raise RecipeError(
                    "the loss has no gradient: compute it from the output, without detach, item or no_grad; where the "
                    "model has no weights, call trainer.evaluate or trainer.predict alone"
                )
            samples = sum(self.task.global_batch_size(epoch, member) for member in group)
            with self.stopwatch.measure("backward"), self._reducer.holding(self.task.holds_sums or not is_last):
                (loss / samples).backward()
            value = loss.detach()
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
            splits: "validation", "test", or of a graph "train"; none: validation and test.
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
                is one, and else begin, also where a run ended before its first. More epochs than it was begun with may
                follow where the schedule is constant.
            name: of the run, for its folder and its plot.
            settings: all of the run, nested dictionaries for recipe.toml; None: those of trainer and task.
            decisive: those that the outcome depends on: a run is resumed under the same only. None: `settings`.
            trace: whether to write a timeline of the first epochs (`windrow.training.timeline`).
            options: fields of `windrow.training.fit.FitOptions`: when to measure, stop and save.

        Returns:
            The figures at the best validation epoch, the same on every rank.

        Raises:
            StoreError: the folder is in use or cannot be written; the checkpoint is damaged, or of another run.
            RecipeError: an option is out of range; all epochs are done.
            DataError: the loss became NaN or infinite.
        """
        described = self.task.run_settings() if settings is None else settings
        run = Run(self, FitOptions(**options), described if decisive is None else decisive)
        folder = None if run_folder is None else Path(run_folder)
        start: Start = "new"
        if resume:
            if folder is None:
                raise RecipeError("resume needs the folder of the run: give run_folder")
            start = RunFolder(folder).next_start() if resume == "auto" and self.world.rank == 0 else "resumed"
            start = self.world.broadcast_object(start, root=0, stage="run folder")
        if start == "resumed":
            assert folder is not None
            run.restore(folder)
        else:
            run.begin()
        # No rank makes a run folder until every rank has found its part of the data right.
        self.world.barrier(stage="ready")
        return run.finish(folder, start, name=name, settings=described, trace=trace)

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
        folder = world.from_rank_0(lambda: open_run_folder(Path(run_folder)), stage="run folder")

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
        for callback in self.callbacks:
            getattr(callback, method)(self, *arguments)
