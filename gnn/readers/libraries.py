"""Graphs from other libraries: DGL, and PyTorch Geometric, whose ``Data`` is known by its attributes alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.gnn.build import SelfLoops, VertexRows, assemble_graph, assemble_typed_graph
from windrow.gnn.graph import Graph
from windrow.gnn.readers.options import GraphOptions
from windrow.gnn.types import EdgeType, edge_type_text
from windrow.gnn.vertex_data import SplitOptions, TaskOption, VertexSplit, split_from_masks

__all__ = ["MASKS", "from_dgl", "from_pyg", "read_dgl"]

MASKS = ("train_mask", "val_mask", "test_mask")
"""Names of the splits among the vertex data of DGL's and PyG's graphs."""


def from_dgl(
    graph: Any,
    *,
    split: int = 0,
    symmetrise: bool = False,
    self_loops: SelfLoops = "keep",
    deduplicate: bool = False,
    task: TaskOption = "auto",
    random_split: SplitOptions | None = None,
    split_seed: int = 0,
) -> Graph:
    """Take over a DGL graph, onto the CPU; by default with exactly its edges, repeated ones included.

    Args:
        graph: a ``dgl.DGLGraph`` on any device, with what it has of feat, label, train_mask, val_mask and test_mask in
            its ``ndata``, of weight [E] and feat [E, D] in its ``edata``. Of several types of vertices or edges, those
            of each type without weights and features of edges.
        split: which column of masks [N, splits].
        symmetrise: see `windrow.gnn.build.csc_from_edges`, with types `windrow.gnn.build.assemble_typed_graph`.
        self_loops: see `windrow.gnn.build.csc_from_edges`.
        deduplicate: see `windrow.gnn.build.csc_from_edges`.
        task: what the labels mean.
        random_split: how a split is drawn where the graph has no masks; None for the defaults.
        split_seed: seed of that split.

    Raises:
        DataError: the graph has only some of the masks, or breaks a law.
    """
    return _assemble(
        _as_data(graph),
        split,
        symmetrise=symmetrise,
        self_loops=self_loops,
        deduplicate=deduplicate,
        task=task,
        random_split_options=random_split,
        split_seed=split_seed,
    )


def _as_data(graph: Any) -> Any:
    """A DGL graph under the names of PyG."""

    def of_vertices(name: str | None) -> dict[str, Any]:
        data = graph.ndata if name is None else graph.nodes[name].data
        named = {"x": data.get("feat"), "y": data.get("label"), **{mask: data.get(mask) for mask in MASKS}}
        return {"num_nodes": graph.num_nodes(name), **named}

    def of_edges(edge: EdgeType | None) -> dict[str, Any]:
        data = graph.edata if edge is None else graph.edges[edge].data
        ends = torch.stack(graph.edges(etype=edge))
        return {"edge_index": ends, "edge_weight": data.get("weight"), "edge_attr": data.get("feat")}

    if graph.is_homogeneous:
        return SimpleNamespace(**of_vertices(None), **of_edges(None))
    return _Typed(
        {name: SimpleNamespace(**of_vertices(name)) for name in graph.ntypes},
        {edge: SimpleNamespace(**of_edges(edge)) for edge in graph.canonical_etypes},
    )


class _Typed(NamedTuple):
    """A graph with types under the names of PyG."""

    vertices: dict[str, Any]
    edges: dict[EdgeType, Any]


def read_dgl(options: GraphOptions) -> Graph:
    """Read a file that ``dgl.save_graphs`` wrote, with DGL's usual names of vertex data."""
    import dgl

    try:
        graphs, _ = dgl.load_graphs(options.path)
    except Exception as error:
        raise DataError(f"{options.path}: DGL cannot read it ({error}); write it with dgl.save_graphs.") from error
    if len(graphs) != 1:
        raise DataError(f"{options.path}: holds {len(graphs)} graphs; save the one to be read by itself.")
    return _assemble(_as_data(graphs[0]), options.split, deduplicate=True, **options.assembly)


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
    """Take over PyG's ``Data`` or ``HeteroData``, onto the CPU; by default with exactly its edges, also repeated ones.

    A ``Data`` saved by ``torch.save`` is a pickle, which can run any code when loaded; windrow therefore
    reads none. Load it yourself where you trust it, and pass the object.

    Args:
        data: has ``edge_index`` [2, E] and optionally ``num_nodes``, ``x``, ``y``, ``train_mask``,
            ``val_mask``, ``test_mask`` (masks [N] or [N, splits]), ``edge_weight`` [E], ``edge_attr`` [E, D] or [E]. A
            ``HeteroData`` has them for each type, the last two none.
        split: which column of masks [N, splits].
        symmetrise: see `windrow.gnn.build.csc_from_edges`, with types `windrow.gnn.build.assemble_typed_graph`; PyG's
            own data sets are symmetric already.
        self_loops: see `windrow.gnn.build.csc_from_edges`.
        deduplicate: see `windrow.gnn.build.csc_from_edges`.
        task: what the labels mean.
        random_split: how a split is drawn where there are no masks; None for the defaults.
        split_seed: seed of that split.

    Raises:
        DataError: ``edge_index`` is missing or misshapen, some masks are missing, or a law is broken.
    """
    return _assemble(
        data,
        split,
        symmetrise=symmetrise,
        self_loops=self_loops,
        deduplicate=deduplicate,
        task=task,
        random_split_options=random_split,
        split_seed=split_seed,
    )


def _assemble(data: Any, split: int = 0, **options: Any) -> Graph:
    if hasattr(data, "edge_types"):
        data = _Typed({name: data[name] for name in data.node_types}, {edge: data[edge] for edge in data.edge_types})
    if isinstance(data, _Typed):
        return _assemble_typed(data, split, **options)
    sources, destinations = _ends(data)
    return assemble_graph(
        sources,
        destinations,
        _number(data),
        features=_tensor(data, "x"),
        labels=_tensor(data, "y"),
        split=_split_of(data, split),
        edge_weight=_tensor(data, "edge_weight"),
        edge_attr=_tensor(data, "edge_attr"),
        **options,
    )


def _assemble_typed(data: _Typed, split: int, **options: Any) -> Graph:
    vertices: dict[str, VertexRows] = {}
    edges: dict[EdgeType, tuple[Tensor, Tensor]] = {}
    for name, own in data.vertices.items():
        with _about(f"vertices of type {name!r}"):
            vertices[name] = VertexRows(_number(own), _tensor(own, "x"), _tensor(own, "y"), _split_of(own, split))
    for edge, own in data.edges.items():
        with _about(f"edges {edge_type_text(edge)}"):
            if any(_tensor(own, name) is not None for name in ("edge_weight", "edge_attr")):
                raise DataError("have weights or features, which edges of graphs with types have none of; delete them.")
            edges[edge] = _ends(own)
    return assemble_typed_graph(vertices, edges, **options)


@contextmanager
def _about(what: str) -> Iterator[None]:
    """Say in an error what it is about."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{what}: {error}") from error


def _ends(data: Any) -> tuple[Tensor, Tensor]:
    edge_index = _tensor(data, "edge_index")
    if edge_index is None or edge_index.dim() != 2 or edge_index.shape[0] != 2:
        found = "missing" if edge_index is None else f"of shape {tuple(edge_index.shape)}"
        raise DataError(f"edge_index is {found}; give edge_index [2, E].")
    return edge_index[0], edge_index[1]


def _number(data: Any) -> int:
    num_vertices = getattr(data, "num_nodes", None)
    if num_vertices is None:
        raise DataError("the number of vertices is unknown; set data.num_nodes.")
    return int(num_vertices)


def _tensor(data: Any, name: str) -> Tensor | None:
    value = getattr(data, name, None)
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if value is None:
        return None
    if not isinstance(value, Tensor):
        raise DataError(f"{name} is {type(value).__name__}: give a tensor")
    return value.cpu()


def _split_of(data: Any, split: int) -> VertexSplit | None:
    """The split that the masks tell, those of several columns by column `split`; None where there is none."""
    masks = {name: mask for name in MASKS if (mask := _tensor(data, name)) is not None}
    if masks and len(masks) < len(MASKS):
        raise DataError(f"of the masks {MASKS} the graph has only {list(masks)}; give all three or none.")
    for name, mask in masks.items():
        number = _number(data)
        is_mask = mask.dtype == torch.bool or bool(((mask == 0) | (mask == 1)).all())
        if mask.shape[:1] != (number,) or not is_mask:
            raise DataError(
                f"{name} is {mask.dtype} {list(mask.shape)}: give truth values, one for each of {number} vertices; of "
                "ids make a mask by torch.zeros(n, dtype=torch.bool).index_fill(0, ids, True)"
            )
        if mask.dim() > 1:
            if split >= mask.shape[1]:
                raise DataError(
                    f"split {split} was asked for, but {name} has {mask.shape[1]} columns; use a smaller one."
                )
            masks[name] = mask[:, split]
    return split_from_masks(*masks.values()) if masks else None
