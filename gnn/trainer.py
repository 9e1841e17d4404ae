"""Minibatch training on a partitioned graph: sample, fetch, forward, backward, sum gradients, step."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from windrow.caching.cached_store import CachedStore
from windrow.comm.errors import RecipeError
from windrow.comm.gradients import GradientReducer
from windrow.comm.meter import Stopwatch
from windrow.comm.wire import CodecName, WireOptions
from windrow.comm.world import World
from windrow.gnn.graph import Task
from windrow.gnn.models import GNN
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.pipeline import LoadedMinibatch, MinibatchPipeline, PipelineOptions, SeedTask
from windrow.gnn.sampler import NeighborSampler, check_fanouts
from windrow.gnn.seed_order import SeedOrder
from windrow.training.dropout import DropoutContext
from windrow.training.schedule import ScheduleOptions, learning_rate_factor

__all__ = ["MinibatchTrainer", "SamplerOptions", "TrainingOptions", "loss_sum"]

BUCKET_BYTES = 256 << 10
"""Of gradients that are summed together. The lowest layer has by far the most rows, so that its backward pass takes
longest: with buckets of a layer or less, the sums of all layers above it travel meanwhile."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerOptions:
    """How minibatches are made."""

    fanouts: tuple[int, ...] = (15, 10, 5)
    """Neighbours sampled per vertex at each hop, from the seeds outwards; -1 takes all."""

    order: Literal["global", "local"] = "global"
    """"global": every epoch shuffles all training vertices, and a rank works on those of the minibatch that it owns,
    so the answer does not depend on the number of ranks. "local": every rank shuffles its own (SALIENT++)."""

    storage: CodecName = "fp32"
    """Number format in which features are kept in memory; the model computes in fp32 all the same."""

    def __post_init__(self) -> None:
        if not self.fanouts:
            raise RecipeError("sampler.fanouts = []: give one for each hop")
        check_fanouts("sampler.fanouts", self.fanouts)


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
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise RecipeError(f"training.{name} = {getattr(self, name)}: must be at least 1")
        if self.learning_rate <= 0:
            raise RecipeError(f"training.learning_rate = {self.learning_rate}: must be above 0")
        if self.weight_decay < 0:
            raise RecipeError(f"training.weight_decay = {self.weight_decay}: must not be negative")


def loss_sum(task: Task, logits: Tensor, labels: Tensor) -> Tensor:
    """Add up the loss over vertices; sums of all ranks add up, to be divided by the global batch size.

    Args:
        task: "single-label": cross entropy; "binary": binary cross entropy; "multi-label": binary cross
            entropy, mean over the classes.
        logits: [n, C], or [n] or [n, 1] for "binary"; n may be 0.
        labels: [n] int64, or [n, C] float of 0 and 1 for "multi-label"; on the device of `logits`.

    Returns:
        Scalar, differentiable in `logits`; 0 for no vertices.
    """
    if task == "single-label":
        return F.cross_entropy(logits, labels, reduction="sum")
    if task == "binary":
        return F.binary_cross_entropy_with_logits(logits.reshape(len(labels)), labels.to(logits.dtype), reduction="sum")
    total = F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="sum")
    return total / labels.shape[1]


class MinibatchTrainer:
    """Trains one model on one partitioned graph, on all ranks of a world together.

    Everything random is a function of (seed, epoch, step, vertex), so the trainer holds no generator state: its
    whole state is the model's and the optimiser's, and the caller keeps the position (epoch, step).

    Args:
        world: all its ranks make the same trainer, on their own view of the same graph.
        graph: this rank's view; features in fp32, or as `PartitionedGraph.stored_as` gives them.
        model: equal weights on all ranks; on the device to train on.
        sampler_options: how minibatches are made.
        options: how the weights are learnt.
        seed: the run's seed.
        pipeline: how far ahead minibatches are sampled and fetched; must agree.
        wire: in which number formats features and gradients travel; must agree.
        sums_world: sums the gradients, over the same ranks: `world`, or what
            `windrow.comm.hierarchy.hierarchical` made of it. None: `world`.
        cached_ids: int64, ids of vertices of other ranks whose rows this rank keeps too; None for none. Their number
            may differ between ranks.
        gpu_share: share of this rank's own rows that a GPU keeps; the first ones.

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
        pipeline: PipelineOptions | None = None,
        wire: WireOptions | None = None,
        sums_world: World | None = None,
        cached_ids: Tensor | None = None,
        gpu_share: float = 1.0,
    ) -> None:
        wire = wire or WireOptions()
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
        self._order = SeedOrder(
            graph.train_ids,
            graph.original_ids,
            offsets=graph.offsets,
            rank=world.rank,
            batch_size=options.batch_size,
            scheme=sampler_options.order,
            seed=seed,
        )
        codec = wire.vectors_codec(graph.features.dtype)
        codec.check(graph.features)
        self.store = CachedStore(
            world,
            graph.offsets,
            graph.features,
            cached_ids=cached_ids,
            codec=codec,
            stage="features",
            device=self._device,
            device_share=gpu_share,
        )
        sampler = NeighborSampler(
            graph.indptr,
            graph.indices,
            sampler_options.fanouts,
            seed=seed,
            original_ids=graph.original_ids,
            source_degrees=model.needs_source_degrees,
        )
        self._pipeline = MinibatchPipeline(
            world, sampler, self.store, pipeline or PipelineOptions(), device=self._device, stopwatch=self.stopwatch
        )
        self._reducer = GradientReducer(
            sums_world or world, model.parameters(), codec=wire.sums_codec(), bucket_bytes=BUCKET_BYTES
        )
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
        steps = range(first_step, self.steps_per_epoch)
        for loaded in self._pipeline.run(self._tasks(epoch, steps)):
            self._loss += self._learn(loaded)
            if after_step is not None:
                after_step(loaded.task.step + 1)
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
        (loaded,) = self._pipeline.run(self._tasks(epoch, range(step, step + 1)))
        return self._learn(loaded)

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
        """Detach from the model's parameters, and end the threads that sample."""
        self._reducer.close()
        self._pipeline.close()

    def _tasks(self, epoch: int, steps: range) -> Iterator[SeedTask]:
        for step in steps:
            yield SeedTask(seeds=self._order.seeds(epoch, step), epoch=epoch, step=step)

    def _learn(self, loaded: LoadedMinibatch) -> float:
        """Take a step on a minibatch; the loss summed over this rank's seeds. Collective."""
        epoch, step, seeds = loaded.task.epoch, loaded.task.step, loaded.task.seeds
        self._reducer.start()
        loss_value = 0.0
        if len(seeds) > 0:
            with self.stopwatch.measure("forward"):
                dropout = DropoutContext(
                    seed=self._seed,
                    epoch=epoch,
                    step=step,
                    row_ids=self.graph.original_ids[loaded.input_ids].to(self._device),
                )
                logits = self.model(loaded.minibatch.blocks, loaded.rows, dropout)
                loss = loss_sum(self.graph.task, logits, self.graph.labels[seeds].to(self._device))
                loss_value = loss.item()
            with self.stopwatch.measure("backward"):
                (loss / self._order.global_batch_size(epoch, step)).backward()
        with self.stopwatch.measure("wait"):
            self._reducer.finish()
        with self.stopwatch.measure("update"):
            steps = self.steps_per_epoch
            factor = learning_rate_factor(self._options.schedule, epoch * steps + step, self._options.epochs * steps)
            for group in self._optimizer.param_groups:
                group["lr"] = self._options.learning_rate * factor
            self._optimizer.step()
        return loss_value
