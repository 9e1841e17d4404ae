"""The laws of a graph, one private check each; every message names the value, its place and the cure."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.gnn.vertex_ids import describe_numbering, first_outside

if TYPE_CHECKING:
    from windrow.gnn.graph import Graph

__all__ = ["validate_graph"]

NUMBERS_PER_CHUNK = 1 << 22


def validate_graph(graph: "Graph", *, training: bool = True) -> None:
    """Check a graph against every law that sampling and training rely on.

    Args:
        graph: what to check.
        training: also require labels and at least one training vertex; False for a graph that is only
            partitioned or sampled.

    Raises:
        DataError: the first law found broken.

    Cost:
        One pass over every array, in chunks: no copy of the features is made.
    """
    _check_dtypes(graph)
    _check_indptr(graph)
    _check_indices(graph)
    if graph.features is not None:
        _check_feature_rows(graph, graph.features)
        _check_features_finite(graph.features)
    for name, ids in _splits(graph):
        _check_split_range(graph, name, ids)
        _check_split_distinct(name, ids)
    _check_splits_disjoint(graph)
    if graph.labels is not None:
        _check_label_rows(graph, graph.labels)
        _check_label_values(graph, graph.labels)
        if graph.task != "multi-label":
            _check_split_labels_known(graph, graph.labels)
    if training:
        _check_labels_present(graph)
        _check_training_set(graph)


def _splits(graph: "Graph") -> list[tuple[str, Tensor]]:
    return [("train", graph.train_ids), ("validation", graph.validation_ids), ("test", graph.test_ids)]


def _check_dtypes(graph: "Graph") -> None:
    expected: list[tuple[str, Tensor | None, tuple[torch.dtype, ...]]] = [
        ("indptr", graph.indptr, (torch.int64,)),
        ("indices", graph.indices, (torch.int32, torch.int64)),
        ("features", graph.features, (torch.float32, torch.float64, torch.float16, torch.bfloat16)),
        ("labels", graph.labels, (torch.float32,) if graph.task == "multi-label" else (torch.int64,)),
        ("train_ids", graph.train_ids, (torch.int64,)),
        ("validation_ids", graph.validation_ids, (torch.int64,)),
        ("test_ids", graph.test_ids, (torch.int64,)),
    ]
    for name, tensor, dtypes in expected:
        if tensor is not None and tensor.dtype not in dtypes:
            allowed = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            found = str(tensor.dtype).removeprefix("torch.")
            raise DataError(f"{name} has dtype {found}; convert it to {allowed}.")


def _check_indptr(graph: "Graph") -> None:
    indptr = graph.indptr
    if indptr.dim() != 1 or indptr.numel() == 0:
        raise DataError(
            f"indptr has shape {tuple(indptr.shape)}; give one offset per vertex and one more, [N + 1]."
        )
    if int(indptr[0]) != 0:
        raise DataError(
            f"indptr[0] is {int(indptr[0])}; it must be 0. Rebuild the graph with csc_from_edges."
        )
    falls = (indptr.diff() < 0).nonzero()
    if falls.numel():
        row = int(falls[0])
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


def _check_feature_rows(graph: "Graph", features: Tensor) -> None:
    if features.dim() != 2:
        raise DataError(f"features has shape {tuple(features.shape)}; give one row per vertex, [N, F].")
    if features.shape[0] != graph.num_vertices:
        raise DataError(
            f"there are {features.shape[0]} rows of features for {graph.num_vertices} vertices; give "
            "exactly one row per vertex, isolated vertices included."
        )


def _check_features_finite(features: Tensor) -> None:
    if features.numel() == 0:
        return
    rows_per_chunk = max(1, NUMBERS_PER_CHUNK // features.shape[1])
    for start in range(0, features.shape[0], rows_per_chunk):
        chunk = features[start : start + rows_per_chunk]
        smallest, largest = torch.aminmax(chunk)
        if not bool(smallest.isfinite() & largest.isfinite()):
            row, column = (~chunk.isfinite()).nonzero()[0].tolist()
            raise DataError(
                f"feature column {column} of vertex {start + row} is {float(chunk[row, column])}; features "
                "must be finite numbers. Replace it, for example by the column's mean."
            )


def _check_label_rows(graph: "Graph", labels: Tensor) -> None:
    multi = graph.task == "multi-label"
    if labels.dim() != (2 if multi else 1):
        shape = "[N, C]" if multi else "[N]"
        raise DataError(f"labels has shape {tuple(labels.shape)}; task {graph.task!r} needs {shape}.")
    if labels.shape[0] != graph.num_vertices:
        raise DataError(
            f"there are {labels.shape[0]} labels for {graph.num_vertices} vertices; give one per vertex, -1 "
            "where it is unknown."
        )
    if multi and labels.shape[1] != graph.num_classes:
        raise DataError(
            f"labels has {labels.shape[1]} columns but num_classes is {graph.num_classes}; make them equal."
        )


def _check_label_values(graph: "Graph", labels: Tensor) -> None:
    if graph.task == "multi-label":
        wrong = ((labels != 0) & (labels != 1)).nonzero()
        if wrong.numel():
            row, column = wrong[0].tolist()
            raise DataError(
                f"label column {column} of vertex {row} is {float(labels[row, column])}; in task "
                "'multi-label' a label is 0 or 1. Correct it, or leave the vertex out of the data."
            )
        return
    if graph.task == "binary" and graph.num_classes != 2:
        raise DataError(f"task 'binary' has 2 classes, not {graph.num_classes}; use task 'single-label'.")
    wrong = ((labels < -1) | (labels >= graph.num_classes)).nonzero()
    if wrong.numel():
        vertex = int(wrong[0])
        raise DataError(
            f"the label of vertex {vertex} is {int(labels[vertex])}, but with {graph.num_classes} classes a "
            f"label is 0 to {graph.num_classes - 1}, or -1 for unknown. Correct it or raise num_classes."
        )


def _check_split_range(graph: "Graph", name: str, ids: Tensor) -> None:
    if ids.dim() != 1:
        raise DataError(f"the {name} split has shape {tuple(ids.shape)}; give a list of vertex ids.")
    position = first_outside(ids, graph.num_vertices)
    if position is not None:
        raise DataError(
            f"entry {position} of the {name} split is {int(ids[position])}, but "
            f"{describe_numbering(graph.num_vertices)}. Correct the split."
        )


def _check_split_distinct(name: str, ids: Tensor) -> None:
    ordered = ids.sort().values
    repeats = (ordered.diff() == 0).nonzero()
    if repeats.numel():
        vertex = int(ordered[int(repeats[0])])
        raise DataError(f"vertex {vertex} is in the {name} split more than once; remove the duplicate.")


def _check_splits_disjoint(graph: "Graph") -> None:
    owner = torch.full((graph.num_vertices,), -1, dtype=torch.int8)
    splits = _splits(graph)
    for number, (name, ids) in enumerate(splits):
        taken = (owner[ids] >= 0).nonzero()
        if taken.numel():
            vertex = int(ids[int(taken[0])])
            other = splits[int(owner[vertex])][0]
            raise DataError(
                f"vertex {vertex} is in the {other} split and in the {name} split; keep it in one of them, "
                "or the measured quality means nothing."
            )
        owner[ids] = number


def _check_split_labels_known(graph: "Graph", labels: Tensor) -> None:
    for name, ids in _splits(graph):
        unknown = (labels[ids] < 0).nonzero()
        if unknown.numel():
            vertex = int(ids[int(unknown[0])])
            raise DataError(
                f"vertex {vertex} is in the {name} split but has no label (-1); give it one or take it out "
                "of the split."
            )


def _check_labels_present(graph: "Graph") -> None:
    if graph.labels is None:
        raise DataError("the graph has no labels to train on; read a data set that has them.")


def _check_training_set(graph: "Graph") -> None:
    if graph.train_ids.numel() == 0:
        raise DataError("the training set is empty; put at least one labelled vertex into the train split.")
