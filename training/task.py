"""What a trainer learns from: a task gives minibatches, loss and metrics; and how the weights are learnt."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from windrow.comm.errors import RecipeError
from windrow.comm.meter import Stopwatch, Traffic
from windrow.comm.options import NonNegativeFloat, PositiveFloat, PositiveInt, checked_dataclass
from windrow.comm.wire import WireOptions
from windrow.comm.world import World
from windrow.training.schedule import ScheduleOptions
from windrow.training.shard_files import StoredTables

__all__ = ["Loss", "Metric", "Metrics", "Setup", "Task", "TrainingOptions", "summed_loss"]

Loss: TypeAlias = Callable[..., Tensor]
"""``loss(output, labels)`` of the rows of one rank: their mean, a scalar, or one value for each row, [n]."""

Metric: TypeAlias = Callable[[Tensor, Tensor], float]
"""``metric(output, labels)`` of all rows of a split, on the CPU."""

Metrics: TypeAlias = Mapping[str, Metric]
"""By name; the first one chooses the best epoch."""

Minibatch = TypeVar("Minibatch")


@checked_dataclass
class TrainingOptions:
    """How the weights are learnt."""

    epochs: PositiveInt = 10
    """Passes over the training samples."""
    batch_size: PositiveInt = 1024
    """Samples (seeds) per step, over all ranks."""
    optimizer: Literal["adam", "adagrad", "sgd"] = "adam"
    """Of the dense part; embedding tables have their own, in [tables]."""
    learning_rate: PositiveFloat = 0.001
    """Peak learning rate of the dense part."""
    weight_decay: NonNegativeFloat = 0.0
    """Of the dense part: decoupled (AdamW) for adam, added to the gradient otherwise."""
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    """How the learning rates, those of tables too, change from step to step."""
    clip_norm: NonNegativeFloat = 0.0
    """Largest norm of the gradients of the dense part, all together; larger ones are scaled down. 0: no limit."""
    accumulate: PositiveInt = 1
    """Steps whose gradients are added up before the dense part learns from them. The loss is the mean over all their
    samples. Tables with a fused optimizer learn at every step, each from its share of that mean, as in TorchRec."""
    autocast: Literal["none", "bf16"] = "none"
    """bf16: forward pass and loss run under torch.autocast; weights and their gradients stay fp32."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Setup:
    """What a trainer tells its task."""

    world: World
    """Its ranks."""
    model: nn.Module
    """Equal weights on all ranks."""
    device: torch.device
    """Where the model is."""
    options: TrainingOptions
    """How the weights are learnt."""
    seed: int
    """Of everything random."""
    wire: WireOptions
    """In which number formats rows travel."""
    stopwatch: Stopwatch
    """Measures the stages of a step."""


class Task(ABC, Generic[Minibatch]):
    """Minibatches, loss and metrics of one training. All ranks make the same one; it belongs to one trainer.

    What methods return is the same on all ranks where nothing else is said.
    """

    data: ClassVar[Literal["graph", "log"]]
    """What is learnt from."""
    default_options: ClassVar[TrainingOptions] = TrainingOptions()
    """Of a trainer that is told nothing else."""
    bucket_bytes: ClassVar[int] = 4 << 20
    """Of gradients that are summed together: large enough that latency does not show, small enough that the first sum
    starts early."""
    ancestors: Sequence[str] = ()
    """Fingerprints of data that these data continue: weights learnt from them can be started from."""
    metric: str
    """What chooses the best epoch: a key of the values that `evaluate` gives for a split."""
    higher_is_better: bool = True
    """Whether that metric should rise."""
    shown_figures: Mapping[str, str] = {}
    """Values of an epoch that get a column of the printed table, beside the metric, with its header."""
    fingerprint: str
    """Digest of the user's graph or log: a run is resumed with the same one only."""
    steps_per_epoch: int
    """The same on every rank; known after `start`."""
    samples_per_epoch: int
    """Samples (seeds) in an epoch, over all ranks; known after `start`."""

    @abstractmethod
    def start(self, setup: Setup) -> None:
        """Prepare to train. Collective; the trainer calls it once.

        Raises:
            WindrowError: the data do not fit the model or the options.
        """

    @abstractmethod
    def global_batch_size(self, epoch: int, step: int) -> int:
        """Samples of a step, over all ranks."""

    @abstractmethod
    def minibatches(self, epoch: int, steps: range) -> AbstractContextManager[Iterator[Minibatch]]:
        """This rank's minibatches of some consecutive steps. Collective, and so is asking for the next one.

        Asked for the next one, the iterator may start what depends on the weights: the step before is over by then.
        Leaving the context ends what reads ahead.
        """

    @abstractmethod
    def loss(self, minibatch: Minibatch, epoch: int, step: int) -> Tensor | None:
        """Run the forward pass.

        Returns:
            The loss, summed over this rank's samples; None where a rank without samples has no backward pass to run.
        """

    @abstractmethod
    def evaluate(self, splits: Sequence[str] = ("validation", "test")) -> dict[str, dict[str, float]]:
        """Measure the model. Collective.

        Returns:
            For each of these splits that has samples, values by name.
        """

    def predict(self, split: str | None = None) -> Tensor:
        """Compute outputs. Collective.

        Args:
            split: which samples or vertices. None: all vertices of a graph, the test split of a log.

        Returns:
            float32 [n, ...] on the CPU of every rank, in the user's order.

        Raises:
            RecipeError: there is no such split, or the task has no order of its own.
        """
        raise RecipeError(f"{type(self).__name__} cannot tell in which order to predict {split or 'anything'}")

    @abstractmethod
    def traffic(self) -> Traffic:
        """Rows that this rank exchanged since the meter of its world was reset."""

    @abstractmethod
    def placement(self) -> dict[str, Any]:
        """What each rank holds, for placement.json: not collective."""

    def dense_parameters(self, model: nn.Module) -> Iterable[nn.Parameter]:
        """What the trainer's optimiser updates."""
        return model.parameters()

    def reduced_parameters(self, model: nn.Module) -> Iterable[nn.Parameter]:
        """What every rank holds a copy of, so that its gradients must be summed."""
        return model.parameters()

    def dense_state(self, model: nn.Module) -> dict[str, Tensor]:
        """What all ranks have in common of the model's state."""
        return model.state_dict()

    def load_dense_state(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        """Restore what `dense_state` gave."""
        model.load_state_dict(state)

    @property
    def moves(self) -> int:
        """How often tables have moved, so that `reduced_parameters` are others: the same on all ranks."""
        return 0

    def state(self) -> Mapping[str, Any]:
        """What a run that goes on from here needs beside the model and its optimiser; the same on all ranks."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` gave, on any number of ranks. Collective."""

    def scale_learning_rate(self, factor: float) -> None:
        """Let what the task updates itself learn at its peak rate times this, from the next minibatch on."""

    def update(self) -> None:
        """Update what is not updated by the trainer's optimiser or in the backward pass."""

    def opening_lines(self) -> Sequence[str]:
        """What the user is told before the first epoch."""
        return ()

    def local_tables(self) -> Sequence[StoredTables] | None:
        """What this rank stores of embedding tables, to read its state and to load it; None where there are none."""
        return None

    def check_world_size(self, written_by: int) -> None:
        """Refuse a checkpoint of so many ranks, where minibatches would be others.

        Raises:
            StoreError: says why.
        """

    def close(self) -> None:
        """Let go of threads and files."""


def summed_loss(loss: Loss, output: Any, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """The sum over rows of a user's loss, each row's multiplied by its weight, where there are weights [n].

    Raises:
        RecipeError: it returns neither a scalar nor a value for each row; or a scalar, where rows have weights.
    """
    found: Any = loss(output, labels)
    if not isinstance(found, Tensor) or found.dim() > 1 or (found.dim() == 1 and len(found) != len(labels)):
        shape = f"shape {list(found.shape)}" if isinstance(found, Tensor) else f"type {type(found).__name__}"
        raise RecipeError(
            f"the loss has {shape} for {len(labels)} rows: return their mean (a scalar tensor), or one value for each"
        )
    if weights is None:
        return found * len(labels) if found.dim() == 0 else found.sum()
    if found.dim() == 0:
        raise RecipeError("the loss is a mean over rows, but rows have weights: return one value for each row")
    return found @ weights
