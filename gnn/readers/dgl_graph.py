"""Graphs to and from DGL, the one place of this package that knows it."""

from typing import Any

import torch

from windrow.comm.errors import DataError
from windrow.gnn.build import SelfLoops, assemble_graph
from windrow.gnn.graph import Graph
from windrow.gnn.readers.options import GraphOptions
from windrow.gnn.vertex_data import MASKS, SplitOptions, TaskOption, split_from_named_masks

__all__ = ["graph_from_dgl", "read_dgl", "to_dgl"]


def graph_from_dgl(
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
            test_mask in its ``ndata``.
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
    return assemble_graph(
        sources.cpu(),
        destinations.cpu(),
        graph.num_nodes(),
        features=data.get("feat"),
        labels=data.get("label"),
        split=split_from_named_masks(data),
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
        raise DataError(
            f"{options.path}: DGL cannot read it ({error}); write it with dgl.save_graphs."
        ) from error
    if len(graphs) != 1:
        raise DataError(f"{options.path}: holds {len(graphs)} graphs; save the one to be read by itself.")
    return graph_from_dgl(
        graphs[0],
        symmetrise=options.symmetrise,
        self_loops=options.self_loops,
        deduplicate=True,
        task=options.task,
        random_split=options.random_split,
        split_seed=options.split_seed,
    )


def to_dgl(graph: Graph) -> Any:
    """Hand a graph to DGL: a ``dgl.DGLGraph`` with what there is of feat, label, train_mask, val_mask, test_mask."""
    import dgl

    eids = torch.empty(0, dtype=graph.indices.dtype)
    topology = (graph.indptr.to(graph.indices.dtype), graph.indices, eids)
    converted = dgl.graph(("csc", topology), num_nodes=graph.num_vertices)
    if graph.features is not None:
        converted.ndata["feat"] = graph.features
    if graph.labels is not None:
        converted.ndata["label"] = graph.labels
        for name, ids in zip(MASKS, (graph.train_ids, graph.validation_ids, graph.test_ids), strict=True):
            mask = torch.zeros(graph.num_vertices, dtype=torch.bool)
            mask[ids] = True
            converted.ndata[name] = mask
    return converted
