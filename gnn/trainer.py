"""Minibatch training on a partitioned graph: sample, fetch, forward, backward, sum gradients, step."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from windrow.comm.codec import make_codec
from windrow.comm.errors import RecipeError
from windrow.comm.exchange import RowExchange
from windrow.comm.gradients import GradientReducer
from windrow.comm.meter import Stopwatch
from windrow.comm.world import World
from windrow.gnn.metrics import loss_sum
from windrow.gnn.models import GNN
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.sampler import NeighborSampler
from windrow.gnn.seed_order import SeedOrder
from windrow.training.dropout import DropoutContext
from windrow.training.schedule import ScheduleOptions, learning_rate_factor

__all__ = ["MinibatchTrainer", "SamplerOptions", "TrainingOptions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerOptions:
    """How minibatches are made."""

    fanouts: tuple[int, ...] = (15, 10, 5)
    """Neighbours sampled per vertex at each hop, from the seeds outwards; -1 takes all."""

    order: Literal["global", "local"] = "global"
    """"global": every epoch shuffles all training vertices, and a rank works on those of the minibatch that it owns,
    so the answer does not depend on the number of ranks. "local": every rank shuffles its own (SALIENT++)."""

    wire: Literal["fp32", "fp16", "bf16"] = "fp32"
    """Number format in which features travel between ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingOptions:
    """How the weights are learnt."""

    epochs: int = 50
    """Passes over the training vertices."""

    batch_size: int = 1024
    """Seeds per step, over all ranks."""

    learning_rate: float = 0.003
    """Peak learning rate of Adam."""

    weight_decay: float = 0.0
    """Decoupled weight decay (AdamW), per step and unit of learning rate."""

    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    """How the learning rate changes from step to step."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            RecipeError: names the field, its value and what is allowed.
        """
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise RecipeError(f"training.{name} = {getattr(self, name)}: must be at least 1")
        if self.learning_rate <= 0:
            raise RecipeError(f"training.learning_rate = {self.learning_rate}: must be above 0")
        if self.weight_decay < 0:
            raise RecipeError(f"training.weight_decay = {self.weight_decay}: must not be negative")


class MinibatchTrainer:
    """Trains one model on one partitioned graph, on all ranks of a world together.

    Everything random is a function of (seed, epoch, step, vertex), so the trainer holds no generator state: its
    whole state is the model's and the optimiser's, and the caller keeps the position (epoch, step).

    Args:
        world: all its ranks make the same trainer, on their own view of the same graph.
        graph: this rank's view.
        model: equal weights on all ranks; on the device to train on.
        sampler_options: how minibatches are made.
        options: how the weights are learnt.
        seed: the run's seed.

    Raises:
        RecipeError: the number of fanouts is not the model's number of layers.
        DataError: a rank has no training vertex, or a feature is too large for the wire's number format.
    """

    def __init__(
        self,
        world: World,
        graph: PartitionedGraph,
        model: GNN,
        *,
        sampler_options: SamplerOptions,
        options: TrainingOptions,
        seed: int,
    ) -> None:
        if len(sampler_options.fanouts) != model.options.num_layers:
            raise RecipeError(
                f"sampler.fanouts has {len(sampler_options.fanouts)} hops but the model has {model.options.num_layers} "
                "layers: give one fanout per layer"
            )
        self.graph = graph
        self.model = model
        self.stopwatch = Stopwatch()
        self._world = world
        self._options = options
        self._seed = seed
        self._device = next(model.parameters()).device
        self._sampler = NeighborSampler(
            graph.indptr,
            graph.indices,
            sampler_options.fanouts,
            seed=seed,
            original_ids=graph.original_ids,
            source_degrees=model.needs_source_degrees,
        )
        self._order = SeedOrder(
            graph.train_ids,
            graph.original_ids,
            offsets=graph.offsets,
            rank=world.rank,
            batch_size=options.batch_size,
            scheme=sampler_options.order,
            seed=seed,
        )
        codec = make_codec(sampler_options.wire)
        codec.check(graph.features)
        self._features = RowExchange(world, graph.offsets, graph.features, codec=codec, stage="features")
        self._fetched = graph.features.new_empty((0, *graph.features.shape[1:]))
        self._reducer = GradientReducer(world, model.parameters())
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay
        )
        self._loss = 0.0

    @property
    def steps_per_epoch(self) -> int:
        """Steps in an epoch, the same on every rank."""
        return self._order.steps_per_epoch

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
            epoch: from 0; chooses the shuffle, the samples and the dropout.
            first_step: steps of the epoch that are done already.
            loss_before: what `loss_so_far` gave after those.
            after_step: called after each step with the steps now done; it may call collectives.

        Returns:
            Mean loss over all training vertices, each as its step saw it; the same on every rank.
        """
        self.model.train()
        self._loss = loss_before if self._world.rank == 0 else 0.0
        for step in range(first_step, self.steps_per_epoch):
            self._loss += self.train_step(epoch, step)
            if after_step is not None:
                after_step(step + 1)
        return self.loss_so_far() / len(self.graph.train_ids)

    def loss_so_far(self) -> float:
        """Sum of the losses of the epoch's seeds up to now, over all ranks. Collective."""
        total = torch.tensor(self._loss, dtype=torch.float64)
        with self.stopwatch.measure("wait"):
            self._world.all_reduce(total, stage="loss")
        return float(total)

    @property
    def learning_rate(self) -> float:
        """The rate of the last step."""
        rate: float = self._optimizer.param_groups[0]["lr"]
        return rate

    def train_step(self, epoch: int, step: int) -> float:
        """Run one step. Collective.

        Returns:
            Loss summed (not averaged) over this rank's seeds.
        """
        with self.stopwatch.measure("sample"):
            minibatch = self._sampler.sample(self._order.seeds(epoch, step), epoch=epoch, step=step)
        with self.stopwatch.measure("fetch"):
            rows = self._fetch(minibatch.input_ids).to(self._device)
        self._reducer.start()
        loss_value = 0.0
        if len(minibatch.seeds) > 0:
            with self.stopwatch.measure("forward"):
                logits = self._forward(
                    minibatch.to(self._device).blocks, rows, minibatch.input_ids, epoch, step
                )
                labels = self.graph.labels[minibatch.seeds].to(self._device)
                loss = loss_sum(self.graph.task, logits, labels)
                loss_value = loss.item()
            with self.stopwatch.measure("backward"):
                (loss / self._order.global_batch_size(epoch, step)).backward()
        with self.stopwatch.measure("wait"):
            self._reducer.finish()
        with self.stopwatch.measure("update"):
            self._set_learning_rate(epoch, step)
            self._optimizer.step()
        return loss_value

    def global_batch_size(self, epoch: int, step: int) -> int:
        """Seeds of a step over all ranks."""
        return self._order.global_batch_size(epoch, step)

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs to go on bit for bit: weights and optimiser, nothing else."""
        return {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave, on every rank, on any number of ranks."""
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def close(self) -> None:
        """Detach from the model's parameters."""
        self._reducer.close()

    def _fetch(self, ids: Tensor) -> Tensor:
        """Rows in memory that the next call overwrites; it grows with the largest minibatch."""
        if len(ids) > len(self._fetched):
            self._fetched = self._fetched.new_empty((len(ids) + len(ids) // 8, *self._fetched.shape[1:]))
        return self._features.fetch(ids, unique=True, out=self._fetched[: len(ids)])

    def _forward(self, blocks: Any, rows: Tensor, input_ids: Tensor, epoch: int, step: int) -> Tensor:
        dropout = DropoutContext(
            seed=self._seed,
            epoch=epoch,
            step=step,
            row_ids=self.graph.original_ids[input_ids].to(self._device),
        )
        logits: Tensor = self.model(blocks, rows, dropout)
        return logits

    def _set_learning_rate(self, epoch: int, step: int) -> None:
        position = epoch * self.steps_per_epoch + step
        factor = learning_rate_factor(
            self._options.schedule, position, self._options.epochs * self.steps_per_epoch
        )
        for group in self._optimizer.param_groups:
            group["lr"] = self._options.learning_rate * factor
