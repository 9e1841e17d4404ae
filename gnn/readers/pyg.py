"""Graphs from PyTorch Geometric's ``Data``, known by its attributes: the library need not be installed."""

from typing import Any

from torch import Tensor

from windrow.comm.errors import DataError
from windrow.gnn.build import SelfLoops, assemble_graph
from windrow.gnn.graph import Graph
from windrow.gnn.vertex_data import MASKS, SplitOptions, TaskOption, split_from_named_masks

__all__ = ["graph_from_pyg"]


def graph_from_pyg(
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
            ``val_mask``, ``test_mask`` (masks [N] or [N, splits]).
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
        split=split_from_named_masks(_masks(data, split)),
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
