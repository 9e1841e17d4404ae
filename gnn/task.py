"""Learning about vertices of a partitioned graph: minibatches of seeds, their features, loss and metrics."""

from abc import abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from windrow.caching.cached_store import CachedStore
from windrow.caching.selection import CacheOptions
from windrow.caching.vip import Demand
from windrow.comm.errors import RecipeError
from windrow.comm.meter import Traffic
from windrow.comm.options import PositiveFloat, PositiveInt, checked_dataclass
from windrow.comm.rows import move_rows
from windrow.gnn.cache_choice import CacheChoice, Sampling, choose_cache, seed_order
from windrow.gnn.evaluation import (
    EvaluationOptions,
    Evaluator,
    check_layers,
    check_types,
    check_width,
    metrics_of,
    predictions_of,
)
from windrow.gnn.graph import Task as Labels
from windrow.gnn.metrics import LOWER_IS_BETTER, check_outputs
from windrow.gnn.models import GNN
from windrow.gnn.partitioned import PartitionedGraph, graph_placement
from windrow.gnn.pipeline import LoadedMinibatch, MinibatchPipeline, PipelineOptions, SeedTask
from windrow.gnn.sampler import SamplerOptions
from windrow.training import task as training
from windrow.training.dropout import DropoutContext, run_model
from windrow.training.embedding import EmbeddingModule, check_number_formats
from windrow.training.task import Loss, Metrics, Minibatch, Setup, Task, summed_loss
from windrow.training.terminal import byte_size

__all__ = ["GraphTask", "NodeTask", "TrainingOptions", "VertexTask", "loss_sum"]


@checked_dataclass
class TrainingOptions(training.TrainingOptions):
    """How the weights are learnt, with defaults for graphs."""

    epochs: PositiveInt = 50
    learning_rate: PositiveFloat = 0.003


def loss_sum(task: Labels, logits: Tensor, labels: Tensor) -> Tensor:
    """Add up the loss over vertices; sums of all ranks add up, to be divided by the global batch size.

    Args:
        task: "single-label": cross entropy; "regression": squared error; else binary cross entropy. The mean over the
            columns where labels have any.
        logits: [n, C], or [n] or [n, 1] for "binary"; n may be 0. For "regression" the numbers themselves.
        labels: [n] int64, or [n, C] float for "multi-label" and "regression"; on the device of `logits`.

    Returns:
        Scalar, differentiable in `logits`; 0 for no vertices.

    Raises:
        RecipeError: there are not as many logits as labels.
    """
    if task == "single-label":
        return F.cross_entropy(logits, labels, reduction="sum")
    check_outputs(task, logits, labels)
    # Labels would be rounded to what autocast gives.
    dtype = torch.promote_types(logits.dtype, torch.float32)
    compare = F.mse_loss if task == "regression" else F.binary_cross_entropy_with_logits
    total: Tensor = compare(logits.reshape(labels.shape).to(dtype), labels.to(dtype), reduction="sum")
    return total if task == "binary" else total / labels.shape[1]


class VertexTask(Task[Minibatch]):
    """What all tasks on a partitioned graph share: its features, and rows of its vertices that are learnt.

    `NodeTask` describes the arguments.
    """

    data: ClassVar[Literal["graph", "log"]] = "graph"
    default_options: ClassVar[training.TrainingOptions] = TrainingOptions()
    # The lowest layer has by far the most rows, so that its backward pass takes longest: with buckets of a layer or
    # less, the sums of all layers above it travel meanwhile.
    bucket_bytes: ClassVar[int] = 256 << 10

    def __init__(self, graph: PartitionedGraph, embedding: EmbeddingModule | None) -> None:
        graph.check_inputs(embedding)
        self.graph = graph
        self.fingerprint = graph.fingerprint
        self._embedding = embedding

    def attach(self, setup: Setup) -> None:
        """See `Task.attach`; RecipeError where the model holds tables, which nobody would look up ahead."""
        super().attach(setup)
        if self.embeddings:
            raise RecipeError(
                f"{type(setup.model).__name__} holds embedding tables: give a collection of rows of vertices to the "
                f"task instead, {type(self).__name__}(..., embedding=collection), and the model gets them in x"
            )
        if self._embedding is not None:
            check_number_formats(self._embedding, setup.wire)
            self.embeddings = [self._embedding]

    def choose_metrics(self, own: Metrics | None, evaluation: EvaluationOptions | None) -> Metrics:
        """Those of the user's own, or the one that evaluation options choose; the first is the task's metric.

        Raises as `metrics_of`.
        """
        metrics = own or metrics_of(evaluation or EvaluationOptions(), self.graph)
        self.metric = next(iter(metrics))
        self.higher_is_better = bool(own) or self.metric not in LOWER_IS_BETTER
        return metrics

    def unused_lines(self) -> list[str]:
        """What the graph has and the model does not use, to be said before training."""
        graph, model, lines = self.graph, self.setup.model, []
        if graph.edge_weight is not None and graph.edge_weight_for(model) is None:
            lines.append("the graph has edge weights, which the model does not use (model.edge_weights)")
        if graph.types is not None and isinstance(model, GNN) and not model.options.is_typed:
            lines.append(
                f'the graph has types, which model.kind = "{model.options.kind}" does not tell apart; "rgcn" and '
                '"rgat" do'
            )
        return lines


class GraphTask(VertexTask[LoadedMinibatch]):
    """What tasks on minibatches of a graph share: features of input vertices, fetched ahead, and inference.

    `NodeTask` describes the arguments.
    """

    def __init__(
        self,
        graph: PartitionedGraph,
        fanouts: Sequence[int],
        *,
        evaluation: EvaluationOptions | None,
        cache: CacheOptions | str | None,
        cached_ids: Tensor | None,
        pipeline: PipelineOptions | None,
        embedding: EmbeddingModule | None,
        order: Literal["global", "local"] = "global",
    ) -> None:
        super().__init__(graph, embedding)
        self.holds_sums = embedding is not None
        self._fanouts = tuple(fanouts)
        self._evaluation = evaluation
        self.evaluation_times = evaluation or self.evaluation_times
        self._pipeline_options = pipeline or PipelineOptions()
        self._pipeline_options.check_types(graph.types)
        self._sampler_options = SamplerOptions(fanouts=self._fanouts, order=order)
        policy: Any = cache
        self._cache = CacheOptions(policy=policy) if isinstance(cache, str) else cache or CacheOptions()
        self._choice: CacheChoice | None = None
        self._running: Generator[LoadedMinibatch, None, None] | None = None
        """Minibatches that come next."""
        self._next = self._last = 0
        """Step of the run that the first of them is for, and the one that none is for any more."""
        self._cached_ids = cached_ids

    def start_pipeline(self, metrics: Metrics, demand: Demand | None = None) -> None:
        """Choose what is cached, make the store of features, the threads that sample, and the evaluator. Collective.

        `demand` is what this rank will sample; None: the neighbourhoods of its training vertices. Raises as
        `NodeTask.start` does.
        """
        graph, setup = self.graph, self.setup
        world, model = setup.world, setup.model
        setup.wire.check_vertices(graph.features.dtype, learnt=self._embedding is not None)
        check_layers(model, self._fanouts, "sampler.fanouts")
        codec = setup.wire.vectors_codec(graph.features.dtype)
        codec.check(graph.features)
        graph, shared = graph.shared_with(world, codec, setup.device, self._cache)
        self.graph = graph
        if self._cached_ids is None:
            self._choice = choose_cache(world, graph, self._sampling(), demand=demand, shared=shared)
            self._cached_ids = self._choice.cached_ids
        self._copy_bytes = codec.wire_row_bytes(graph.features.shape[1:], graph.features.dtype)
        self.store = CachedStore(
            world,
            graph.offsets,
            graph.features,
            cached_ids=self._cached_ids,
            codec=codec,
            stage="features",
            device=setup.device,
            shared=shared,
            device_share=self._cache.gpu_share if setup.device.type == "cuda" else 1.0,
        )
        expected = self._choice and self._choice.expected_rows
        everyone = world.all_gather_object((len(self._cached_ids), expected), stage="size of caches")
        self._cached_rows, self._expected_rows = zip(*everyone, strict=True)
        together = self._pipeline_options.sampling_world(world)
        sampler = graph.sampler(self._fanouts, model, seed=setup.seed, world=together)
        self._pipeline = MinibatchPipeline(
            world,
            sampler,
            self.store,
            self._pipeline_options,
            device=setup.device,
            stopwatch=setup.stopwatch,
            embedding=self._embedding,
            window=self._cache.window,
        )
        # What was rounded for the wire alone would make measured figures depend on the number of ranks.
        is_exact = graph.features.dtype != torch.float32 or setup.wire.vectors == "fp32"
        self.evaluator = self._make_evaluator(graph, metrics, self.store if is_exact else None)

    def _sampling(self) -> Sampling:
        setup = self.setup
        return Sampling(
            sampler=self._sampler_options,
            cache=self._cache,
            wire=setup.wire,
            batch_size=setup.options.batch_size,
            epochs=setup.options.epochs,
            seed=setup.seed,
        )

    @abstractmethod
    def seeds(self, epoch: int, step: int) -> SeedTask:
        """What this rank samples in a step."""

    @contextmanager
    def minibatches(self, epoch: int, steps: range) -> Iterator[Iterator[LoadedMinibatch]]:
        """Sampled and fetched ahead, see `windrow.gnn.pipeline`, from one call and one epoch into the next.

        Between them minibatches that come next stay under way: memory for as many as the pipeline is deep. Where
        evaluation reads through the same store, only until it is due; what it finds under way is let go of.
        """
        of_epoch = self.steps_per_epoch
        first = epoch * of_epoch + steps.start
        if self._running is None or self._next != first:
            self._stop()
            last = max(self.setup.options.epochs, epoch + 1)
            if self.evaluator.reads_store:
                every = self.evaluation_times.every_epochs
                last = min(last, (epoch // every + 1) * every)
            self._next, self._last = first, last * of_epoch
            self._running = self._run()
        try:
            with self.setup.world.background_progress():
                yield self._counted(len(steps))
        except BaseException:
            self._stop()
            raise
        if self._next == self._last:
            self._stop()
        if self._next % of_epoch == 0:
            self._pipeline.rest()

    def _run(self) -> Generator[LoadedMinibatch, None, None]:
        numbers = range(self._next, self._last)
        return self._pipeline.run(self.seeds(*divmod(number, self.steps_per_epoch)) for number in numbers)

    def _counted(self, steps: int) -> Iterator[LoadedMinibatch]:
        for _ in range(steps):
            if self._running is None:  # A callback has measured through the same store.
                self._running = self._run()
            minibatch = next(self._running)
            self._next += 1
            yield minibatch

    def _stop(self) -> None:
        """Let go of minibatches that are under way."""
        if self._running is not None:
            self._running.close()
            self._running = None

    def ready_evaluator(self) -> Evaluator:
        """The evaluator, after letting go of minibatches that are under way in the store that it reads."""
        if self.evaluator.reads_store:
            self._stop()
        return self.evaluator

    def settle(self) -> None:
        """See `Task.settle`."""
        self._stop()
        self._pipeline.settle()

    def settings(self) -> dict[str, Any]:
        """See `Task.settings`."""
        features = str(self.graph.features.dtype).removeprefix("torch.")
        return {"fanouts": self._fanouts, "order": self._sampler_options.order, "features": features}

    def forward(self, minibatch: LoadedMinibatch) -> Any:
        """Run the model on a minibatch."""
        setup, task = self.setup, minibatch.task

        def dropout() -> DropoutContext:
            row_ids = torch.empty_like(minibatch.input_ids)
            move_rows(self.graph.original_ids, minibatch.input_ids, row_ids, None)
            row_ids = row_ids.to(setup.device)
            return DropoutContext(seed=setup.seed, epoch=task.epoch, step=task.step, row_ids=row_ids)

        output = run_model(setup.model, minibatch.minibatch.blocks, minibatch.inputs(), dropout=dropout)
        seeds = minibatch.minibatch.blocks[-1].num_dst
        if isinstance(output, Tensor) and len(output) != seeds:
            raise RecipeError(
                f"the model gives {len(output)} rows for {seeds} vertices: it has to walk all {len(self._fanouts)} "
                f"blocks, as many as fanouts = {self._fanouts}, and return a row for each destination of the last one"
            )
        return output

    def predict(
        self, split: str | None = None, *, graph: PartitionedGraph | None = None, hidden: bool = False
    ) -> Tensor:
        """Outputs for all vertices by the user's id, or for those of a split in its order. Collective.

        ``windrow predict`` writes them without holding them all.

        Args:
            split: whose vertices.
            graph: this rank's view of another graph, for example of this one with vertices that came later; None: of
                the one that is learnt from.
            hidden: give the last hidden vector of each vertex instead, that which the outputs of a `GNN` are made of.

        Raises:
            DataError: the other graph has another number of features.
            RecipeError: there is no such split, or the model has no hidden vectors.
        """
        if graph is None:
            evaluator = self.ready_evaluator()
        else:
            check_width(graph, self.graph.num_features)
            check_types(graph.types, self.graph.types)
            if self._embedding is not None:
                raise RecipeError("rows of vertices were learnt for the task's own graph: another one has none")
            evaluator = self._make_evaluator(graph)
        graph = graph or self.graph
        return predictions_of(self.setup.world, graph, partial(evaluator.infer, hidden=hidden), split)

    def _make_evaluator(
        self, graph: PartitionedGraph, metrics: Metrics = MappingProxyType({}), store: CachedStore | None = None
    ) -> Evaluator:
        return Evaluator(
            self.setup.world,
            graph,
            self.setup.model,
            metrics,
            self._evaluation,
            fanouts=self._fanouts,
            seed=self.setup.seed,
            pipeline=self._pipeline_options,
            store=store,
            embedding=self._embedding,
        )

    def opening_lines(self) -> Sequence[str]:
        """What the model does not use of the graph, and what is kept or read of other ranks, where there are any."""
        lines = self.unused_lines()
        near = len(self.store.shared.near) if self.store.shared else 0
        if near:
            lines.append(f"shared memory: features of {near} other rank{'s' * (near > 1)} of this host are read there")
        if self._choice is not None and self.setup.world.size > near + 1:
            kept = max(self._cached_rows)
            size = byte_size(kept * self._copy_bytes)
            line = f"cache: alpha {self._choice.alpha:.3g}, up to {kept:,} rows of other ranks ({size})"
            if None not in self._expected_rows:
                line += f"; all ranks together will ask for about {sum(self._expected_rows):,.0f} more in an epoch"
                if self._cache.window:
                    line += f", or fewer, since it knows {self._cache.window} minibatches ahead"
            lines.append(line)
        return lines

    def traffic(self) -> Traffic:
        """Rows of features, and of an embedding, that this rank exchanged."""
        assert self.setup.world.meter is not None
        return self.setup.world.meter.totals("features: rows") + super().traffic()

    def placement(self) -> dict[str, Any]:
        """The parts of the graph."""
        return graph_placement(self.graph, self._cached_rows, self._copy_bytes)

    def close(self) -> None:
        """End the threads that sample."""
        self._stop()
        self._pipeline.close()


class NodeTask(GraphTask):
    """Labels of vertices, learnt from sampled neighbourhoods (SALIENT++, Kaler et al., MLSys 2023).

    The model is called as ``model(blocks, x)`` with one block for each hop, outermost first, and x float32
    [blocks[0].num_src, features]; it returns [blocks[-1].num_dst, outputs]. A forward method with a parameter
    ``dropout`` gets a `windrow.training.dropout.DropoutContext` there, whose choices do not depend on the number of
    ranks, and None in evaluation; `nn.Dropout` works too, with other choices on another number of ranks.

    Args:
        graph: this rank's view; features in fp32, or as `PartitionedGraph.stored_as` gives them.
        fanouts: neighbours sampled per vertex at each hop, from the seeds outwards; -1 takes all.
        loss: ``loss(output, labels)`` of the seeds of a rank, their mean or one value for each; labels are int64 [n],
            or float [n, C] of a multi-label task or of regression. None: see `loss_sum`.
        metrics: ``metric(output, labels)`` of all vertices of a split, by name; the first one, higher being better,
            chooses the best epoch. None: the one of `evaluation`.
        order: which seeds form a minibatch, see `SamplerOptions`.
        evaluation: how to measure. None: exactly, layer by layer, for a `GNN`; for other models from sampled
            neighbours, with the fanouts of training.
        cache: which rows of other ranks each rank keeps; a policy's name, "vip" say, or None for the defaults.
        cached_ids: int64, ids of vertices of other ranks whose rows this rank keeps, for who chose them already; their
            number may differ between ranks. None: by `cache`.
        pipeline: how far ahead minibatches are sampled and fetched; must agree.
        embedding: rows of vertices that are learnt, whose columns x has behind those of the features: a collection of
            one feature, a `windrow.recsys.EmbeddingCollection` say, with row_ids = graph.original_ids. The plan
            `PartitionedGraph.plan_of_rows` has each row where its vertex is.

    Raises:
        RecipeError: an option is out of range.
        DataError: the graph has no labels.
    """

    def __init__(
        self,
        graph: PartitionedGraph,
        fanouts: Sequence[int] = (15, 10, 5),
        *,
        loss: Loss | None = None,
        metrics: Metrics | None = None,
        order: Literal["global", "local"] = "global",
        evaluation: EvaluationOptions | None = None,
        cache: CacheOptions | str | None = None,
        cached_ids: Tensor | None = None,
        pipeline: PipelineOptions | None = None,
        embedding: EmbeddingModule | None = None,
    ) -> None:
        super().__init__(
            graph,
            fanouts,
            evaluation=evaluation,
            cache=cache,
            cached_ids=cached_ids,
            pipeline=pipeline,
            embedding=embedding,
            order=order,
        )
        graph.labels_of(graph.train_ids[:0])  # Refuses a graph that has none.
        self.samples_per_epoch = len(graph.train_ids)
        self.has_validation = len(graph.validation_ids) > 0
        self.bound_to_ranks = 'sampler.order = "local"' if order == "local" else ""
        self._loss = loss
        self._metrics = metrics

    def start(self) -> None:
        """Choose what is cached, and start the threads that sample. Collective.

        Raises:
            DataError: a rank has no training vertex, a split has no labels to measure on, or a feature is too large for
                the wire's number format.
            RecipeError: the number of fanouts is not the model's number of layers.
        """
        self._seeds = seed_order(self.graph, self.setup.world.rank, self._sampling())
        self.steps_per_epoch = self._seeds.steps_per_epoch
        self.start_pipeline(self.choose_metrics(self._metrics, self._evaluation))

    def seeds(self, epoch: int, step: int) -> SeedTask:
        """Training vertices of this rank."""
        return SeedTask(seeds=self._seeds.seeds(epoch, step), epoch=epoch, step=step)

    def global_batch_size(self, epoch: int, step: int) -> int:
        """Seeds of a step, over all ranks."""
        return self._seeds.global_batch_size(epoch, step)

    def loss(self, minibatch: LoadedMinibatch, epoch: int, step: int) -> Tensor | None:
        """Of this rank's seeds; where it has none in this step, None, or of an embedding a zero."""
        setup, seeds = self.setup, minibatch.task.seeds
        self.round_anew(epoch, step)
        if not len(seeds):
            return minibatch.no_loss()
        with setup.stopwatch.measure("forward"):
            output = self.forward(minibatch)
            labels = self.graph.labels_of(seeds).to(setup.device)
            if self._loss is None:
                return loss_sum(self.graph.task, output, labels)
            return summed_loss(self._loss, output, labels)

    def evaluate(self, splits: Sequence[str] = ("validation", "test")) -> dict[str, dict[str, float]]:
        """Measure on all vertices of each split. Collective."""
        return self.ready_evaluator().evaluate(splits)
