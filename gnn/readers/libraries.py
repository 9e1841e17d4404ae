"""Graphs from and to other libraries: DGL, and PyTorch Geometric, whose ``Data`` is known by its attributes alone."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.gnn.build import SelfLoops, assemble_graph
from windrow.gnn.graph import Graph
from windrow.gnn.readers.options import GraphOptions
from windrow.gnn.vertex_data import SplitOptions, TaskOption, VertexSplit, split_from_masks

__all__ = ["MASKS", "from_dgl", "from_pyg", "read_dgl", "to_dgl"]

MASKS = ("train_mask", "val_mask", "test_mask")
"""Names of the splits among the vertex data of DGL's and PyG's graphs."""


def from_dgl(
    graph: Any,
    *,
    symmetrise: bool = False,
    self_loops: SelfLoops = "keep",
    deduplicate: bool = False,
    task: TaskOption = "auto",
    random_split: SplitOptions | None = None,
    split_seed: int = 0,
) -> Graph:
    """Take over a DGL graph; by default with exactly its edges, repeated ones included.

    Args:
        graph: a homogeneous ``dgl.DGLGraph`` on any device, with what it has of feat, label, train_mask, val_mask and
            test_mask in its ``ndata``, of weight [E] and feat [E, D] in its ``edata``.
        symmetrise: see `windrow.gnn.build.csc_from_edges`.
        self_loops: see `windrow.gnn.build.csc_from_edges`.
        deduplicate: see `windrow.gnn.build.csc_from_edges`.
        task: what the labels mean.
        random_split: how a split is drawn where the graph has no masks; None for the defaults.
        split_seed: seed of that split.

    Returns:
        A validated graph on the CPU.

    Raises:
        DataError: the graph is heterogeneous, has only some of the masks, or breaks a law.
    """
    if not graph.is_homogeneous:
        raise DataError(
            f"the DGL graph has vertex types {graph.ntypes} and edge types {graph.etypes}; windrow reads "
            "graphs of one type: convert it with dgl.to_homogeneous."
        )
    sources, destinations = graph.edges()
    data = {name: tensor.cpu() for name, tensor in graph.ndata.items()}
    edge_data = {name: tensor.cpu() for name, tensor in graph.edata.items()}
    return assemble_graph(
        sources.cpu(),
        destinations.cpu(),
        graph.num_nodes(),
        features=data.get("feat"),
        labels=data.get("label"),
        split=_split_of(data),
        edge_weight=edge_data.get("weight"),
        edge_attr=edge_data.get("feat"),
        symmetrise=symmetrise,
        self_loops=self_loops,
        deduplicate=deduplicate,
        task=task,
        random_split_options=random_split,
        split_seed=split_seed,
    )


def read_dgl(options: GraphOptions) -> Graph:
    """Read a file that ``dgl.save_graphs`` wrote, with DGL's usual names of vertex data."""
    import dgl

    try:
        graphs, _ = dgl.load_graphs(options.path)
    except Exception as error:
        raise DataError(f"{options.path}: DGL cannot read it ({error}); write it with dgl.save_graphs.") from error
    if len(graphs) != 1:
        raise DataError(f"{options.path}: holds {len(graphs)} graphs; save the one to be read by itself.")
    return from_dgl(
        graphs[0],
        symmetrise=options.symmetrise,
        self_loops=options.self_loops,
        deduplicate=True,
        task=options.task,
        random_split=options.random_split,
        split_seed=options.split_seed,
    )


def to_dgl(graph: Graph) -> Any:
    """Hand a graph to DGL: a ``dgl.DGLGraph`` with what there is of the names in `from_dgl`."""
    import dgl

    eids = torch.empty(0, dtype=graph.indices.dtype)
    topology = (graph.indptr.to(graph.indices.dtype), graph.indices, eids)
    converted = dgl.graph(("csc", topology), num_nodes=graph.num_vertices)
    for name, rows in (("weight", graph.edge_weight), ("feat", graph.edge_attr)):
        if rows is not None:
            converted.edata[name] = rows
    if graph.features is not None:
        converted.ndata["feat"] = graph.features
    if graph.labels is not None:
        converted.ndata["label"] = graph.labels
        for name, ids in zip(MASKS, (graph.train_ids, graph.validation_ids, graph.test_ids), strict=True):
            mask = torch.zeros(graph.num_vertices, dtype=torch.bool)
            mask[ids] = True
            converted.ndata[name] = mask
    return converted


def from_pyg(
    data: Any,
    *,
    split: int = 0,
    symmetrise: bool = False,
    self_loops: SelfLoops = "keep",
    deduplicate: bool = False,
    task: TaskOption = "auto",
    random_split: SplitOptions | None = None,
    split_seed: int = 0,
) -> Graph:
    """Take over a ``torch_geometric.data.Data``; by default with exactly its edges, repeated ones included.

    A ``Data`` saved by ``torch.save`` is a pickle, which can run any code when loaded; windrow therefore
    reads none. Load it yourself where you trust it, and pass the object.

    Args:
        data: has ``edge_index`` [2, E] and optionally ``num_nodes``, ``x``, ``y``, ``train_mask``,
            ``val_mask``, ``test_mask`` (masks [N] or [N, splits]), ``edge_weight`` [E], ``edge_attr`` [E, D] or [E].
        split: which column of masks [N, splits].
        symmetrise: see `windrow.gnn.build.csc_from_edges`; PyG's own data sets are symmetric already.
        self_loops: see `windrow.gnn.build.csc_from_edges`.
        deduplicate: see `windrow.gnn.build.csc_from_edges`.
        task: what the labels mean.
        random_split: how a split is drawn where there are no masks; None for the defaults.
        split_seed: seed of that split.

    Returns:
        A validated graph on the CPU.

    Raises:
        DataError: ``edge_index`` is missing or misshapen, some masks are missing, or a law is broken.
    """
    edge_index = _tensor(data, "edge_index")
    if edge_index is None or edge_index.dim() != 2 or edge_index.shape[0] != 2:
        found = "missing" if edge_index is None else f"of shape {tuple(edge_index.shape)}"
        raise DataError(f"edge_index is {found}; windrow reads homogeneous graphs with edge_index [2, E].")
    num_vertices = getattr(data, "num_nodes", None)
    if num_vertices is None:
        raise DataError("the number of vertices is unknown; set data.num_nodes.")
    return assemble_graph(
        edge_index[0],
        edge_index[1],
        int(num_vertices),
        features=_tensor(data, "x"),
        labels=_tensor(data, "y"),
        split=_split_of(_masks(data, split)),
        edge_weight=_tensor(data, "edge_weight"),
        edge_attr=_tensor(data, "edge_attr"),
        symmetrise=symmetrise,
        self_loops=self_loops,
        deduplicate=deduplicate,
        task=task,
        random_split_options=random_split,
        split_seed=split_seed,
    )


def _tensor(data: Any, name: str) -> Tensor | None:
    value = getattr(data, name, None)
    return value.cpu() if isinstance(value, Tensor) else None


def _masks(data: Any, split: int) -> dict[str, Tensor]:
    masks = {name: mask for name in MASKS if (mask := _tensor(data, name)) is not None}
    for name, mask in masks.items():
        if mask.dim() > 1:
            if split >= mask.shape[1]:
                raise DataError(
                    f"split {split} was asked for, but {name} has {mask.shape[1]} columns; use a smaller one."
                )
            masks[name] = mask[:, split]
    return masks


def _split_of(data: Mapping[str, Tensor]) -> VertexSplit | None:
    """The split that DGL's and PyG's data hold as train_mask, val_mask and test_mask; None where there is none.

    Raises:
        DataError: only some of the three are there.
    """
    present = [name for name in MASKS if name in data]
    if present and len(present) < 3:
        raise DataError(f"of the masks {MASKS} the graph has only {present}; give all three or none.")
    return split_from_masks(*(data[name] for name in MASKS)) if present else None
