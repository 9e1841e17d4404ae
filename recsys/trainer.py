"""Training on a click log: read, look up, forward, backward, sum gradients, step; three batches in flight.

Counts of one batch, ids of the next, lookup and dense work of the third::

    step            i              i + 1          i + 2
    batch i         lookup, dense
    batch i + 1     ids sent       lookup, dense
    batch i + 2     counts sent    ids sent       lookup, dense

As TorchRec's TrainPipelineSparseDist, the answer is that of one batch after another: a lookup starts only after the
update of the batch before, since it may need the same rows. What overlaps is all that does not depend on weights.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.gradients import GradientReducer
from windrow.comm.meter import Stopwatch
from windrow.comm.wire import WireOptions
from windrow.comm.world import World
from windrow.recsys.batches.batch import Batch
from windrow.recsys.recommender import Recommender, RecommenderLookup
from windrow.training.dropout import DropoutContext
from windrow.training.schedule import ScheduleOptions, learning_rate_factor

if TYPE_CHECKING:
    from windrow.recsys.tables.table import TableBatch

__all__ = ["BatchSource", "RecommendationTrainer", "RecommendationTrainingOptions", "pipelined"]


class BatchSource(Protocol):
    """Where minibatches come from: the same number on every rank, and any position can be started at."""

    @property
    def steps_per_epoch(self) -> int:
        """Steps in an epoch, the same on every rank."""

    @property
    def samples_per_epoch(self) -> int:
        """Samples in an epoch, over all ranks."""

    def global_batch_size(self, epoch: int, step: int) -> int:
        """Samples of a step, over all ranks."""

    def batches(self, epoch: int, first_step: int = 0) -> AbstractContextManager[Iterator[Batch]]:
        """This rank's batches of an epoch; leaving the context ends what reads ahead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecommendationTrainingOptions:
    """How the weights are learnt."""

    epochs: int = 1
    """Passes over the training split."""
    batch_size: int = 2048
    """Samples per step, over all ranks."""
    optimizer: Literal["adam", "adagrad", "sgd"] = "adam"
    """Of the dense part; tables have their own, in [tables]."""
    learning_rate: float = 0.001
    """Peak learning rate of the dense part."""
    weight_decay: float = 0.0
    """Of the dense part: decoupled (AdamW) for adam, added to the gradient otherwise."""
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    """How both learning rates change from step to step."""
    shuffle: Literal["window", "sessions", "none"] = "window"
    """window: samples are shuffled anew in every epoch, inside windows of `shuffle_rows`; sessions: whole sessions are,
    and their samples stay together, in order; none: in order of the log."""
    shuffle_rows: int = 1 << 16
    """Samples of a window; one that covers a lane shuffles all of it."""
    lanes: int = 8
    """Pieces that the log is cut into, each read by one rank: the most ranks that can train. The minibatches depend
    on it, not on the number of ranks."""
    reader_memory_bytes: int = 1 << 30
    """Up to this many bytes a rank keeps its samples decoded in memory from one epoch to the next."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            RecipeError: names the field, its value and what is allowed.
        """
        for name in ("epochs", "batch_size", "shuffle_rows", "lanes"):
            if getattr(self, name) < 1:
                raise RecipeError(f"training.{name} = {getattr(self, name)}: must be at least 1")
        if self.learning_rate <= 0:
            raise RecipeError(f"training.learning_rate = {self.learning_rate}: must be above 0")
        for name in ("weight_decay", "reader_memory_bytes"):
            if getattr(self, name) < 0:
                raise RecipeError(f"training.{name} = {getattr(self, name)}: must not be negative")


class RecommendationTrainer:
    """Trains one recommender on one log, on all ranks of a world together.

    Everything random is a function of (seed, epoch, step, sample): the trainer's whole state is that of tables,
    model and optimiser, and the caller keeps the position (epoch, step).

    Args:
        world: all its ranks make the same trainer.
        recommender: tables spread over this world, and a dense model of equal weights on all ranks.
        source: this rank's minibatches.
        options: how the weights are learnt.
        table_learning_rate: peak learning rate of the tables.
        seed: the run's seed.
        device: where the recommender is.
        wire: in which number format the summed gradients travel; must agree.
        sums_world: sums them, over the same ranks: `world`, or what `windrow.comm.hierarchy.hierarchical` made of it.
            None: `world`.
    """

    def __init__(
        self,
        world: World,
        recommender: Recommender,
        source: BatchSource,
        *,
        options: RecommendationTrainingOptions,
        table_learning_rate: float,
        seed: int,
        device: torch.device | None = None,
        wire: WireOptions | None = None,
        sums_world: World | None = None,
    ) -> None:
        self.recommender = recommender
        self.stopwatch = Stopwatch()
        self._world = world
        self._source = source
        self._options = options
        self._table_learning_rate = table_learning_rate
        self._seed = seed
        self._device = device or torch.device("cpu")
        codec = (wire or WireOptions()).sums_codec()
        self._reducer = GradientReducer(sums_world or world, recommender.reduced_parameters(), codec=codec)
        self._optimizer = _make_optimizer(recommender, options)
        self._loss = 0.0

    @property
    def steps_per_epoch(self) -> int:
        """Steps in an epoch, the same on every rank."""
        return self._source.steps_per_epoch

    @property
    def samples_per_epoch(self) -> int:
        """Samples in an epoch, over all ranks."""
        return self._source.samples_per_epoch

    @property
    def learning_rate(self) -> float:
        """The dense part's rate at the last step."""
        rate: float = self._optimizer.param_groups[0]["lr"]
        return rate

    def train_epoch(
        self,
        epoch: int,
        *,
        first_step: int = 0,
        loss_before: float = 0.0,
        after_step: Callable[[int], None] | None = None,
    ) -> float:
        """Run the steps of an epoch, or the rest of them. Collective.

        Args:
            epoch: from 0; chooses the shuffle and the dropout.
            first_step: steps of the epoch that are done already.
            loss_before: what `loss_so_far` gave after those.
            after_step: called after each step with the steps now done; it may call collectives.

        Returns:
            Mean loss over the samples of the epoch, each as its step saw it; the same on every rank.

        Raises:
            DataError: the loss became NaN or infinite.
        """
        self.recommender.train()
        self._loss = loss_before if self._world.rank == 0 else 0.0
        with self._source.batches(epoch, first_step) as batches:
            steps = pipelined(self._taken(batches), lambda batch: self.recommender.start(batch, self.stopwatch))
            for step in range(first_step, self.steps_per_epoch):
                # Before the lookup starts: fused tables learn at the rate that it found.
                self._set_learning_rates(epoch, step)
                batch, lookup = next(steps)
                self._loss += self._train_step(batch, lookup, epoch, step)
                if after_step is not None:
                    after_step(step + 1)
        return self.loss_so_far() / self.samples_per_epoch

    def loss_so_far(self) -> float:
        """Sum of the losses of the epoch's samples up to now, over all ranks. Collective.

        Asked for before every checkpoint too, so that no checkpoint of a training that is lost replaces a good one.

        Raises:
            DataError: the loss became NaN or infinite.
        """
        total = torch.tensor(self._loss, dtype=torch.float64)
        with self.stopwatch.measure("wait"):
            self._world.all_reduce(total, stage="loss")
        if not bool(torch.isfinite(total)):
            raise DataError(
                f"the loss is {float(total)}: the training diverged; lower training.learning_rate "
                f"({self._options.learning_rate:g}) or tables.learning_rate ({self._table_learning_rate:g})"
            )
        return float(total)

    def state_dict(self) -> dict[str, Any]:
        """What all ranks have in common: dense model and its optimiser. Tables are in `local_tables`."""
        return {"model": self.recommender.model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave, on every rank, on any number of ranks."""
        self.recommender.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def local_tables(self) -> "list[TableBatch]":
        """What this rank stores of the tables, to read its state and to load it."""
        return self.recommender.local_tables()

    def close(self) -> None:
        """Detach from the model's parameters."""
        self._reducer.close()

    def _taken(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        while True:
            with self.stopwatch.measure("read"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch.to(self._device)

    def _train_step(self, batch: Batch, lookup: RecommenderLookup, epoch: int, step: int) -> float:
        """Forward, backward and update of one batch; returns the loss summed over this rank's samples."""
        self._reducer.start()
        context = DropoutContext(seed=self._seed, epoch=epoch, step=step, row_ids=batch.row_ids.to(self._device))
        model = self.recommender.model
        with self.stopwatch.measure("forward"):
            begun = model.begin(batch.dense)  # While pooled vectors are on the wire.
        embeddings = lookup.finish()
        with self.stopwatch.measure("forward"):
            output: Any = model.finish(begun, embeddings, context)  # What the model's own loss takes.
            loss: Tensor = model.loss_sum(output, batch)
        with self.stopwatch.measure("backward"):
            (loss / self._source.global_batch_size(epoch, step)).backward()
        with self.stopwatch.measure("wait"):
            self._reducer.finish()
        with self.stopwatch.measure("update"):
            self._optimizer.step()
            self.recommender.step_tables()
        return loss.item()

    def _set_learning_rates(self, epoch: int, step: int) -> None:
        position = epoch * self.steps_per_epoch + step
        total_steps = self._options.epochs * self.steps_per_epoch
        factor = learning_rate_factor(self._options.schedule, position, total_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = self._options.learning_rate * factor
        self.recommender.set_table_learning_rate(self._table_learning_rate * factor)


def _make_optimizer(recommender: Recommender, options: RecommendationTrainingOptions) -> torch.optim.Optimizer:
    parameters = list(recommender.model.parameters())
    kinds = {"adam": torch.optim.AdamW, "adagrad": torch.optim.Adagrad, "sgd": torch.optim.SGD}
    kind: Callable[..., torch.optim.Optimizer] = kinds[options.optimizer]
    return kind(parameters, lr=options.learning_rate, weight_decay=options.weight_decay)


def pipelined(
    batches: Iterable[Batch], start: Callable[[Batch], RecommenderLookup]
) -> Iterator[tuple[Batch, RecommenderLookup]]:
    """Run through batches with the two that come next already on their way. Collective.

    Args:
        batches: as many on every rank.
        start: begins the lookup of a batch by sending its counts.

    Yields:
        Each batch and its lookup, whose `start_lookup` has been called. The caller finishes it, and updates the
        weights, before it asks for the next.
    """
    counted = ((batch, start(batch)) for batch in batches)

    def send_ids(item: tuple[Batch, RecommenderLookup] | None) -> tuple[Batch, RecommenderLookup] | None:
        if item is not None:
            item[1].start_ids()
        return item

    ids_sent = send_ids(next(counted, None))
    counts_sent = next(counted, None)
    while ids_sent is not None:
        current = ids_sent
        current[1].start_lookup()
        ids_sent = send_ids(counts_sent)
        counts_sent = next(counted, None)
        yield current
