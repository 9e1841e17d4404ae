"""Graphs in NumPy's npz files, in the layouts that data sets are published in.

Arrays, by any of the names; only the edges are required::

    edges                                   [E, 2] source, destination
    node_features | x | x_indptr x_indices x_data x_shape (sparse, CSR)
    node_labels   | y                       [N] classes (-1 unknown), [N, C] of 0 and 1, or real numbers (NaN unknown)
    edge_weight                             [E]
    edge_attr     | edge_features           [E, D], or [E] for one feature
    train_mask | train_masks                boolean [N] or [splits, N]
    train | train_idx | train_ids           vertex ids
    val... | valid... | validation..., test...   likewise
"""

import difflib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.comm.numpy_files import load_arrays
from windrow.gnn.build import assemble_graph
from windrow.gnn.graph import Graph
from windrow.gnn.readers.options import GraphOptions
from windrow.gnn.vertex_data import VertexSplit, dense_features, float_features, split_from_masks

__all__ = ["read_npz"]

Arrays = Mapping[str, npt.NDArray[Any]]

SPLITS = {"train": ("train",), "validation": ("val", "valid", "validation"), "test": ("test",)}
SPLIT_ENDINGS = ("", "_mask", "_masks", "_idx", "_ids")
KNOWN = (
    *("edges", "node_features", "x", "x_indptr", "x_indices", "x_data", "x_shape", "node_labels", "y"),
    *("edge_weight", "edge_attr", "edge_features"),
    *(name + ending for names in SPLITS.values() for name in names for ending in SPLIT_ENDINGS),
)
LIKE_KNOWN = 0.6
"""From this similarity on, by difflib's measure, a name is taken for a known one written wrongly."""


def read_npz(options: GraphOptions) -> Graph:
    """Read a graph from an npz file; see the module for the arrays, and `windrow.gnn.readers.read_graph` for errors.

    Labels without a split get a random one. Without features and labels the largest id tells the number of vertices.
    """
    arrays = load_arrays(Path(options.path))
    _check_names(options.path, arrays)
    edges = _edges(options, arrays)
    features = _features(options.path, arrays)
    labels = _first_of(arrays, "node_labels", "y")
    num_vertices = _num_vertices(options.path, edges, features, labels)
    return assemble_graph(
        edges[:, 0],
        edges[:, 1],
        num_vertices,
        features=features,
        labels=labels,
        split=_split(options, arrays, num_vertices),
        edge_weight=arrays.get("edge_weight"),
        edge_attr=_first_of(arrays, "edge_attr", "edge_features"),
        describe_edge=lambda edge: f"{options.path}, row {edge} of edges",
        **options.assembly,
    )


def _first_of(arrays: Arrays, *names: str) -> npt.NDArray[Any] | None:
    return next((arrays[name] for name in names if name in arrays), None)


def _edges(options: GraphOptions, arrays: Arrays) -> npt.NDArray[np.int64]:
    if "edges" not in arrays:
        raise DataError(f"{options.path}: there is no array 'edges' among {sorted(arrays)}; add it, shape [E, 2].")
    edges = arrays["edges"]
    if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype.kind not in "iu":
        raise DataError(
            f"{options.path}: edges has dtype {edges.dtype} and shape {edges.shape}; it must be integers [E, 2]."
        )
    return edges.astype(np.int64) - options.first_vertex_id


def _features(path: str, arrays: Arrays) -> Tensor | None:
    dense = _first_of(arrays, "node_features", "x")
    if dense is not None or "x_indptr" not in arrays:
        return None if dense is None else float_features(dense)
    missing = [name for name in ("x_indices", "x_data", "x_shape") if name not in arrays]
    if missing:
        raise DataError(f"{path}: sparse features lack {missing}; save indptr, indices, data and shape together.")
    indptr, indices, (rows, columns) = (arrays[f"x_{name}"].astype(np.int64) for name in ("indptr", "indices", "shape"))
    return dense_features(indptr, indices, arrays["x_data"], (int(rows), int(columns)))


def _num_vertices(
    path: str, edges: npt.NDArray[np.int64], features: Tensor | None, labels: npt.NDArray[Any] | None
) -> int:
    counts = [len(rows) for rows in (features, labels) if rows is not None]
    if len({*counts}) > 1:
        raise DataError(
            f"{path}: there are {counts[0]} rows of features but {counts[1]} labels; give one of each per vertex."
        )
    return counts[0] if counts else int(edges.max(initial=-1)) + 1


def _check_names(path: str, arrays: Arrays) -> None:
    """Refuse names that look like known ones; say which others are skipped."""
    unknown = [name for name in arrays if name not in KNOWN]
    for name in unknown:
        nearest = difflib.get_close_matches(name.lower(), KNOWN, n=1, cutoff=LIKE_KNOWN)
        if nearest:
            raise DataError(
                f"{path}: array {name!r} has no meaning here; did you mean {nearest[0]!r}? Rename it, or leave it out."
            )
    if unknown:
        warnings.warn(f"{path}: arrays {unknown} have no meaning here and are skipped", stacklevel=2)


def _split(options: GraphOptions, arrays: Arrays, num_vertices: int) -> VertexSplit | None:
    found: dict[str, str] = {}
    for split, spellings in SPLITS.items():
        names = [name + ending for name in spellings for ending in SPLIT_ENDINGS if name + ending in arrays]
        if len(names) > 1:
            raise DataError(f"{options.path}: {names} are all the {split} split; leave one of them.")
        if names:
            found[split] = names[0]
    if not found:
        return None
    if len(found) < len(SPLITS):
        raise DataError(f"{options.path}: of the splits only {list(found.values())} are there; save all three.")
    splits = [arrays[name] for name in found.values()]
    are_masks = [name.endswith(("_mask", "_masks")) or arrays[name].dtype == bool for name in found.values()]
    masks = [np.atleast_2d(mask) for mask in splits]
    num_splits = len(masks[0]) if any(are_masks) else 1
    if options.split >= num_splits:
        raise DataError(
            f"{options.path}: split {options.split} was asked for, but the file has {num_splits}; use 0 to "
            f"{num_splits - 1}."
        )
    if not any(are_masks):
        return VertexSplit(*(torch.from_numpy(ids.astype(np.int64)) for ids in splits))
    for name, mask in zip(found.values(), masks, strict=True):
        if mask.ndim != 2 or mask.shape[1] != num_vertices or len(mask) != len(masks[0]):
            raise DataError(
                f"{options.path}: {name} has shape {arrays[name].shape}; with {num_vertices} vertices "
                f"it must be [splits, {num_vertices}], and the same for all three."
            )
    return split_from_masks(*(torch.from_numpy(mask[options.split]) for mask in masks))
