"""What a trainer learns from: a task gives minibatches, loss and metrics; and how the weights are learnt."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from windrow.comm.errors import DataError, RecipeError, StoreError
from windrow.comm.meter import Stopwatch, Traffic
from windrow.comm.options import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, checked_dataclass
from windrow.comm.wire import WireOptions
from windrow.comm.world import World
from windrow.partition.tables.plan import Plan
from windrow.training.checkpoint import Checkpoint, restore_tables
from windrow.training.embedding import EmbeddingModule
from windrow.training.schedule import ScheduleOptions
from windrow.training.shard_files import StoredTables

__all__ = [
    "EvaluationTimes",
    "Loss",
    "Metric",
    "Metrics",
    "Setup",
    "Task",
    "TrainingOptions",
    "device_of",
    "measured",
    "options_set",
    "summed_loss",
]

Loss: TypeAlias = Callable[..., Tensor]
"""``loss(output, labels)`` of the rows of one rank: their mean, a scalar, or one value for each row, [n]."""

Metric: TypeAlias = Callable[[Tensor, Tensor], float]
"""``metric(output, labels)`` of all rows of a split, on the CPU."""

Metrics: TypeAlias = Mapping[str, Metric]
"""By name; the first one chooses the best epoch."""

Minibatch = TypeVar("Minibatch")

VECTORS = (": vectors", ": vectors early")
"""End the stages in which rows of embedding tables travel; others move ids and gradients."""


@checked_dataclass
class EvaluationTimes:
    """When a model is measured, and a run ends by it."""

    every_epochs: PositiveInt = 1
    """Epochs between two evaluations; the last is evaluated too, unless a callback's ``on_epoch`` ends the run."""
    patience_epochs: NonNegativeInt = 0
    """Stop when validation has not improved for this many epochs; 0: never."""


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
    """Steps whose gradients are added up before the model learns from them. The loss is the mean over all their
    samples. Tables of a log are looked up and learn once for all these steps, as for one minibatch: embeddings of the
    next step, and gradients of the one before, travel while one is computed. Rows of vertices with a fused optimizer
    learn at every step, each from its share of that mean."""
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
    has_validation: bool = True
    """Whether `evaluate` gives values of validation, which choose the best epoch; known after `start`."""
    evaluation_times: EvaluationTimes = EvaluationTimes()
    """When `fit` measures, where it is told nothing else; `fit` sets what it is told."""
    bound_to_ranks: str = ""
    """The option by which minibatches depend on the number of ranks; empty where none does."""
    bound_to_epochs: bool = False
    """Whether an epoch depends on how many there will be, so that a run cannot go on for more; known after `start`."""
    holds_sums: bool = False
    """Whether gradients are summed after the backward pass, since on a rank without samples few come in it."""
    shown_figures: Mapping[str, str] = {}
    """Values of an epoch that get a column of the printed table, beside the metric, with its header."""
    fingerprint: str
    """Digest of the user's graph or log: a run is resumed with the same one only."""
    steps_per_epoch: int
    """The same on every rank; known after `start`."""
    samples_per_epoch: int
    """Samples (seeds) in an epoch, over all ranks; known after `start`."""
    setup: Setup
    """What the trainer told, before `start`."""
    embeddings: Sequence[EmbeddingModule] = ()
    """What holds embedding tables, in the model and beside it; known as `setup` is."""

    def attach(self, setup: Setup) -> None:
        """Take up what the trainer tells, and find the tables. The trainer calls it before anything else."""
        self.setup = setup
        self.embeddings = [module for module in setup.model.modules() if isinstance(module, EmbeddingModule)]
        names = Counter(spec.name for embedding in self.embeddings for spec in embedding.specs)
        if twice := [name for name, times in names.items() if times > 1]:
            raise RecipeError(
                f"two collections of the model have a table {twice[0]!r}, which checkpoints could not tell apart: give "
                "each table a name of its own"
            )

    @abstractmethod
    def start(self) -> None:
        """Prepare to train as `setup` says. Collective; the trainer calls it once.

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
        Leaving the context ends what reads ahead, or lets it wait for the steps that follow.
        """

    def settle(self) -> None:
        """End what was started for steps that will not come. Collective; `Trainer.fit` ends with it."""

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

    def traffic(self) -> Traffic:
        """Rows that this rank exchanged since the meter of its world was reset: here, of embedding tables."""
        meter = self.setup.world.meter
        assert meter is not None
        stages = {f"{embedding.stage}{ending}" for embedding in self.embeddings for ending in VECTORS}
        return sum(map(meter.totals, stages), start=Traffic())

    @abstractmethod
    def placement(self) -> dict[str, Any]:
        """What each rank holds, for placement.json: not collective."""

    def settings(self) -> dict[str, Any]:
        """What the outcome depends on beside data, model, loss, metrics and the trainer's options, for recipe.toml.

        A run is resumed under the same only.
        """
        return {}

    def run_settings(self) -> dict[str, Any]:
        """Those, and the trainer's: of a run that has no recipe."""
        setup, own = self.setup, {"kind": type(self).__name__, **self.settings()}
        return {
            "seed": setup.seed,
            "training": options_set(setup.options),
            "wire": options_set(setup.wire),
            "task": own,
        }

    def dense_parameters(self) -> list[nn.Parameter]:
        """What the trainer's optimiser updates: the model's, without those of embedding tables."""
        inside = {parameter for embedding in self.embeddings for parameter in embedding.parameters()}
        return [parameter for parameter in self.setup.model.parameters() if parameter not in inside]

    def reduced_parameters(self) -> Iterator[nn.Parameter]:
        """What every rank holds a copy of, so that its gradients must be summed; they come in the reverse order."""
        for embedding in self.embeddings:
            yield from embedding.replicated_parameters()
        yield from self.dense_parameters()

    def dense_state(self) -> dict[str, Tensor]:
        """What all ranks have in common of the model's state: all but embedding tables."""
        with ExitStack() as stack:
            for embedding in self.embeddings:
                stack.enter_context(embedding.left_out_of_state_dict())
            return dict(self.setup.model.state_dict())

    def load_dense_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `dense_state` gave: DataError where it is that of another model."""
        mine = self.dense_state()
        if mine.keys() != state.keys():
            raise DataError(
                f"the checkpoint has the weights {', '.join(sorted(state))}, but the model {', '.join(sorted(mine))}"
            )
        self.setup.model.load_state_dict(dict(state), strict=False)

    @property
    def moves(self) -> int:
        """How often tables have moved, so that `reduced_parameters` are others: the same on all ranks."""
        return sum(embedding.moves for embedding in self.embeddings)

    def state(self) -> Mapping[str, Any]:
        """What a run that goes on from here needs beside the model and its optimiser; the same on all ranks.

        Here, where the tables are, if they have moved.
        """
        if not self.moves:
            return {}
        plans = [embedding.plan.to_dict() for embedding in self.embeddings]
        return {"world_size": self.setup.world.size, "plans": plans}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` gave, on any number of ranks. Collective.

        Here tables move to where they were, on as many ranks; on others they stay.
        """
        if state.get("world_size") == self.setup.world.size:
            for embedding, plan in zip(self.embeddings, state["plans"], strict=True):
                embedding.move_to(Plan.from_dict(plan))

    def scale_learning_rate(self, factor: float) -> None:
        """Let what the task updates itself learn at its peak rate times this, from the next minibatch on."""
        for embedding in self.embeddings:
            embedding.scale_learning_rate(factor)

    def round_anew(self, epoch: int, step: int) -> None:
        """Have gradients of embedding tables that travel in few bits rounded by the random numbers of this step."""
        for number, embedding in enumerate(self.embeddings):
            embedding.round_anew(epoch, step, number)

    def update(self) -> None:
        """Update what is not updated by the trainer's optimiser or in the backward pass: here, embedding tables."""
        for embedding in self.embeddings:
            embedding.step()

    def opening_lines(self) -> Sequence[str]:
        """What the user is told before the first epoch."""
        return ()

    def local_tables(self) -> Sequence[StoredTables] | None:
        """What this rank stores of embedding tables, to read its state and to load it; None where there are none."""
        if not self.embeddings:
            return None
        return [table for embedding in self.embeddings for table in embedding.local_tables()]

    def restore_tables(self, checkpoint: Checkpoint, *, grown: bool = False, weights_only: bool = False) -> None:
        """Read embedding tables, where there are any: see `windrow.training.checkpoint.restore_tables`. Collective."""
        tables = self.local_tables()
        if tables is not None:
            restore_tables(checkpoint, tables, grown=grown, weights_only=weights_only)
        for embedding in self.embeddings:
            embedding.refresh_copies()

    def check_world_size(self, written_by: int) -> None:
        """Refuse a checkpoint of so many ranks, where minibatches would be others.

        Raises:
            StoreError: says why.
        """
        size = self.setup.world.size
        if self.bound_to_ranks and written_by != size:
            raise StoreError(
                f"the checkpoint was written by {written_by} ranks, and with {self.bound_to_ranks} minibatches would "
                f"be others on {size}: resume on {written_by} ranks, or start a new run."
            )

    def close(self) -> None:
        """Let go of threads and files."""


def device_of(model: nn.Module) -> torch.device:
    """Where a module computes: the device of its first parameter or, without any, buffer; without either, the CPU."""
    found = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if found is None else found.device


def options_set(options: Any) -> dict[str, Any]:
    """Fields of options that are not None, as recipe.toml can hold them."""
    return {name: value for name, value in asdict(options).items() if value is not None}


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
        # A mean over no rows is NaN.
        mean = found if len(labels) else found.nan_to_num()
        return mean * len(labels) if found.dim() == 0 else found.sum()
    if found.dim() == 0:
        raise RecipeError("the loss is a mean over rows, but rows have weights: return one value for each row")
    return (found * weights).sum()  # Autocast would round what it multiplies as matrices.


def is_one_each(outputs: Tensor, labels: Tensor) -> bool:
    """Whether there is one output for each label of each row, also where there are no rows."""
    of_rows = [(tensor.shape[:1], tensor.shape[1:].numel()) for tensor in (outputs, labels)]
    return of_rows[0] == of_rows[1]


def measured(metrics: Metrics, outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """What metrics give for rows: RecipeError where it is no single number."""
    values = dict[str, float]()
    for name, metric in metrics.items():
        found: Any = metric(outputs, labels)
        try:
            values[name] = float(found)
        except (TypeError, ValueError, RuntimeError):
            what = f"a tensor of shape {list(found.shape)}" if isinstance(found, Tensor) else repr(found)
            raise RecipeError(
                f"metric {name!r} gives {what} for {len(labels)} rows: return one number for all of them"
            ) from None
    return values
