"""Node-property-prediction data sets of the Open Graph Benchmark, as they lie unpacked on disk.

::

    raw/edge.csv.gz           source,destination            raw/data.npz        edge_index [2, E],
    num_nodes_list, raw/num-node-list.csv.gz  N                       or                        node_feat
    raw/node-feat.csv.gz      one row per vertex            raw/node-label.npz  node_label
    raw/node-label.csv.gz     one row per vertex
    raw/edge-feat.csv.gz      one row per edge              edge_feat in data.npz
    split/<name>/train.csv.gz, valid.csv.gz, test.csv.gz    vertex ids

With types of vertices and edges, as in ogbn-mag (a type's own years, and features of edges, are passed over)::

    raw/num-node-dict.csv.gz                              types of vertices, and below each how many there are
    raw/node-feat/paper/node-feat.csv.gz                  one row per vertex of the type
    raw/node-label/paper/node-label.csv.gz                likewise
    raw/relations/author___writes___paper/edge.csv.gz     source,destination
    split/<name>/paper/train.csv.gz, ...                  vertex ids

The ogb package is not needed (Hu et al., Open Graph Benchmark, NeurIPS 2020).
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from windrow.comm.errors import DataError
from windrow.comm.numpy_files import load_arrays
from windrow.gnn.build import VertexRows, assemble_graph, assemble_typed_graph
from windrow.gnn.graph import Graph
from windrow.gnn.readers.options import GraphOptions
from windrow.gnn.readers.table_files import TableFile, read_matrix
from windrow.gnn.types import EdgeType
from windrow.gnn.vertex_data import VertexSplit

__all__ = ["read_ogb_folder"]


def read_ogb_folder(options: GraphOptions) -> Graph:
    """Read an OGB folder of one graph.

    Directed data sets (ogbn-arxiv) and undirected ones (ogbn-products) both list an edge once; `symmetrise` decides.
    """
    folder = Path(options.path)
    raw = folder / "raw"
    if (raw / "relations").is_dir():
        return _read_typed(folder, options)
    binary = (raw / "data.npz").exists()
    num_vertices, edges, features, labels, edge_attr = _read_binary(raw) if binary else _read_csv(raw)
    splits = _split_folder(folder / "split", options.split_name)
    return assemble_graph(
        edges[:, 0],
        edges[:, 1],
        num_vertices,
        features=features,
        labels=labels,
        edge_attr=edge_attr,
        split=None if splits is None else _read_split(splits),
        describe_edge=lambda edge: f"{raw / ('data.npz' if binary else 'edge.csv.gz')}, edge {edge + 1}",
        **options.assembly,
    )


def _read_typed(folder: Path, options: GraphOptions) -> Graph:
    raw = folder / "raw"
    numbers = TableFile(path=raw / "num-node-dict.csv.gz")
    counts = numbers.read(dict.fromkeys(numbers.column_names(), "int64"))
    splits = _split_folder(folder / "split", options.split_name)
    vertices = {}
    for name, count in counts.items():
        features, labels = (
            raw / "node-feat" / name / "node-feat.csv.gz",
            raw / "node-label" / name / "node-label.csv.gz",
        )
        vertices[name] = VertexRows(
            count[0].as_py(),
            read_matrix(features, "float32") if features.exists() else None,
            read_matrix(labels, "float64") if labels.exists() else None,
            None if splits is None or not (splits / name).is_dir() else _read_split(splits / name),
        )
    files = {_edge_type(path): path / "edge.csv.gz" for path in sorted((raw / "relations").iterdir())}
    edges = {edge: read_matrix(path, "int64") for edge, path in files.items()}
    return assemble_typed_graph(
        vertices,
        {edge: (ends[:, 0], ends[:, 1]) for edge, ends in edges.items()},
        describe_edge=lambda edge, place: f"{files[edge]}, edge {place + 1}",
        **options.assembly,
    )


def _edge_type(folder: Path) -> EdgeType:
    parts = folder.name.split("___")
    if len(parts) != 3:
        raise DataError(f"{folder}: expected a name such as author___writes___paper; fetch the data set again.")
    return parts[0], parts[1], parts[2]


Raw = tuple[int, npt.NDArray[np.int64], npt.NDArray[Any] | None, npt.NDArray[Any] | None, npt.NDArray[Any] | None]
"""Vertices, edges [E, 2], features and labels of vertices, features of edges."""


def _read_csv(raw: Path) -> Raw:
    files = {name: raw / f"{name}.csv.gz" for name in ("edge", "num-node-list", "node-feat", "node-label", "edge-feat")}
    for name in ("edge", "num-node-list"):
        if not files[name].exists():
            raise DataError(f"{files[name]}: no such file; is this the unpacked folder of an OGB data set?")
    edges, counts = (read_matrix(files[name], "int64") for name in ("edge", "num-node-list"))
    if edges.shape[1] != 2:
        raise DataError(f"{files['edge']}: {edges.shape[1]} columns; an edge is source,destination.")
    features, labels, edge_attr = (
        read_matrix(files[name], "float64" if name == "node-label" else "float32") if files[name].exists() else None
        for name in ("node-feat", "node-label", "edge-feat")
    )
    return _only_graph(files["num-node-list"], counts.reshape(-1)), edges, features, labels, edge_attr


def _read_binary(raw: Path) -> Raw:
    path, label_path = raw / "data.npz", raw / "node-label.npz"
    arrays = load_arrays(path)
    for name in ("edge_index", "num_nodes_list"):
        if name not in arrays:
            raise DataError(f"{path}: there is no array {name!r} among {sorted(arrays)}; fetch it again.")
    edges = arrays["edge_index"].astype(np.int64)
    if edges.ndim != 2 or edges.shape[0] != 2:
        raise DataError(f"{path}: edge_index has shape {edges.shape}; it must be [2, E].")
    labels = load_arrays(label_path) if label_path.exists() else {}
    if label_path.exists() and "node_label" not in labels:
        raise DataError(f"{label_path}: there is no array 'node_label' among {sorted(labels)}; fetch it again.")
    num_vertices = _only_graph(path, arrays["num_nodes_list"].astype(np.int64))
    return num_vertices, edges.T, arrays.get("node_feat"), labels.get("node_label"), arrays.get("edge_feat")


def _only_graph(path: Path, counts: npt.NDArray[np.int64]) -> int:
    if counts.size != 1:
        raise DataError(f"{path}: {counts.size} graphs; windrow reads data sets of one graph, such as ogbn-arxiv.")
    return int(counts[0])


def _split_folder(folder: Path, name: str) -> Path | None:
    """The folder of the split of this name, or of the only one; None where there is none."""
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
    if not names and not name:
        return None
    if name and name not in names:
        raise DataError(f"{folder}: there is no split {name!r} among {names}; correct split_name.")
    if not name and len(names) > 1:
        raise DataError(f"{folder}: there are several splits, {names}; choose one as split_name.")
    return folder / (name or names[0])


def _read_split(folder: Path) -> VertexSplit:
    return VertexSplit(*(_read_ids(folder, part) for part in ("train", "valid", "test")))


def _read_ids(folder: Path, part: str) -> torch.Tensor:
    for path in (folder / f"{part}.csv.gz", folder / f"{part}.csv"):
        if path.exists():
            return torch.from_numpy(read_matrix(path, "int64").reshape(-1))
    raise DataError(
        f"{folder / part}.csv.gz: no such file; fetch it again. A split_dict.pt is a pickle, which can run "
        "any code, and is not read: write its ids to train.csv, valid.csv and test.csv."
    )
