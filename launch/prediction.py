"""Predictions of a run's model for the vertices of its graph, by all ranks together, into one file in the user's order.

every rank    exact: all its vertices, layer by layer; sampled: those that are asked for, minibatch by minibatch
all ranks     metrics, as in training
rank 0        receives the outputs in the user's order, a chunk at a time, and writes them

The file is Parquet, and appears whole or not at all::

    vertex: int64    id: string    prediction: int32    probability: float      one row per vertex, in the user's order
    0                anna          3                    0.91
    1                bert          0                    0.55

There is a column of ids where the user's files know vertices by anything else than their numbers. Each chunk is a row
group, so that writer and readers need memory for one at a time.

The graph may be another than the run's, with vertices that came after training. Hidden vectors go to a NumPy array
[N, hidden] instead, row v of vertex v, which `tables.pretrained` of a recommendation recipe reads.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from windrow.caching.cached_store import CachedStore
from windrow.comm.connect import ending_all_ranks
from windrow.comm.errors import DataError, RecipeError, StoreError
from windrow.comm.options import PathOption, checked_dataclass
from windrow.comm.world import World
from windrow.gnn.cache_choice import choose_inference_cache
from windrow.gnn.evaluation import check_width, measure_split, metrics_of
from windrow.gnn.inference import (
    exact_chunks,
    infer_exactly,
    infer_sampled,
    own_vertices,
    rows_in_users_order,
    sampled_steps,
    wanted_vertices,
)
from windrow.gnn.models import GNN, build_model
from windrow.gnn.partitioned import PartitionedGraph, Split, open_store, partition
from windrow.gnn.prediction_files import prediction_file, vector_file
from windrow.gnn.readers import read_graph
from windrow.gnn.readers.edge_list import read_vertex_ids
from windrow.gnn.readers.options import EdgeListOptions
from windrow.gnn.sampler import Fanout
from windrow.gnn.vertex_data import SplitOptions, scale_features
from windrow.launch.rank_process import joined_job
from windrow.launch.recipe import Recipe
from windrow.partition.store import PartitionStore
from windrow.training.checkpoint import CheckpointHeader, WhichCheckpoint, load_together
from windrow.training.run_folder import RunFolder
from windrow.training.terminal import Progress, make_progress

if TYPE_CHECKING:
    from windrow.gnn.graph import Task

__all__ = ["PredictionOptions", "PredictionResult", "check_writable", "predict"]

CHUNK_BYTES = 1 << 24
"""Outputs that rank 0 receives at a time; it needs about four times as much, besides 32 bytes for each vertex."""

MOST_CHUNK_ROWS = 1 << 20
"""Rows of a row group, the size that Parquet's readers are made for."""

MEASURED: tuple[Split, ...] = ("validation", "test")
"""Splits that are measured where all vertices are predicted: those that training measures."""


@checked_dataclass
class PredictionOptions:
    """What to predict, with what, and how."""

    out: PathOption
    """The Parquet file to write, or to replace; the .npy file where it is for hidden vectors."""
    checkpoint: WhichCheckpoint = "best"
    """Whose weights: those of the best epoch on the validation split, or the last."""
    method: Literal["exact", "sampled"] = "exact"
    """"exact": all neighbours, layer by layer. "sampled": minibatches, as in training, with `fanouts`."""
    fanouts: tuple[Fanout, ...] = ()
    """Neighbours per hop of "sampled", from the seeds outwards; empty: those of the recipe's evaluation, and where it
    has none, those of training."""
    splits: tuple[Split, ...] = ()
    """Whose vertices to predict; empty: all vertices."""
    graph: Path | None = None
    """File of another graph than the run's, read by the run's options and split among the ranks in memory."""
    store: Path | None = None
    """Store of another graph than the run's."""
    hidden: bool = False
    """Whether to write the last hidden vectors, of all vertices, instead of predictions."""

    def __post_init__(self) -> None:
        """Check what concerns two fields.

        Raises:
            RecipeError: fanouts are given to a method that has none, or two options contradict each other.
        """
        if self.graph is not None and self.store is not None:
            raise RecipeError(f"--graph {self.graph} with --store {self.store}: give one of them")
        if self.hidden and (self.method == "sampled" or self.splits):
            raise RecipeError(
                "--hidden writes the vectors of all vertices, from all neighbours: leave out --method and --split"
            )
        if self.hidden and self.out.suffix != ".npy":
            raise RecipeError(f"--out {self.out}: hidden vectors are written as a NumPy array; name a .npy file")
        if self.fanouts and self.method != "sampled":
            raise RecipeError(
                f"--fanouts {','.join(map(str, self.fanouts))} with --method {self.method}, which takes all "
                "neighbours: add --method sampled, or leave out --fanouts"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictionResult:
    """What was predicted, and how good it is."""

    out: Path
    """The file."""
    num_vertices: int
    """Rows of it."""
    epoch: int
    """Epochs that the model had been trained for."""
    metric: str
    """What was measured, for example "roc_auc"."""
    figures: dict[str, float] = field(hash=False)
    """The metric on each split that was measured."""
    inference_seconds: float
    """Of the slowest rank, for the outputs alone."""
    writing_seconds: float
    """Bringing them together and writing them."""


def predict(recipe: Recipe, run_folder: RunFolder, options: PredictionOptions) -> PredictionResult:
    """Predict with a trained model. Collective: every process that the launcher started calls it.

    Args:
        recipe: that of the run; its store may be another one of the same graph, with another number of parts, which
            is the number of processes; must agree.
        run_folder: of the run; must agree.
        options: what and how; must agree.

    Returns:
        The same on every rank.

    Raises:
        RecipeError: pyarrow is not installed, or the fanouts do not fit the model.
        StoreError: the store or the checkpoint is missing, damaged, or of another graph or model; or the file cannot
            be written.
        DataError: a split has no vertices, or outputs are NaN or infinite.

    Memory: each rank holds its part as in training, and the outputs of its vertices; "exact" besides the rows of its
    vertices between two layers, twice. Rank 0 receives outputs in pieces of 16 MiB. Measuring a split takes the outputs
    of its vertices on every rank.
    """
    with ending_all_ranks():
        check_writable(options.out, parquet=not options.hidden)
    with joined_job(recipe.run) as (world, device), make_progress(rank=world.rank) as progress:
        predictor = _Predictor(world, recipe, options, device, progress)
        epoch = predictor.load(run_folder)
        world.barrier(stage="ready")
        started = time.perf_counter()
        own_ids, outputs = predictor.infer()
        inference_seconds = _slowest(world, time.perf_counter() - started)
        figures = predictor.measure(own_ids, outputs)
        started = time.perf_counter()
        num_vertices = predictor.write(own_ids, outputs, epoch, figures)
        return PredictionResult(
            out=options.out,
            num_vertices=num_vertices,
            epoch=epoch,
            metric=predictor.metric,
            figures=dict(figures),
            inference_seconds=inference_seconds,
            writing_seconds=_slowest(world, time.perf_counter() - started),
        )


class _Predictor:
    """A trained model and its graph on one rank."""

    def __init__(
        self, world: World, recipe: Recipe, options: PredictionOptions, device: torch.device, progress: Progress
    ) -> None:
        self._world = world
        self._recipe = recipe
        self._options = options
        self._progress = progress
        graph, self._fingerprint, columns = _open_graph(world, recipe, options)
        # The model has learnt from features that were rounded so.
        self._graph = graph if recipe.sampler.storage == "fp32" else graph.stored_as(recipe.sampler.storage)
        self._other = options.graph or options.store
        self._measured = options.splits or (() if self._other or options.hidden else MEASURED)
        self._metrics = metrics_of(recipe.evaluation, graph) if self._measured else {}
        self.metric = next(iter(self._metrics), "")
        self._ids = self._wanted_ids()
        self._names: Any = None
        if world.rank == 0 and not options.hidden:
            self._names = _users_ids(columns, graph.num_vertices, say=progress.write)
        self._fanouts = options.fanouts or recipe.evaluation.fanouts or recipe.sampler.fanouts
        if len(self._fanouts) != recipe.model.num_layers:
            raise RecipeError(
                f"--fanouts {','.join(map(str, self._fanouts))} has {len(self._fanouts)} hops, but the model has "
                f"{recipe.model.num_layers} layers: give one fanout for each layer"
            )
        self._model: GNN = build_model(
            recipe.model, in_features=graph.features.shape[1], out_features=graph.num_outputs, seed=recipe.run.seed
        ).to(device)
        self._model.eval()

    def load(self, run_folder: RunFolder) -> int:
        """Take over the weights; the epochs that they were trained for. Collective."""

        def check(header: CheckpointHeader) -> None:
            if header.recipe.get("model") != self._recipe.decisive_settings()["model"]:
                raise StoreError(
                    f"{run_folder.path} holds another model than the recipe describes: leave its section [model] as "
                    "recipe.toml in the run folder has it"
                )
            if header.data_fingerprint != self._fingerprint:
                raise StoreError(
                    f"{self._recipe.store} holds another graph than the run was trained on: its fingerprint is "
                    f"{self._fingerprint[:12]}, and that of the run's graph {header.data_fingerprint[:12]}. Partition "
                    "the run's graph again, or name its store by --set store=..."
                )

        found = load_together(self._world, run_folder.checkpoint_folder, check, self._options.checkpoint)
        for message in found.damaged:
            self._progress.write(f"windrow: skipped a damaged checkpoint: {message}")
        self._model.load_state_dict(found.state["trainer"]["model"])
        return found.header.epoch

    def infer(self) -> tuple[Tensor, Tensor]:
        """This rank's vertices, ascending, and their outputs on the CPU. Collective."""
        own_ids = own_vertices(self._graph, self._ids)
        if self._options.method == "sampled":
            return own_ids, self._infer_sampled()
        hidden = self._options.hidden
        with self._shown("layers", exact_chunks(self._graph, self._model, hidden=hidden)):
            outputs = infer_exactly(
                self._world, self._graph, self._model, hidden=hidden, after_chunk=self._progress.advance
            )
        start, _ = self._graph.own_range
        return own_ids, outputs.cpu() if self._ids is None else outputs[own_ids - start].cpu()

    def measure(self, own_ids: Tensor, outputs: Tensor) -> dict[str, float]:
        """The metric on the splits, as training measures it. Collective."""
        figures: dict[str, float] = {}
        for split in self._measured:
            own = own_vertices(self._graph, self._graph.split_ids(split))
            if len(self._graph.split_ids(split)) > 0:
                logits = outputs[torch.searchsorted(own_ids, own)]
                figures |= {split: measure_split(self._world, self._graph, self._metrics, own, logits)[self.metric]}
        return figures

    def write(self, own_ids: Tensor, outputs: Tensor, epoch: int, figures: dict[str, float]) -> int:
        """Bring the outputs together and write them; how many there are. Collective."""
        wanted = wanted_vertices(self._graph, self._ids)
        chunk_rows = min(max(1, CHUNK_BYTES // (4 * outputs.shape[1])), MOST_CHUNK_ROWS)
        chunks = rows_in_users_order(self._world, self._graph, wanted, own_ids, outputs, chunk_rows=chunk_rows)
        with contextlib.ExitStack() as stack:
            write: Callable[[Tensor, Tensor], None] | None = None
            if self._world.rank == 0:
                about = {
                    "run": self._recipe.name,
                    "epoch": epoch,
                    "method": self._options.method,
                    "fanouts": list(self._fanouts) if self._options.method == "sampled" else None,
                    "splits": list(self._options.splits) or None,
                    **({self.metric: figures} if self._measured else {}),
                    **({"graph": str(self._other)} if self._other else {}),
                }
                out, graph = self._options.out, self._graph
                file = (
                    vector_file(out, (len(wanted), outputs.shape[1]))
                    if self._options.hidden
                    else prediction_file(out, graph.task, graph.num_outputs, about, ids=self._names)
                )
                write = stack.enter_context(file)
            stack.enter_context(self._shown("writing", len(wanted)))
            for vertices, rows in chunks:
                if write is not None:
                    write(vertices, rows)
                self._progress.advance(len(vertices))
        return len(wanted)

    def _infer_sampled(self) -> Tensor:
        graph, batch_size = self._graph, self._recipe.evaluation.batch_size
        sampler = graph.sampler(self._fanouts, self._model, seed=self._recipe.run.seed)
        cached_ids = choose_inference_cache(
            self._world, graph, self._ids, self._recipe.cache, fanouts=self._fanouts, batch_size=batch_size
        )
        store = CachedStore(self._world, graph.offsets, graph.features, cached_ids=cached_ids, stage="features")
        with self._shown("minibatches", sampled_steps(graph, self._ids, batch_size)):
            return infer_sampled(
                self._world,
                graph,
                self._model,
                self._ids,
                sampler=sampler,
                store=store,
                options=self._recipe.pipeline,
                batch_size=batch_size,
                after_step=self._progress.advance,
            )

    def _wanted_ids(self) -> Tensor | None:
        """Ids of the partition, ascending; None for all vertices."""
        if not self._options.splits:
            return None
        for split in self._options.splits:
            if len(self._graph.split_ids(split)) == 0:
                raise DataError(f"the graph has no {split} vertices: choose another --split")
        ids: Tensor = torch.cat([self._graph.split_ids(split) for split in self._options.splits]).unique()
        return ids

    @contextlib.contextmanager
    def _shown(self, what: str, total: int) -> Iterator[None]:
        """Show the progress of a piece of work."""
        self._progress.start(what, total)
        yield
        self._progress.finish()


def _open_graph(
    world: World, recipe: Recipe, options: PredictionOptions
) -> tuple[PartitionedGraph, str, EdgeListOptions]:
    """The graph to predict, the fingerprint of the run's own, and the columns of the files that it was read from.

    Collective. What labels mean is what they mean to the run's model.

    Raises:
        StoreError: a store is missing, damaged or has another number of parts.
        DataError: the graph cannot be read, or has another number of features, other labels or none.
    """
    if options.graph is None and options.store is None:
        graph = PartitionedGraph.open(recipe.store, rank=world.rank, size=world.size)
        return graph, graph.fingerprint, recipe.graph.edge_list
    trained = PartitionStore.open(recipe.store, verify=False)
    columns, own_scaling = recipe.graph.edge_list, None
    if options.store is not None:
        graph = open_store(options.store, world)
        columns, own_scaling = _columns_of(options.store), _scaling_of(PartitionStore.open(options.store, verify=False))
    else:
        # A split would be drawn where there are labels, whatever there is of each class.
        changes: dict[str, Any] = {"format": "auto", "random_split": SplitOptions(kind="fractions")}
        if recipe.graph.standardise == "standard":
            changes["standardise"] = "none"
        graph = partition(read_graph(replace(recipe.graph, path=str(options.graph), **changes)), world)
    check_width(graph, trained.sharded("features", 0).shape[1])
    # The model knows features by the means and deviations of the graph that it was trained on.
    for scaling, back in ((own_scaling, True), (_scaling_of(trained), False)):
        if scaling is not None:
            scale_features(graph.features, scaling, back=back)
    task, num_classes = cast("Task", trained.metadata["task"]), int(trained.metadata["num_classes"])
    if options.splits and graph.labels is not None and (graph.task != task or graph.num_classes > num_classes):
        raise DataError(
            f"the graph has {graph.num_classes} classes ({graph.task}), but the model was trained on {num_classes} "
            f"({task}): label it as the run's graph, or leave out --split, which measures"
        )
    return replace(graph, task=task, num_classes=num_classes), str(trained.metadata["fingerprint"]), columns


def _scaling_of(store: PartitionStore) -> Tensor | None:
    """What made the features of a store standard; None: nothing."""
    if "shared/feature_scaling.npy" not in store.manifest.files:
        return None
    return torch.from_numpy(np.array(store.shared("feature_scaling")))


def _columns_of(store: Path) -> EdgeListOptions:
    """The columns of the files that the graph of a store was read from; the defaults where it was made in memory."""
    origin: dict[str, Any] = PartitionStore.open(store, verify=False).metadata["graph"].get("edge_list", {})
    # JSON has lists for tuples.
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in origin.items()
    }
    return EdgeListOptions(**fields)


def _slowest(world: World, seconds: float) -> float:
    return float(world.all_reduce(torch.tensor(seconds, dtype=torch.float64), stage="seconds", op="max"))


def check_writable(path: Path, *, parquet: bool = True) -> None:
    """Refuse a file of predictions that could not be written, before hours are spent on what belongs into it.

    Args:
        path: of the file.
        parquet: whether it is of that format.

    Raises:
        RecipeError: pyarrow is not installed.
        StoreError: the path is a folder, or its folder is not there.
    """
    if parquet and find_spec("pyarrow") is None:
        raise RecipeError(
            "predictions are written with pyarrow, which is not installed: pip install 'windrow[parquet]'"
        )
    if path.is_dir():
        raise StoreError(f"--out {path} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise StoreError(f"--out {path}: there is no folder {path.parent}: make it, or choose another --out")


def _users_ids(columns: EdgeListOptions, num_vertices: int, *, say: Callable[[str], None]) -> Any:
    """What the user's files call the vertices, ``pyarrow.Array`` [N]; None: by numbers, or the file is gone.

    Raises:
        DataError: the file has changed since the graph was read.
    """
    if columns.ids == "rows" or not columns.vertex_file:
        return None
    if not Path(columns.vertex_file).exists():
        say(
            f"windrow: {columns.vertex_file} is not there any more, so there is no column of its ids: a vertex's "
            "number is its row in it, from 0"
        )
        return None
    ids = read_vertex_ids(columns)
    if len(ids) != num_vertices:
        raise DataError(
            f"{columns.vertex_file} has {len(ids)} rows, but the graph {num_vertices} vertices, so it has changed: put "
            "back the file that the graph was partitioned with"
        )
    return ids
