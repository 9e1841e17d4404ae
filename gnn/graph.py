"""A whole graph in memory: topology, features, labels and splits, and the checks that it is valid.

The topology is stored by destination (compressed sparse columns, CSC), because a vertex asks for its sources::

    edges  1 -> 0,  2 -> 0,  0 -> 2            indptr   0  2  2  3
                                               indices  1  2  |  |  0
    vertex 0 hears from 1 and 2, vertex 1 from nobody, vertex 2 from 0

Each rule for a valid graph has one private check; every message names the value, its place and the cure.
"""

import hashlib
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.caching.vip import Samplers, find_samplers
from windrow.comm.errors import DataError
from windrow.gnn.types import EDGE_ARRAYS, GraphTypes, edge_type_text
from windrow.partition.book import PartitionBook
from windrow.partition.graph_kernels import relabel

__all__ = ["HAS_COLUMNS", "Graph", "GraphData", "Task", "describe_numbering", "first_outside", "known_labels"]

Task = Literal["single-label", "binary", "multi-label", "regression"]
"""What is predicted for a vertex: one of many classes, one of two, any subset of the classes, or real numbers."""


@dataclass(frozen=True, kw_only=True)
class GraphData:
    """What a graph in memory and a rank's view of a partitioned one both hold whole; ids are each one's own."""

    indptr: Tensor
    """int64 [N + 1]; the in-neighbours of vertex v are ``indices[indptr[v]:indptr[v + 1]]``."""
    indices: Tensor
    """int32 or int64 [E]; sources of the edges, ascending inside each vertex's list as it was read."""
    labels: Tensor | None
    """int64 [N] for "single-label" and "binary" (-1: unknown), float32 [N, C] of 0 and 1 for "multi-label", float32
    [N, C] for "regression" (NaN: unknown). None: the graph has none, and can be partitioned, sampled and predicted, or
    its links learnt."""
    train_ids: Tensor
    """int64; vertices whose labels are learnt from."""
    validation_ids: Tensor
    """int64; vertices that choose the best epoch."""
    test_ids: Tensor
    """int64; vertices that are only ever measured on."""
    task: Task
    """What the labels mean; of no consequence where there are none."""
    num_classes: int
    """C, for "regression" the numbers of a vertex; 0 where there are no labels."""
    edge_weight: Tensor | None = None
    """float32 [E], in the order of `indices`, or None."""
    edge_attr: Tensor | None = None
    """float32 [E, D], features of edges in the order of `indices`, or None."""
    edge_type: Tensor | None = None
    """int16 [E], type of each edge in the order of `indices`, never falling inside a vertex's list; None: there are no
    types."""
    types: GraphTypes | None = None
    """What these are, and the types of vertices, in the user's numbering; None likewise."""

    @property
    def num_vertices(self) -> int:
        """N."""
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        """E, the number of directed edges; an undirected edge counts twice."""
        return self.indices.numel()

    def samplers(self) -> Samplers:
        """In whose lists each vertex stands: see `find_samplers`."""
        return find_samplers(self.indptr.numpy(), self.indices.numpy(), self.edge_type_array)

    @property
    def edge_type_array(self) -> npt.NDArray[np.int16] | None:
        """`edge_type` for NumPy."""
        return None if self.edge_type is None else self.edge_type.numpy()


@dataclass(frozen=True, kw_only=True)
class Graph(GraphData):
    """A graph with what is known about its vertices, in the user's numbering."""

    features: Tensor | None
    """Floating point [N, F], or None: a graph that is only partitioned or sampled needs none."""
    feature_scaling: Tensor | None = None
    """float64 [2, F], means and deviations by which the features were made standard, of each type [types, 2, F]; None:
    they are as they were."""

    def validate(self, *, training: bool = True) -> None:
        """Check the graph against every law that sampling and training rely on.

        Args:
            training: also require labels and at least one training vertex; False for a graph that is only
                partitioned or sampled.

        Raises:
            DataError: the first law found broken; the message names the value, its place and the cure.

        Cost:
            One pass over every array, in chunks: no copy of the features is made.
        """
        _check_dtypes(self)
        _check_indptr(self)
        _check_indices(self)
        if self.features is not None:
            _check_features(self.features, self.num_vertices)
        for name, rows in (("edge_weight", self.edge_weight), ("edge_attr", self.edge_attr)):
            if rows is not None:
                _check_edge_rows(name, rows, self.num_edges)
        if self.types is not None or self.edge_type is not None:
            _check_types(self)
        if self.labels is not None:
            _check_labels(self, self.labels)
        _check_splits(self)
        if training and self.labels is None:
            raise DataError("the graph has no labels to train on; read a data set that has them.")
        if training and self.train_ids.numel() == 0:
            raise DataError("the training set is empty; put at least one labelled vertex into the train split.")

    def relabel(self, book: PartitionBook) -> "Graph":
        """Renumber the vertices: row ``book.old_to_new[v]`` of the new graph is row v of this one.

        Each neighbour list keeps its order, and so do the lists of splits: entry i of either is the same
        vertex before and after. What is sampled by position therefore does not depend on the numbering.

        Cost: one pass over the edges and one copy of features and labels.
        """
        old = np.ascontiguousarray(book.new_to_old, dtype=np.int64)
        new = np.ascontiguousarray(book.old_to_new, dtype=np.int64)
        rows, ids = torch.from_numpy(old), torch.from_numpy(new)
        found = relabel(self.indptr.numpy(), self.indices.numpy(), old, new)
        indptr, indices = map(torch.from_numpy, found)
        edge_data = {name: edges for name in EDGE_ARRAYS if (edges := getattr(self, name)) is not None}
        if edge_data:
            shifts = (self.indptr[:-1][rows] - indptr[:-1]).repeat_interleave(indptr.diff())
            places = shifts + torch.arange(self.num_edges)
            edge_data = {name: edges[places] for name, edges in edge_data.items()}
        return replace(
            self,
            indptr=indptr,
            indices=indices,
            **edge_data,
            features=None if self.features is None else self.features[rows],
            labels=None if self.labels is None else self.labels[rows],
            train_ids=ids[self.train_ids],
            validation_ids=ids[self.validation_ids],
            test_ids=ids[self.test_ids],
        )

    def fingerprint(self) -> str:
        """Digest of everything in the graph: equal digests mean the same data.

        SHA-256 in hexadecimal over name, dtype, shape and bytes of each array, the task and the classes. Cost: one pass
        over all bytes, about a second per gigabyte.
        """
        digest = hashlib.sha256()
        for name in DIGESTED:
            value = getattr(self, name)
            if value is None and name in ADDED_LATER:
                continue
            if isinstance(value, GraphTypes):
                value = value.to_json()
            if isinstance(value, Tensor):
                array = np.ascontiguousarray(value.detach().cpu().numpy())
                digest.update(f"{name}:{value.dtype}:{tuple(value.shape)};".encode())
                digest.update(array.reshape(-1).view(np.uint8).data)
            else:
                digest.update(f"{name}={value};".encode())
        return digest.hexdigest()


HAS_COLUMNS: tuple[Task, ...] = ("multi-label", "regression")
"""Tasks whose labels are float32 [N, C]."""

LABEL_FIELDS = ("labels", "train_ids", "validation_ids", "test_ids", "task", "num_classes")
ADDED_LATER = ("edge_type", "types")
DIGESTED = ("indptr", "indices", "features", *LABEL_FIELDS, "edge_weight", "edge_attr", "feature_scaling", *ADDED_LATER)
"""In the order that stored fingerprints were made with; what was added later has no part in those without."""

NUMBERS_PER_CHUNK = 1 << 22


def _check_dtypes(graph: "Graph") -> None:
    ids = (torch.int64,)
    expected: dict[str, tuple[torch.dtype, ...]] = {
        "indptr": ids,
        "indices": (torch.int32, torch.int64),
        "features": (torch.float32, torch.float64, torch.float16),
        "labels": (torch.float32,) if graph.task in HAS_COLUMNS else ids,
        "train_ids": ids,
        "validation_ids": ids,
        "test_ids": ids,
    }
    for name, dtypes in expected.items():
        tensor: Tensor | None = getattr(graph, name)
        if tensor is not None and tensor.dtype not in dtypes:
            allowed = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            found = str(tensor.dtype).removeprefix("torch.")
            raise DataError(f"{name} has dtype {found}; convert it to {allowed}.")


def _check_indptr(graph: "Graph") -> None:
    indptr = graph.indptr
    if indptr.dim() != 1 or indptr.numel() == 0:
        raise DataError(f"indptr has shape {tuple(indptr.shape)}; give one offset per vertex and one more, [N + 1].")
    if int(indptr[0]) != 0:
        raise DataError(f"indptr[0] is {int(indptr[0])}; it must be 0. Rebuild the graph with csc_from_edges.")
    row = _first(indptr.diff() < 0)
    if row is not None:
        raise DataError(
            f"indptr goes down from {int(indptr[row])} to {int(indptr[row + 1])} at vertex {row}; offsets "
            "may only grow. Rebuild the graph with csc_from_edges."
        )
    if int(indptr[-1]) != graph.indices.numel():
        raise DataError(
            f"indptr ends at {int(indptr[-1])} but there are {graph.indices.numel()} edges in indices; the "
            "two must be equal. Rebuild the graph with csc_from_edges."
        )


def _check_indices(graph: "Graph") -> None:
    if graph.indices.dim() != 1:
        raise DataError(f"indices has shape {tuple(graph.indices.shape)}; give one source per edge, [E].")
    position = first_outside(graph.indices, graph.num_vertices)
    if position is not None:
        destination = int(torch.searchsorted(graph.indptr, position, right=True)) - 1
        raise DataError(
            f"indices[{position}] is {int(graph.indices[position])}, a source of vertex {destination}, but "
            f"{describe_numbering(graph.num_vertices)}. Correct that edge or remove it."
        )


def _check_features(features: Tensor, num_vertices: int) -> None:
    if features.dim() != 2:
        raise DataError(f"features has shape {tuple(features.shape)}; give one row per vertex, [N, F].")
    if features.shape[0] != num_vertices:
        raise DataError(
            f"there are {features.shape[0]} rows of features for {num_vertices} vertices; give "
            "exactly one row per vertex, isolated vertices included."
        )
    if features.numel() == 0:
        return
    rows_per_chunk = max(1, NUMBERS_PER_CHUNK // features.shape[1])
    for start in range(0, num_vertices, rows_per_chunk):
        chunk = features[start : start + rows_per_chunk]
        if not _all_finite(chunk):
            row, column = (~chunk.isfinite()).nonzero()[0].tolist()
            raise DataError(
                f"feature column {column} of vertex {start + row} is {float(chunk[row, column])}; features "
                "must be finite numbers. Replace it, for example by the column's mean."
            )


def _all_finite(values: Tensor) -> bool:
    smallest, largest = torch.aminmax(values)
    return bool(smallest.isfinite() & largest.isfinite())


def _check_edge_rows(name: str, rows: Tensor, num_edges: int) -> None:
    dimensions = 1 if name == "edge_weight" else 2
    if rows.dtype != torch.float32 or rows.dim() != dimensions or len(rows) != num_edges:
        raise DataError(
            f"{name} is {rows.dtype} of shape {tuple(rows.shape)} for {num_edges} edges; give float32, "
            "one row per edge."
        )
    if rows.numel() and not _all_finite(rows):
        edge = int((~rows.isfinite()).nonzero()[0, 0])
        raise DataError(f"{name} of edge {edge} is {rows[edge].tolist()}; it must be finite. Replace it.")


def _check_types(graph: "Graph") -> None:
    types, of_edges = graph.types, graph.edge_type
    if types is None or of_edges is None:
        raise DataError("types and edge_type go together; make the graph by assemble_typed_graph.")
    if int(types.offsets[-1]) != graph.num_vertices:
        raise DataError(f"types are of {int(types.offsets[-1])} vertices, but there are {graph.num_vertices}.")
    if of_edges.dtype != torch.int16 or of_edges.shape != graph.indices.shape:
        raise DataError(
            f"edge_type is {of_edges.dtype} of shape {tuple(of_edges.shape)} for {graph.num_edges} edges; give int16, "
            "one for each edge."
        )
    wrong = _first((of_edges < 0) | (of_edges >= len(types.edges)))
    if wrong is not None:
        raise DataError(f"edge {wrong} is of type {int(of_edges[wrong])}, but there are {len(types.edges)} types.")
    destinations = torch.arange(graph.num_vertices).repeat_interleave(graph.indptr.diff())
    falls = (of_edges.diff() < 0) & (destinations.diff() == 0)
    wrong = _first(falls)
    if wrong is not None:
        raise DataError(
            f"edge {wrong + 1} of vertex {int(destinations[wrong])} is of an earlier type than the one before; sort "
            "each vertex's edges by type, as assemble_typed_graph does."
        )
    ends = torch.tensor(types.ends, dtype=torch.uint8).reshape(-1, 2)[of_edges.long()]
    for end, side, vertices in ((0, "source", graph.indices.long()), (1, "destination", destinations)):
        wrong = _first(types.of(vertices) != ends[:, end])
        if wrong is not None:
            name = list(types.vertices)[int(types.of(vertices[wrong : wrong + 1]))]
            edge = types.edges[int(of_edges[wrong])]
            raise DataError(f"edge {wrong} is of type {edge_type_text(edge)}, but its {side} is of type {name!r}.")


def _check_labels(graph: "Graph", labels: Tensor) -> None:
    several = graph.task in HAS_COLUMNS
    if labels.dim() != (2 if several else 1):
        shape = "[N, C]" if several else "[N]"
        raise DataError(f"labels has shape {tuple(labels.shape)}; task {graph.task!r} needs {shape}.")
    if labels.shape[0] != graph.num_vertices:
        raise DataError(
            f"there are {labels.shape[0]} labels for {graph.num_vertices} vertices; give one per vertex, -1 "
            "where it is unknown."
        )
    if several and labels.shape[1] != graph.num_classes:
        raise DataError(
            f"labels has {labels.shape[1]} columns but num_classes is {graph.num_classes}; make them equal."
        )
    if several:
        multi = graph.task == "multi-label"
        wrong = ((labels != 0) & (labels != 1) if multi else labels.isinf()).nonzero()
        if wrong.numel():
            row, column = wrong[0].tolist()
            raise DataError(
                f"label column {column} of vertex {row} is {float(labels[row, column])}; in task {graph.task!r} a "
                f"label is {'0 or 1' if multi else 'a number, NaN where unknown'}. Correct it, or leave the vertex out "
                "of the data."
            )
        return
    if graph.task == "binary" and graph.num_classes != 2:
        raise DataError(f"task 'binary' has 2 classes, not {graph.num_classes}; use task 'single-label'.")
    vertex = _first((labels < -1) | (labels >= graph.num_classes))
    if vertex is not None:
        raise DataError(
            f"the label of vertex {vertex} is {int(labels[vertex])}, but with {graph.num_classes} classes a "
            f"label is 0 to {graph.num_classes - 1}, or -1 for unknown. Correct it or raise num_classes."
        )


def _check_splits(graph: "Graph") -> None:
    owner = torch.full((graph.num_vertices,), -1, dtype=torch.int8)
    splits = [("train", graph.train_ids), ("validation", graph.validation_ids), ("test", graph.test_ids)]
    for number, (name, ids) in enumerate(splits):
        if ids.dim() != 1:
            raise DataError(f"the {name} split has shape {tuple(ids.shape)}; give a list of vertex ids.")
        position = first_outside(ids, graph.num_vertices)
        if position is not None:
            raise DataError(
                f"entry {position} of the {name} split is {int(ids[position])}, but "
                f"{describe_numbering(graph.num_vertices)}. Correct the split."
            )
        ordered = ids.sort().values
        position = _first(ordered.diff() == 0)
        if position is not None:
            vertex = int(ordered[position])
            raise DataError(f"vertex {vertex} is in the {name} split more than once; remove the duplicate.")
        position = _first(owner[ids] >= 0)
        if position is not None:
            vertex = int(ids[position])
            other = splits[int(owner[vertex])][0]
            raise DataError(
                f"vertex {vertex} is in the {other} split and in the {name} split; keep it in one of them, "
                "or the measured quality means nothing."
            )
        owner[ids] = number
    if graph.labels is not None:
        vertex_without = _first((owner >= 0) & ~known_labels(graph.labels))
        if vertex_without is not None:
            raise DataError(
                f"vertex {vertex_without} is in the {splits[int(owner[vertex_without])][0]} split but has no label "
                f"({graph.labels[vertex_without].tolist()}); give it one or take it out of the split."
            )


def known_labels(labels: Tensor) -> Tensor:
    """Which vertices have a label, bool [N]: none is -1 (int64 [N]), and none of its columns NaN (float [N, C])."""
    return ~labels.isnan().any(1) if labels.is_floating_point() else labels >= 0


def _first(wrong: Tensor) -> int | None:
    """Position of the first True, or None."""
    positions = wrong.nonzero()
    return int(positions[0]) if positions.numel() else None


def first_outside(ids: Tensor, num_vertices: int) -> int | None:
    """Position of the first id that is not in [0, N), or None."""
    if ids.numel() == 0:
        return None
    smallest, largest = torch.aminmax(ids)
    if int(smallest) >= 0 and int(largest) < num_vertices:
        return None
    return _first((ids < 0) | (ids >= num_vertices))


def describe_numbering(num_vertices: int, of: str = "the graph") -> str:
    """Say which ids are vertices, as part of an error's sentence: "the graph has 5 vertices, numbered 0 to 4"."""
    if num_vertices == 0:
        return f"{of} has no vertices"
    return f"{of} has {num_vertices} vertices, numbered 0 to {num_vertices - 1}"
