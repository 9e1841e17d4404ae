"""What one rank holds of a partitioned graph: all topology and labels, its own rows of the features.

This is the layout of SALIENT++ (Kaler et al., MLSys 2023): sampling never leaves the rank, and only input
features travel. Ids are those of the partition, in which each part is one contiguous range, so that of the neighbour
lists, which are mapped from disk, a rank may also read one range alone: see `windrow.gnn.remote_lists`.
"""

import contextlib
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from windrow.caching.selection import CacheOptions
from windrow.comm.errors import DataError, RecipeError
from windrow.comm.numpy_files import read_only_tensor
from windrow.comm.shared_memory import SharedRows
from windrow.comm.wire import Codec, StorageName, make_codec
from windrow.comm.world import World
from windrow.gnn.graph import Graph, GraphData, Task
from windrow.gnn.remote_lists import RemoteLists
from windrow.gnn.sampler import NeighborSampler
from windrow.gnn.types import EDGE_ARRAYS, GraphTypes
from windrow.gnn.vertex_data import scale_features
from windrow.partition.book import PartitionBook
from windrow.partition.options import PartitionOptions
from windrow.partition.partitioners import partition_graph
from windrow.partition.store import PartitionStore
from windrow.partition.tables.plan import Plan, Shard
from windrow.training.embedding import EmbeddingModule

__all__ = ["PartitionedGraph", "Split", "graph_placement", "open_store", "partition", "stored_features"]

Split = Literal["train", "validation", "test"]

SHARED_ARRAYS = ("indptr", "indices", "train_ids", "validation_ids", "test_ids")
OPTIONAL_ARRAYS = ("labels", *EDGE_ARRAYS)


@dataclass(frozen=True, kw_only=True)
class PartitionedGraph(GraphData):
    """One rank's view of a partitioned graph. Splits list ids of the partition."""

    book: PartitionBook
    """Which rank owns which ids, and the user's numbering."""
    rank: int
    """The part that this process holds."""
    original_ids: Tensor
    """int64 [N], the user's id of each id of the partition."""
    features: Tensor
    """Floating point [rows of this part, F]; F is 0 where there are none."""
    fingerprint: str
    """Digest of the user's graph, to tell a changed one from the one that a checkpoint was made with."""
    order: Mapping[str, Any] | None = None
    """What the order of vertices inside parts was made for, as the store says; None: it does not, see
    `windrow.gnn.partitioning.vertex_order`."""

    @staticmethod
    def from_graph(graph: Graph, book: PartitionBook, rank: int) -> "PartitionedGraph":
        """Cut one rank's view out of a graph in memory, in the user's order."""
        # All features are not copied for the sake of one part.
        relabelled = replace(graph, features=None).relabel(book)
        features = torch.empty(graph.num_vertices, 0) if graph.features is None else graph.features
        own = torch.from_numpy(book.new_to_old[slice(*book.part_range(rank))])
        return PartitionedGraph(
            book=book,
            rank=rank,
            original_ids=torch.from_numpy(book.new_to_old),
            features=features[own],
            fingerprint=graph.fingerprint(),
            **{field.name: getattr(relabelled, field.name) for field in fields(GraphData)},
        )

    @staticmethod
    def open(path: Path, *, rank: int, size: int, read_features: bool = True) -> "PartitionedGraph":
        """Open one rank's view of a store that `windrow partition` wrote.

        Whole arrays stay on disk and are mapped; this part's features are read into memory.

        Args:
            path: the store's folder.
            rank: the part to hold.
            size: number of ranks; must be the number of parts.
            read_features: False for planning: they are mapped as well, and no checksum is compared.

        Raises:
            StoreError: the store is missing, damaged, of another version, or has another number of parts.
        """
        store = PartitionStore.open(path, expect_parts=size, verify=False)
        if read_features:
            store.verify(part=rank, shared=rank == 0)
        stored = {Path(name).stem for name in store.manifest.files}
        shared: dict[str, Any] = {name: read_only_tensor(store.shared(name)) for name in SHARED_ARRAYS}
        optional: dict[str, Any] = dict.fromkeys(OPTIONAL_ARRAYS)
        optional |= {name: read_only_tensor(store.shared(name)) for name in optional if name in stored}
        features = stored_features(store, rank)
        return PartitionedGraph(
            book=store.book,
            rank=rank,
            features=_read(features) if read_features else read_only_tensor(features),
            original_ids=read_only_tensor(store.book.new_to_old),
            task=cast("Task", store.metadata["task"]),
            num_classes=int(store.metadata["num_classes"]),
            fingerprint=str(store.metadata["fingerprint"]),
            order=store.metadata.get("order"),
            types=GraphTypes.from_json(store.metadata["types"]) if "types" in store.metadata else None,
            **shared,
            **optional,
        )

    def stored_as(self, storage: StorageName) -> "PartitionedGraph":
        """The same with features in another number format: DataError where one is too large for it."""
        codec = make_codec(storage)
        codec.check(self.features)
        return replace(self, features=codec.encode(self.features))

    def shared_with(
        self, world: World, codec: Codec, device: torch.device, options: CacheOptions
    ) -> "tuple[PartitionedGraph, SharedRows | None]":
        """Let the ranks of this host read these features in memory, as the codec encodes them. Collective.

        Returns:
            The same graph, its features in that memory if they are exact there: let go of this one. And the rows; None
            where the options do not want them shared, a GPU trains, there is one rank, or there are no features.
        """
        if not options.shared_memory or device.type != "cpu" or world.size == 1 or self.num_features == 0:
            return self, None
        shared = SharedRows(world, codec.encode(self.features), stage="features")
        exact = shared.local.dtype == self.features.dtype
        return replace(self, features=shared.local) if exact else self, shared

    def check_inputs(self, embedding: EmbeddingModule | None = None) -> None:
        """Refuse a graph without features, where no rows of its vertices are learnt either, and rows of others.

        Raises:
            DataError: it has neither.
            RecipeError: there is not one table with a row for each vertex, in the order of the parts.
        """
        if embedding is not None:
            if [spec.rows for spec in embedding.specs] != [self.num_vertices]:
                rows = ", ".join(f"{spec.name} {spec.rows:,}" for spec in embedding.specs)
                raise RecipeError(
                    f"embedding has tables of so many rows: {rows}; expected one of {self.num_vertices:,}, a row for "
                    "each vertex"
                )
            if embedding.row_ids is None or not torch.equal(embedding.row_ids, self.original_ids):
                raise RecipeError(
                    "rows of vertices stand in the order of the parts: make the collection with row_ids = "
                    "graph.original_ids"
                )
        elif self.num_features == 0:
            raise DataError(
                "the graph has no features: a model needs them, or rows of vertices that are learnt (model.embedding = "
                "true; in Python the task's embedding)"
            )

    def plan_of_rows(self, table: str, columns: int) -> Plan:
        """Of a table with a row for each vertex, by ids of the partition: each row where its vertex is."""
        ranges = enumerate(pairwise(self.offsets))
        return Plan(tuple(Shard(table, rank, rows, (0, columns)) for rank, rows in ranges if rows[0] < rows[1]))

    @property
    def labelled_type(self) -> str | None:
        """The type of the vertices whose labels are learnt; None: there are no types, or no labels."""
        learnt = torch.cat([self.train_ids[:1], self.validation_ids[:1], self.test_ids[:1]])
        if self.types is None or not len(learnt):
            return None
        return list(self.types.vertices)[int(self.types.of(self.original_ids[learnt[:1]]))]

    def scale_features(self, scaling: Tensor, types: GraphTypes | None, *, back: bool = False) -> None:
        """`windrow.gnn.vertex_data.scale_features` of this part, each type of vertices by its own row of the scaling.

        `types` are those of the graph that the scaling, [2, F] or [types, 2, F], is of.
        """
        if types is None or self.types is None:
            scale_features(self.features, scaling, back=back)
            return
        kinds = self.types.of(self.original_ids[slice(*self.own_range)])
        for place, name in enumerate(self.types.vertices):
            own = self.features[kinds == place]
            scale_features(own, scaling[list(types.vertices).index(name)], back=back)
            self.features[kinds == place] = own

    def labels_of(self, ids: Tensor) -> Tensor:
        """Labels of vertices, ids of the partition: DataError where the graph has none."""
        if self.labels is None:
            raise DataError("the graph has no labels: add them to its data, or learn its links by a LinkTask")
        return self.labels[ids]

    def edge_weight_for(self, model: nn.Module) -> Tensor | None:
        """The edge weights that a model gets: all models but a `GNN` that was not asked to use them.

        A `GNN` that was asked to is refused where the graph has none, RecipeError, or one is negative, DataError.
        """
        wanted: bool | None = getattr(model, "needs_edge_weights", None)
        if not wanted:
            return self.edge_weight if wanted is None else None
        if self.edge_weight is None:
            raise RecipeError(
                "model.edge_weights = true, but the graph has no edge weights: read them with the graph, or leave out "
                "the option"
            )
        # Other ranks look at theirs.
        start, stop = self.own_range
        if bool((self.edge_weight[slice(*self.indptr[[start, stop]].tolist())] < 0).any()):
            raise DataError("an edge weight is negative: model.edge_weights = true divides by their sums; change them")
        return self.edge_weight

    def sampler(
        self,
        fanouts: Sequence[int],
        model: nn.Module,
        *,
        seed: int,
        world: World | None = None,
        stage: str = "neighbours",
    ) -> NeighborSampler:
        """What samples this graph for a model, with what is known of the edges where the model uses it.

        Args:
            fanouts: see `NeighborSampler`.
            model: of the user, or a `GNN`.
            seed: the run's.
            world: whose ranks sample together, each reading the lists of its own part; then this is collective. None:
                this rank reads all lists.
            stage: name of the traffic between them; must agree.
        """
        # A `GNN` has no use for features of edges.
        of_edges = {
            "edge_weight": self.edge_weight_for(model),
            "edge_attr": None if hasattr(model, "needs_edge_weights") else self.edge_attr,
        }
        remote: RemoteLists | None = None
        if world is not None and world.size > 1:
            assert self.types is None, "pipelines refuse it"
            known = {name: rows for name, rows in of_edges.items() if rows is not None}
            arrays = self.indptr.numpy(), self.indices.numpy(), self.original_ids.numpy()
            remote = RemoteLists(world, self.offsets, *arrays, known, stage=stage)
        return NeighborSampler(
            self.indptr,
            self.indices,
            fanouts,
            seed=seed,
            original_ids=self.original_ids,
            source_degrees=getattr(model, "needs_source_degrees", False),
            **of_edges,
            edge_type=self.edge_type,
            types=self.types,
            splits_by_type=getattr(model, "needs_types", True),
            remote=remote,
        )

    @property
    def offsets(self) -> list[int]:
        """[parts + 1], where each part's ids start."""
        return [int(offset) for offset in self.book.offsets]

    @property
    def own_range(self) -> tuple[int, int]:
        """First id of this part, and the one after its last."""
        return self.book.part_range(self.rank)

    @property
    def num_features(self) -> int:
        """Columns of the features."""
        return self.features.shape[1]

    @property
    def num_outputs(self) -> int:
        """Numbers that a model gives for a vertex: one logit for a binary task, else one per class or column."""
        return 1 if self.task == "binary" else self.num_classes

    def split_ids(self, split: str) -> Tensor:
        """int64 ids of a split, over all parts, in the order in which they were given."""
        ids: Tensor = getattr(self, f"{split}_ids")
        return ids


def graph_placement(graph: PartitionedGraph, cached_rows: Sequence[int], copy_bytes: int) -> dict[str, Any]:
    """What the parts of a graph are, by any rank's view of it, for placement.json.

    Each rank keeps copies of so many `cached_rows` of other ranks, of `copy_bytes` each.
    """
    vertices, edges = np.diff(graph.book.offsets), np.diff(graph.indptr[graph.book.offsets].numpy())
    row_bytes = graph.features.shape[1:].numel() * graph.features.element_size()
    columns = {
        "vertices": vertices,
        "train_vertices": np.bincount(graph.book.owner(graph.train_ids.numpy()), minlength=len(vertices)),
        "edges": edges,
        "feature_bytes": vertices * row_bytes,
        "cached_rows": np.array(cached_rows),
        "cached_bytes": np.array(cached_rows) * copy_bytes,
    }
    ranks = zip(*(column.tolist() for column in columns.values()), strict=True)
    return {"kind": "graph", "ranks": [dict(zip(columns, rank, strict=True)) for rank in ranks]}


def partition(graph: Graph, world: World, options: PartitionOptions | None = None) -> PartitionedGraph:
    """Split a graph in memory among the ranks. Collective.

    Args:
        graph: the same on every rank.
        world: each of its ranks gets a part.
        options: how; the number of parts is that of the ranks. None: METIS, with one search only. Rank 0 splits, and
            others wait: of a graph for which that takes longer than their deadline, see `windrow.connect`, allow more.

    Returns:
        This rank's view. ``windrow partition`` writes a store instead, for graphs that are trained on more than once or
        that a rank's memory cannot hold whole; see `open_store`.

    Raises:
        DataError: there are training vertices, but fewer than ranks.
    """
    options = replace(options or PartitionOptions(restarts=1, refine_cycles=1), num_parts=world.size)
    assignment = world.from_rank_0(lambda: assign_parts(graph, options), stage="partition")
    return PartitionedGraph.from_graph(graph, PartitionBook.from_assignment(assignment, world.size), world.rank)


def assign_parts(graph: Graph, options: PartitionOptions) -> npt.NDArray[np.int32]:
    """Each vertex' part, int32 [N]; see `partition_graph`."""
    return partition_graph(
        graph.indptr.numpy(),
        graph.indices.numpy(),
        options,
        train_ids=graph.train_ids.numpy() if len(graph.train_ids) else None,
        validation_ids=graph.validation_ids.numpy() if len(graph.validation_ids) else None,
    )


def stored_features(store: PartitionStore, part: int) -> npt.NDArray[Any]:
    """Features of a part's vertices, [rows, F], mapped."""
    if any(Path(name).stem == "features" for name in store.manifest.files):
        return store.sharded("features", part)
    start, stop = store.book.part_range(part)
    return np.empty((stop - start, 0), np.float32)


def _read(array: npt.NDArray[Any]) -> Tensor:
    """A copy in memory that goes back to the system with the tensor, where `keep_freed_memory` would keep it."""
    memory = mmap.mmap(-1, max(1, array.nbytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):  # Not every system has them.
        memory.madvise(mmap.MADV_HUGEPAGE)
    copy = np.frombuffer(memory, array.dtype, array.size).reshape(array.shape)
    copy[...] = array
    return torch.from_numpy(copy)


def open_store(path: Path | str, world: World) -> PartitionedGraph:
    """This rank's view of a store that ``windrow partition`` wrote: see `PartitionedGraph.open`."""
    return PartitionedGraph.open(Path(path), rank=world.rank, size=world.size)
