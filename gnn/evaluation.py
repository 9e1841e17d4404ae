"""Measure a model on the validation and test vertices, all ranks together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from windrow.caching.cached_store import CachedStore
from windrow.comm.errors import RecipeError
from windrow.comm.world import World
from windrow.gnn.inference import infer_exactly, infer_sampled, own_vertices
from windrow.gnn.metrics import Metric, check_labels_can_be_scored, default_metric, evaluate_predictions
from windrow.gnn.models import GNN
from windrow.gnn.partitioned import PartitionedGraph, Split
from windrow.gnn.pipeline import PipelineOptions
from windrow.gnn.sampler import NeighborSampler, check_fanouts

__all__ = ["EvaluationOptions", "Evaluator", "measure_split"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationOptions:
    """How and when a model is measured."""

    metric: Literal["auto", "accuracy", "macro_f1", "roc_auc"] = "auto"
    """"auto": ROC-AUC for binary and multi-label tasks, accuracy for single-label ones."""

    method: Literal["exact", "sampled"] = "exact"
    """"exact": all neighbours, layer by layer. "sampled": minibatches, as in training, with `fanouts`."""

    fanouts: tuple[int, ...] = ()
    """Neighbours per hop of "sampled" evaluation, from the seeds outwards; empty: those of training."""

    batch_size: int = 4096
    """Seeds per step of "sampled" evaluation, over all ranks."""

    every_epochs: int = 1
    """Epochs between two evaluations; the last epoch is always evaluated."""

    patience_epochs: int = 0
    """Stop when validation has not improved for this many epochs; 0: never."""

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("every_epochs", 1), ("patience_epochs", 0)):
            if getattr(self, name) < least:
                raise RecipeError(f"evaluation.{name} = {getattr(self, name)}: must be at least {least}")
        check_fanouts("evaluation.fanouts", self.fanouts)


class Evaluator:
    """Measures models on one partitioned graph.

    Args:
        world: all its ranks make the same evaluator.
        graph: this rank's view.
        options: how to measure.
        fanouts: those of training, for "sampled" evaluation that names none.
        seed: the run's seed; what is sampled is the same at every evaluation.
        pipeline: how far ahead the minibatches of "sampled" evaluation are made; must agree.
        store: where these find features, if it brings rows of other ranks as they are; None for a store of their
            own, which keeps none of them.

    Raises:
        DataError: the labels of a split cannot be scored by the metric.
        RecipeError: the number of fanouts is not usable.
    """

    def __init__(
        self,
        world: World,
        graph: PartitionedGraph,
        options: EvaluationOptions,
        *,
        fanouts: Sequence[int],
        seed: int,
        pipeline: PipelineOptions | None = None,
        store: CachedStore | None = None,
    ) -> None:
        self._world = world
        self._graph = graph
        self._options = options
        self.metric: Metric = default_metric(graph.task) if options.metric == "auto" else options.metric
        self._sampler = NeighborSampler(
            graph.indptr,
            graph.indices,
            options.fanouts or fanouts,
            seed=seed,
            original_ids=graph.original_ids,
            source_degrees=True,
        )
        for split in ("validation", "test"):
            ids = graph.split_ids(split)
            if len(ids) > 0:
                check_labels_can_be_scored(self.metric, graph.task, graph.labels[ids])
        self._pipeline = pipeline or PipelineOptions()
        self._store = store

    @torch.no_grad()
    def evaluate(self, model: GNN, splits: Sequence[Split] = ("validation", "test")) -> dict[Split, float]:
        """Measure a model. Collective.

        Args:
            model: equal weights on all ranks; left in evaluation mode.
            splits: which vertices to measure on.

        Returns:
            The metric on each split that has vertices, over all ranks, the same on every rank.
        """
        model.eval()
        wanted = [split for split in splits if len(self._graph.split_ids(split)) > 0]
        exact = infer_exactly(self._world, self._graph, model) if self._options.method == "exact" else None
        start, _ = self._graph.own_range
        values: dict[Split, float] = {}
        for split in wanted:
            ids = self._graph.split_ids(split)
            own = own_vertices(self._graph, ids)
            logits = self._sampled_logits(model, ids) if exact is None else exact[own - start]
            values[split] = measure_split(self._world, self._graph, self.metric, own, logits.cpu())
        return values

    def _sampled_logits(self, model: GNN, ids: Tensor) -> Tensor:
        """Outputs of this rank's vertices of a split."""
        if self._store is None:
            self._store = CachedStore(self._world, self._graph.offsets, self._graph.features, stage="evaluation")
        return infer_sampled(
            self._world,
            self._graph,
            model,
            ids,
            sampler=self._sampler,
            store=self._store,
            options=self._pipeline,
            batch_size=self._options.batch_size,
        )


def measure_split(world: World, graph: PartitionedGraph, metric: Metric, own_ids: Tensor, own_logits: Tensor) -> float:
    """Measure predictions for a split over the vertices of all ranks. Collective; the same on every rank.

    `own_ids` int64 [n] are the split's vertices of this part, ids of the partition, `own_logits` [n, outputs] theirs,
    on the CPU. Every rank holds the split's logits of all ranks.

    Raises:
        DataError: the labels cannot be scored by the metric, or a logit is NaN or infinite.
    """
    all_ids = torch.cat(world.all_gather(own_ids, stage="evaluation ids"))
    all_logits = torch.cat(world.all_gather(own_logits, stage="evaluation logits"))
    value = evaluate_predictions(metric, graph.task, all_logits, graph.labels[all_ids])
    # Machines may differ in the last bit, and ranks must agree on when to stop.
    return world.broadcast_object(value, root=0, stage="evaluation")
