"""The graphs that several benchmarks measure on: a real social network, and a larger generated one."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from windrow.gnn.build import csc_from_edges
from windrow.gnn.synthetic import power_law_graph

__all__ = ["EGO_TWITTER", "POWER_LAW", "load_topology", "save_topology"]

EGO_TWITTER = "ego_twitter"
"""SNAP's ego-Twitter, 81,306 vertices, made undirected; a data set that must lie in a folder."""

POWER_LAW = "power_law"
"""Generated."""

POWER_LAW_VERTICES = 1_000_000
POWER_LAW_EDGES = 20_000_000
SEED = 7


def save_topology(name: str, data: Path, folder: Path) -> Path | None:
    """Write a graph's topology for the processes that measure.

    Args:
        name: `EGO_TWITTER` or `POWER_LAW`.
        data: folder that holds ``graphs/ego_twitter.npz``, an archive with the list ``edges`` [E, 2].
        folder: where to write.

    Returns:
        The file, for `load_topology`; None where the data set is not there.
    """
    path = folder / f"{name}.npz"
    if name == POWER_LAW:
        graph = power_law_graph(POWER_LAW_VERTICES, POWER_LAW_EDGES, seed=SEED)
        indptr, indices = graph.indptr, graph.indices
    else:
        source = data / "graphs" / f"{name}.npz"
        if not source.is_file():
            return None
        with np.load(source, allow_pickle=False) as archive:
            edges = archive["edges"] - 1  # the file counts from 1
        indptr, indices = csc_from_edges(edges[:, 0], edges[:, 1], int(edges.max()) + 1, symmetrise=True)
    np.savez(path, indptr=indptr.numpy(), indices=indices.numpy())
    return path


def load_topology(path: Path) -> tuple[Tensor, Tensor]:
    """Read what `save_topology` wrote.

    Args:
        path: the file.

    Returns:
        ``indptr`` int64 [N + 1] and ``indices`` [E] of the graph's CSC form.
    """
    with np.load(path, allow_pickle=False) as arrays:
        return torch.from_numpy(arrays["indptr"]), torch.from_numpy(arrays["indices"])
