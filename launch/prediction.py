"""Predictions of a run's model for the vertices of its graph, by all ranks together, into one file in the user's order.

every rank    outputs of its vertices, as evaluation computes them: exactly, layer by layer, or sampled
all ranks     metrics, as in training
rank 0        receives the outputs in the user's order, a chunk at a time, and writes them

The file is Parquet, and appears whole or not at all::

    vertex: int64    id: string    prediction: int32    probability: float      one row per vertex, in the user's order
    0                anna          3                    0.91
    1                bert          0                    0.55

There is a column of ids where the user's files know vertices by anything else than their numbers. Of a graph with types
these are the vertices of the type that has labels, by their numbers among it. Each chunk is a row group, so that writer
and readers need memory for one at a time.

The graph may be another than the run's, with vertices that came after training. Hidden vectors go to a NumPy array
[N, hidden] instead, row v of vertex v, and of a graph with types one type after another, which `tables.pretrained` of a
recommendation recipe reads.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from windrow.caching.cached_store import CachedStore
from windrow.comm.connect import ending_all_ranks
from windrow.comm.errors import DataError, RecipeError
from windrow.comm.wire import Codec
from windrow.comm.world import World
from windrow.gnn.cache_choice import choose_inference_cache
from windrow.gnn.evaluation import Evaluator, check_types, check_width, measure_split, metrics_of
from windrow.gnn.graph import HAS_COLUMNS
from windrow.gnn.inference import own_vertices, rows_in_users_order, wanted_vertices
from windrow.gnn.metrics import check_finite, prediction_columns
from windrow.gnn.models import GNN
from windrow.gnn.partitioned import PartitionedGraph, Split, open_store, partition, stored_features
from windrow.gnn.readers.edge_list import read_vertex_ids
from windrow.gnn.readers.options import EdgeListOptions
from windrow.gnn.readers.read import fitting, read_graph
from windrow.gnn.readers.typed_folder import columns_of_type
from windrow.gnn.types import GraphTypes
from windrow.gnn.vertex_data import SplitOptions
from windrow.launch.commands.arguments import check_writable, writing
from windrow.launch.rank_process import joined_job
from windrow.launch.recipe import Recipe
from windrow.launch.settings import parse_settings
from windrow.launch.training import gnn_of, rows_of_vertices, without_pretrained
from windrow.partition.atomic_writes import open_atomically
from windrow.partition.store import PartitionStore
from windrow.training.checkpoint import CheckpointHeader, WhichCheckpoint, check_fits, load_together, restore_tables
from windrow.training.embedding import EmbeddingModule
from windrow.training.run_folder import RunFolder
from windrow.training.terminal import Progress, make_progress

if TYPE_CHECKING:
    from windrow.gnn.graph import Task

__all__ = ["Prediction", "arrow_table", "predict"]

CHUNK_BYTES = 1 << 24
"""Outputs that rank 0 receives at a time; it needs about four times as much, besides 32 bytes for each vertex."""

MOST_CHUNK_ROWS = 1 << 20
"""Rows of a row group, the size that Parquet's readers are made for."""

MEASURED: tuple[Split, ...] = ("validation", "test")
"""Splits that are measured where all vertices are predicted: those that training measures."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """What was predicted, and how good it is."""

    out: Path
    """The file."""
    rows: int
    """Of the file."""
    epoch: int
    """Epochs that the model had been trained for."""
    metric: str = ""
    """What was measured, for example "roc_auc"."""
    figures: dict[str, float] = field(default_factory=dict, hash=False)
    """The metric on each split that was measured."""


def predict(
    recipe: Recipe,
    run_folder: RunFolder,
    *,
    out: Path,
    checkpoint: WhichCheckpoint = "best",
    splits: Sequence[Split] = (),
    graph: Path | None = None,
    store: Path | None = None,
    hidden: bool = False,
) -> Prediction:
    """Predict with a trained model. Collective: every process that the launcher started calls it.

    Args:
        recipe: that of the run, whose section [evaluation] says by which neighbours; its store may be another one of
            the same graph, with another number of parts, which is the number of processes; must agree, as all else.
        run_folder: of the run.
        out: the Parquet file to write, or to replace; the .npy file where it is for hidden vectors.
        checkpoint: whose weights: those of the best epoch on the validation split, or the last.
        splits: whose vertices to predict; none: all vertices.
        graph: file of another graph than the run's, read by the run's options and split among the ranks in memory.
        store: store of another graph than the run's.
        hidden: write the last hidden vectors, of all vertices, instead of predictions.

    Returns:
        The same on every rank.

    Raises:
        RecipeError: pyarrow is not installed, the model has no hidden vectors, or has learnt rows of vertices, which
            another graph has not.
        StoreError: the store or the checkpoint is missing, damaged, or of another graph or model; or the file cannot
            be written.
        DataError: a split has no vertices, or outputs are NaN or infinite.

    Memory: each rank holds its part as in training, and the outputs of its vertices; exact inference besides the rows
    of its vertices between two layers, twice. Rank 0 receives outputs in pieces of 16 MiB. Measuring a split takes the
    outputs of its vertices on every rank.
    """
    with ending_all_ranks():
        check_writable(out, parquet=not hidden)
        if recipe.model.embedding and (graph or store):
            raise RecipeError(
                f"{graph or store}: the model has rows that were learnt of the vertices of its own graph "
                "(model.embedding = true), and none of others: leave out --graph and --store"
            )
    with joined_job(recipe.run) as (world, device), make_progress(rank=world.rank) as progress:
        opened = _open_graph(world, recipe, graph, store, measured=bool(splits))
        part, predicted = opened.graph, opened.predicted
        measured = splits or (() if graph or store or hidden else MEASURED)
        metrics = metrics_of(recipe.evaluation, part) if measured else {}
        first, last = 0, part.num_vertices
        if part.types is not None and predicted and not hidden:
            first, last = part.types.range_of(predicted)
        ids = _ids_of(part, splits, first, last)
        names = None if world.rank or hidden else _users_ids(opened.columns, last - first, say=progress.write)
        model = gnn_of(recipe, part, opened.types).to(device)
        embedding = rows_of_vertices(world, without_pretrained(recipe), part, device)

        def check(header: CheckpointHeader) -> None:
            asked = {**header.recipe, "model": recipe.decisive_settings()["model"]}
            check_fits(header, recipe=asked, data_fingerprint=opened.fingerprint, data="graph")

        loaded = load_together(world, run_folder.checkpoint_folder, check, checkpoint, weights_only=True)
        model.load_state_dict(loaded.state)
        if embedding is not None:
            restore_tables(loaded, embedding.local_tables(), weights_only=True)
            embedding.refresh_copies()
        own_ids = own_vertices(part, ids)
        outputs = _infer(world, recipe, part, model, embedding, progress, ids=ids, hidden=hidden)
        metric = next(iter(metrics), "")
        figures: dict[str, float] = {}
        for split in measured:
            if len(of_split := part.split_ids(split)):
                rows = outputs[torch.searchsorted(own_ids, own_vertices(part, of_split))]
                figures[split] = measure_split(world, part, metrics, of_split, rows)[metric]
        wanted = wanted_vertices(part, ids)
        result = Prediction(out=out, rows=len(wanted), epoch=loaded.header.epoch, metric=metric, figures=figures)
        about = {
            "run": recipe.name,
            "epoch": result.epoch,
            "method": recipe.evaluation.method,
            "fanouts": list(_fanouts(recipe)) if recipe.evaluation.method == "sampled" else None,
            "splits": list(splits) or None,
            **({"type": predicted} if predicted and not hidden else {}),
            **({metric: result.figures} if measured else {}),
            **({"graph": str(graph or store)} if graph or store else {}),
        }
        chunk_rows = min(max(1, CHUNK_BYTES // (4 * outputs.shape[1])), MOST_CHUNK_ROWS)
        chunks = rows_in_users_order(world, part, wanted, own_ids, outputs, chunk_rows=chunk_rows)
        file = _vector_file(out, outputs, result.rows) if hidden else _table_file(out, part, outputs, names, about)
        with contextlib.ExitStack() as stack:
            write = stack.enter_context(file) if world.rank == 0 else None
            progress.start("writing", result.rows)
            for vertices, received in chunks:
                if write is not None:
                    check_finite(vertices - first, received)
                    write(vertices - first, received)
                progress.advance(len(vertices))
            progress.finish()
        return result


def _fanouts(recipe: Recipe) -> tuple[int, ...]:
    return recipe.evaluation.fanouts or recipe.sampler.fanouts


def _infer(
    world: World,
    recipe: Recipe,
    part: PartitionedGraph,
    model: GNN,
    embedding: EmbeddingModule | None,
    progress: Progress,
    *,
    ids: Tensor | None,
    hidden: bool,
) -> Tensor:
    """Outputs of this rank's vertices, ascending, on the CPU. Collective."""
    store = None
    if recipe.evaluation.method == "sampled":
        batch_size = recipe.evaluation.batch_size
        part, shared = part.shared_with(world, Codec(), torch.device("cpu"), recipe.cache)
        cached_ids = choose_inference_cache(
            world, part, ids, recipe.cache, fanouts=_fanouts(recipe), batch_size=batch_size, shared=shared
        )
        store = CachedStore(world, part.offsets, part.features, cached_ids=cached_ids, stage="features", shared=shared)
    evaluator = Evaluator(
        world,
        part,
        model,
        {},
        recipe.evaluation,
        fanouts=recipe.sampler.fanouts,
        seed=recipe.run.seed,
        pipeline=recipe.pipeline,
        store=store,
        embedding=embedding,
    )
    outputs = evaluator.infer(ids, hidden=hidden, progress=progress.report).cpu()
    progress.finish()
    return outputs


def _ids_of(part: PartitionedGraph, splits: Sequence[Split], first: int, last: int) -> Tensor | None:
    """Ids of the partition, ascending: of some splits, or all of the user's ids from the first to before the last.

    None for all vertices.
    """
    if not splits:
        is_all = last - first == part.num_vertices
        return None if is_all else torch.from_numpy(np.sort(part.book.old_to_new[first:last]))
    for split in splits:
        if len(part.split_ids(split)) == 0:
            raise DataError(f"the graph has no {split} vertices: choose another --split")
    ids: Tensor = torch.cat([part.split_ids(split) for split in splits]).unique()
    return ids


class _Opened(NamedTuple):
    """A graph to predict."""

    graph: PartitionedGraph
    """What labels mean is what they mean to the run's model."""
    fingerprint: str
    """Of the run's own graph."""
    columns: EdgeListOptions
    """Of the files that the graph was read from."""
    types: GraphTypes | None
    """Those of the run's own graph, which the model has weights for."""
    predicted: str | None
    """Type of the vertices that had labels; None: there are no types."""


def _open_graph(world: World, recipe: Recipe, file: Path | None, store: Path | None, *, measured: bool) -> _Opened:
    """Open the graph to predict. Collective."""
    trained = PartitionStore.open(recipe.store, verify=False)
    own = PartitionedGraph.open(recipe.store, rank=0, size=trained.manifest.num_parts, read_features=False)
    known, predicted = own.types, own.labelled_type
    task, num_classes = cast("Task", trained.metadata["task"]), int(trained.metadata["num_classes"])
    path, columns, own_scaling, trained_scaling = recipe.graph.path, recipe.graph.edge_list, None, _scaling_of(trained)
    if store is not None:
        graph = open_store(store, world)
        opened = PartitionStore.open(store, verify=False)
        path, origin = opened.metadata["graph"].get("path", ""), opened.metadata["graph"].get("edge_list", {})
        columns = parse_settings(EdgeListOptions, origin, source=str(store), base=store)
        own_scaling = _scaling_of(opened)
    elif file is not None:
        # A split would be drawn where there are labels, whatever there is of each class.
        changes: dict[str, Any] = {"random_split": SplitOptions(kind="fractions")}
        changes["format"] = recipe.graph.format if file.suffix == Path(recipe.graph.path).suffix else "auto"
        changes["task"] = task if measured else recipe.graph.task
        if recipe.graph.standardise == "standard":
            changes["standardise"] = "none"
        path = str(file)
        graph = partition(read_graph(fitting(replace(recipe.graph, path=path, **changes))), world)
    else:
        graph, trained_scaling = open_store(recipe.store, world), None
    check_width(graph, stored_features(trained, 0).shape[1])
    check_types(graph.types, known)
    if graph.labelled_type not in (None, predicted):
        raise DataError(
            f"vertices of type {graph.labelled_type!r} have labels, but the model was trained on those of type "
            f"{predicted!r}: label these, or none"
        )
    # The model knows features by the means and deviations of the graph that it was trained on.
    for scaling, types, back in ((own_scaling, graph.types, True), (trained_scaling, known, False)):
        if scaling is not None:
            graph.scale_features(scaling, types, back=back)
    if predicted is not None and path:
        columns = columns_of_type(Path(path), columns, predicted)
    if measured and graph.labels is not None:
        _check_labels(graph, task, num_classes)
    graph = replace(graph, task=task, num_classes=num_classes)
    if recipe.sampler.storage != "fp32":
        # The model has learnt from features that were rounded so.
        graph = graph.stored_as(recipe.sampler.storage)
    return _Opened(graph, str(trained.metadata["fingerprint"]), columns, known, predicted)


def _check_labels(graph: PartitionedGraph, task: "Task", num_classes: int) -> None:
    """Refuse labels that are none of the run's. Of single ones the largest class may be missing."""
    fits = graph.num_classes == num_classes if task in HAS_COLUMNS else graph.num_classes <= num_classes
    if graph.task != task or not fits:
        raise DataError(
            f"the graph has {graph.num_classes} classes or columns of labels ({graph.task}), but the model was trained "
            f"on {num_classes} ({task}): label it as the run's graph, or leave out --split, which measures"
        )


def _scaling_of(store: PartitionStore) -> Tensor | None:
    """What made the features of a store standard; None: nothing."""
    if "shared/feature_scaling.npy" not in store.manifest.files:
        return None
    return torch.from_numpy(np.array(store.shared("feature_scaling")))


def _users_ids(columns: EdgeListOptions, num_vertices: int, *, say: Callable[[str], None]) -> Any:
    """What the user's files call the vertices, ``pyarrow.Array`` [N]; None: by numbers, or the file is gone."""
    if columns.vertex_file and columns.ids != "rows" and not Path(columns.vertex_file).exists():
        say(
            f"windrow: {columns.vertex_file} is not there any more, so there is no column of its ids: a vertex's "
            "number is its row in it, from 0"
        )
        return None
    ids = read_vertex_ids(columns)
    if ids is not None and len(ids) != num_vertices:
        raise DataError(
            f"{columns.vertex_file} has {len(ids)} rows, but the graph {num_vertices} vertices, so it has changed: put "
            "back the file that the graph was partitioned with"
        )
    return ids


def arrow_table(columns: Mapping[str, Any], about: Mapping[str, Any]) -> Any:
    """A ``pyarrow.Table`` of numbers, or of lists where an array has two dimensions; `about` is in its metadata."""
    import pyarrow as pa

    arrays = {
        name: pa.FixedSizeListArray.from_arrays(values.ravel(), values.shape[1])
        if isinstance(values, np.ndarray) and values.ndim > 1
        else pa.array(values)
        for name, values in columns.items()
    }
    return pa.table(arrays, metadata={"windrow": json.dumps(dict(about))})


@contextlib.contextmanager
def _vector_file(path: Path, outputs: Tensor, rows: int) -> Iterator[Callable[[Tensor, Tensor], object]]:
    """A new NumPy array of float32, to which what is yielded appends a chunk."""
    shape = (rows, outputs.shape[1])
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.float32)), "fortran_order": False, "shape": shape}
    with writing(path, "--out"), open_atomically(path) as file:
        np.lib.format.write_array_header_1_0(file, header)
        yield lambda _, chunk: file.write(chunk.float().contiguous().numpy().data)


@contextlib.contextmanager
def _table_file(
    path: Path, graph: PartitionedGraph, outputs: Tensor, names: Any, about: Mapping[str, Any]
) -> Iterator[Callable[[Tensor, Tensor], object]]:
    """A new Parquet file, `about` in its metadata, to which what is yielded appends a chunk: vertices and their logits.

    `names`, a ``pyarrow.Array`` [N], is what the user's files call the vertices; None for numbers.
    """
    import pyarrow as pa
    from pyarrow import parquet

    def table(vertices: Tensor, logits: Tensor) -> Any:
        known = {} if names is None else {"id": names.take(pa.array(vertices.numpy()))}
        predicted = {name: values.numpy() for name, values in prediction_columns(graph.task, logits).items()}
        return arrow_table({"vertex": vertices.numpy(), **known, **predicted}, about)

    schema = table(torch.empty(0, dtype=torch.int64), outputs[:0]).schema
    with (
        writing(path, "--out"),
        open_atomically(path) as file,
        parquet.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        yield lambda vertices, logits: writer.write_table(table(vertices, logits))
