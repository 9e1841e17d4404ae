"""Measure a model on the validation and test vertices, all ranks together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from windrow.caching.cached_store import CachedStore
from windrow.comm.errors import DataError, RecipeError
from windrow.comm.options import PositiveInt, checked_dataclass
from windrow.comm.world import World
from windrow.gnn.inference import Report, gather_predictions, infer_exactly, infer_sampled, own_vertices
from windrow.gnn.metrics import METRICS_OF, check_labels_can_be_scored, evaluate_predictions
from windrow.gnn.models import GNN
from windrow.gnn.partitioned import PartitionedGraph, Split
from windrow.gnn.pipeline import PipelineOptions
from windrow.gnn.sampler import Fanout
from windrow.gnn.types import GraphTypes, edge_type_text
from windrow.training.embedding import EmbeddingModule
from windrow.training.task import EvaluationTimes, Metric, Metrics, measured

__all__ = [
    "EvaluationOptions",
    "Evaluator",
    "check_layers",
    "check_splits",
    "check_width",
    "measure_split",
    "measure_splits",
    "metrics_of",
    "predictions_of",
    "rows_of",
]


@checked_dataclass
class EvaluationOptions(EvaluationTimes):
    """How and when a model is measured."""

    metric: Literal["auto", "accuracy", "macro_f1", "micro_f1", "roc_auc", "rmse", "mae", "r2"] = "auto"
    """"auto": ROC-AUC for binary and multi-label tasks, accuracy for single-label ones, RMSE for regression, which has
    the last three."""

    method: Literal["exact", "sampled"] = "exact"
    """"exact": all neighbours, layer by layer. "sampled": minibatches, as in training, with `fanouts`."""

    fanouts: tuple[Fanout, ...] = ()
    """Neighbours per hop of "sampled" evaluation, from the seeds outwards; empty: those of training."""

    batch_size: PositiveInt = 4096
    """Seeds per step of "sampled" evaluation, over all ranks."""


def check_layers(model: nn.Module, fanouts: Sequence[int], name: str) -> None:
    """Refuse fanouts that do not fit a `GNN`; other modules take any: RecipeError with the option's name."""
    if isinstance(model, GNN) and len(fanouts) != model.options.num_layers:
        raise RecipeError(
            f"{name} has {len(fanouts)} hops but the model has {model.options.num_layers} layers: give one fanout per "
            "layer"
        )


def check_width(graph: PartitionedGraph, num_features: int) -> None:
    """Refuse a graph that a model with so many inputs cannot be run on: DataError."""
    if graph.num_features != num_features:
        raise DataError(
            f"the graph has {graph.num_features} features for each vertex, but the model was trained with "
            f"{num_features}: give the same features, in the same order"
        )


def check_types(found: GraphTypes | None, known: GraphTypes | None) -> None:
    """Refuse a graph of other types than those, if any, of the graph that a model was trained on: DataError.

    Their order does not matter, and types of edges may be missing.
    """
    if found is None or known is None:
        if found is not known:
            has, had = ("no types", "has") if found is None else ("types", "has none")
            raise DataError(
                f"the graph has {has}, but the one that the model was trained on {had}: give one of its kind"
            )
        return
    columns = [{name: one.columns for name, one in types.vertices.items()} for types in (known, found)]
    if columns[0] != columns[1]:
        raise DataError(
            f"the graph has vertices of these types and columns of features: {columns[1]}, but the model was trained "
            f"on {columns[0]}: give the same, in the same order of columns"
        )
    unknown = [edge_type_text(edge) for edge in found.edges if edge not in known.edges]
    if unknown:
        raise DataError(
            f"the model has no weights for edges {', '.join(unknown)}: it was trained on "
            f"{', '.join(map(edge_type_text, known.edges))}"
        )


def check_splits(splits: Sequence[str]) -> None:
    """Refuse names that are none of a split: RecipeError."""
    for split in splits:
        if split not in get_args(Split):
            raise RecipeError(f"there is no split {split!r}: choose from {', '.join(get_args(Split))}")


@dataclass(eq=False)
class Evaluator:
    """Measures a model on one partitioned graph. All ranks make the same one.

    Raises:
        RecipeError: the number of fanouts is not usable, or the model cannot be run layer by layer.
    """

    world: World
    graph: PartitionedGraph
    """This rank's view."""
    model: nn.Module
    """Equal weights on all ranks; it is left in evaluation mode."""
    metrics: Metrics
    """By name, see `metrics_of`; none where the evaluator only infers."""
    options: EvaluationOptions | None = None
    """How to measure. None: exactly for a `GNN`, else sampled."""
    _: KW_ONLY
    fanouts: Sequence[int]
    """Those of training, for "sampled" evaluation that names none."""
    seed: int
    """The run's seed; what is sampled is the same at every evaluation."""
    pipeline: PipelineOptions = field(default_factory=PipelineOptions)
    """How far ahead the minibatches of "sampled" evaluation are made; must agree."""
    store: CachedStore | None = None
    """Where these find features, if it brings rows of other ranks as they are; None for a store of their own, which
    keeps none of them."""
    embedding: EmbeddingModule | None = None
    """Rows of vertices that were learnt, which the model takes behind the features."""

    def __post_init__(self) -> None:
        is_gnn = isinstance(self.model, GNN)
        self._options = options = self.options or EvaluationOptions(method="exact" if is_gnn else "sampled")
        if options.method == "exact" and not is_gnn:
            raise RecipeError(
                f'evaluation.method = "exact" runs a GNN layer by layer, which {type(self.model).__name__} is not: '
                'choose "sampled", with fanouts of -1 to take all neighbours'
            )
        fanouts = options.fanouts or self.fanouts
        check_layers(self.model, fanouts, "evaluation.fanouts")
        self.pipeline.check_types(self.graph.types)
        if options.method == "sampled":
            together = self.pipeline.sampling_world(self.world)
            # It may sample while minibatches of training are under way.
            stage = "evaluation: neighbours"
            self._sampler = self.graph.sampler(fanouts, self.model, seed=self.seed, world=together, stage=stage)

    @property
    def reads_store(self) -> bool:
        """Whether it finds features in the store that it was given."""
        return self._options.method == "sampled" and self.store is not None

    @torch.no_grad()
    def evaluate(self, splits: Sequence[str] = ("validation", "test")) -> dict[str, dict[str, float]]:
        """Measure the model on some splits: RecipeError where there is no such. Collective.

        Returns:
            For each split that has vertices the metrics over all ranks, the same on every rank.
        """
        check_splits(splits)
        outputs = self.infer
        if self._options.method == "exact":
            outputs = partial(rows_of, self.graph, self.infer())
        return measure_splits(self.world, self.graph, self.metrics, splits, outputs)

    @torch.no_grad()
    def infer(self, ids: Tensor | None = None, *, hidden: bool = False, progress: Report = lambda *_: None) -> Tensor:
        """Outputs of this rank's vertices among these, ids of the partition; None: of all. Collective.

        `progress` is called with a stage name and the share done, 0 to 1.

        Raises:
            RecipeError: `hidden` rows are wanted, see `infer_exactly`, of a model that is not run layer by layer.
        """
        self.model.eval()
        if isinstance(self.model, GNN) and self._options.method == "exact":
            rows = infer_exactly(
                self.world, self.graph, self.model, embedding=self.embedding, hidden=hidden, progress=progress
            )
            return rows if ids is None else rows_of(self.graph, rows, ids)
        if hidden:
            raise RecipeError(
                "hidden vectors are those of a GNN that is evaluated exactly, layer by layer: let a model of your own "
                'return them as outputs, and leave out evaluation.method = "sampled"'
            )
        if self.store is None:
            self.store = CachedStore(self.world, self.graph.offsets, self.graph.features, stage="evaluation")
        return infer_sampled(
            self.world,
            self.graph,
            self.model,
            ids,
            sampler=self._sampler,
            store=self.store,
            options=self.pipeline,
            batch_size=self._options.batch_size,
            embedding=self.embedding,
            progress=progress,
        )


def rows_of(graph: PartitionedGraph, own_rows: Tensor, ids: Tensor | None) -> Tensor:
    """Of the rows of all vertices of this part, those of some ids of the partition, over all parts; None: all."""
    return own_rows[own_vertices(graph, ids) - graph.own_range[0]]


def metrics_of(options: EvaluationOptions, graph: PartitionedGraph) -> Metrics:
    """The built-in metric that the options choose.

    RecipeError where the task has no such metric, DataError where it means nothing for the labels of a split.
    """
    known = METRICS_OF[graph.task]
    name = known[0] if options.metric == "auto" else options.metric
    if name not in known:
        raise RecipeError(f"metric = {name!r} is none of task {graph.task!r}: choose from {', '.join(known)}")
    for split in ("validation", "test"):
        if len(ids := graph.split_ids(split)):
            check_labels_can_be_scored(name, graph.labels_of(ids))
    return {name: partial(evaluate_predictions, name, graph.task)}


def measure_split(
    world: World, graph: PartitionedGraph, metrics: Mapping[str, Metric], ids: Tensor, own_outputs: Tensor
) -> dict[str, float]:
    """Measure predictions for a split over the vertices of all ranks. Collective; the same on every rank.

    `ids` int64 [n] are the split's vertices, ids of the partition, and `own_outputs` [own vertices, outputs] those of
    this rank, in the order of `own_vertices`. Every rank holds the split's outputs of all ranks. Built-in metrics raise
    DataError where labels cannot be scored, or an output is NaN or infinite.
    """
    values = measured(metrics, gather_predictions(world, graph, own_outputs, ids), graph.labels_of(ids))
    # Machines may differ in the last bit, and ranks must agree on when to stop.
    return world.broadcast_object(values, root=0, stage="evaluation")


def measure_splits(
    world: World,
    graph: PartitionedGraph,
    metrics: Mapping[str, Metric],
    splits: Sequence[str],
    outputs: Callable[[Tensor], Tensor],
) -> dict[str, dict[str, float]]:
    """`measure_split` of all splits that have vertices; ``outputs(ids)`` are of those of this part among them."""
    wanted = {split: ids for split in splits if len(ids := graph.split_ids(split))}
    return {split: measure_split(world, graph, metrics, ids, outputs(ids)) for split, ids in wanted.items()}


def predictions_of(
    world: World, graph: PartitionedGraph, outputs: Callable[[Tensor | None], Tensor], split: str | None
) -> Tensor:
    """Outputs of all vertices by the user's id, or of a split in its order, on every rank. Collective.

    ``outputs(ids)`` are those of this rank's vertices among them, as of `Evaluator.infer`.
    """
    check_splits([] if split is None else [split])
    ids = None if split is None else graph.split_ids(split)
    return gather_predictions(world, graph, outputs(ids), ids)
