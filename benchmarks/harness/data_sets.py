"""Data sets that several benchmarks measure on: two graphs, and shopping sessions as a log of samples.

The graphs are a real social network and a larger generated one. Of Diginetica (CIKM Cup 2016) every prefix of a session
is a sample::

    session 3:  items 17 4 4 99          time   history     item
                                      0     [17]        4
                                      1     [17 4]      4
                                      2     [17 4 4]    99
"""

from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.harness.power_law import power_law_graph
from windrow.comm.numpy_files import integer_row, load_arrays
from windrow.gnn.build import csc_from_edges, edges_of
from windrow.gnn.graph import Graph
from windrow.gnn.readers.libraries import MASKS

__all__ = [
    "DIGINETICA",
    "EGO_TWITTER",
    "POWER_LAW",
    "data_option",
    "interleaved",
    "load_topology",
    "prefix_samples",
    "read_sessions",
    "save_topology",
    "to_dgl",
    "to_hetero_data",
]

EGO_TWITTER = "ego_twitter"
"""SNAP's ego-Twitter, 81,306 vertices, made undirected; a data set that must lie in a folder."""

POWER_LAW = "power_law"
"""Generated."""

POWER_LAW_VERTICES = 1_000_000
POWER_LAW_EDGES = 20_000_000
POWER_LAW_SEED = 7


def save_topology(name: str, data: Path, folder: Path) -> Path | None:
    """Write the topology of `EGO_TWITTER` or `POWER_LAW` into a folder, for the processes that measure.

    Args:
        name: one of both.
        data: folder that holds ``graphs/ego_twitter.npz``, an archive with the list ``edges`` [E, 2].
        folder: where to write.

    Returns:
        The file, for `load_topology`; None where the data set is not there.
    """
    path = folder / f"{name}.npz"
    if name == POWER_LAW:
        graph = power_law_graph(POWER_LAW_VERTICES, POWER_LAW_EDGES, seed=POWER_LAW_SEED)
        indptr, indices = graph.indptr, graph.indices
    else:
        source = data / "graphs" / f"{name}.npz"
        if not source.is_file():
            return None
        with np.load(source, allow_pickle=False) as archive:
            edges = archive["edges"] - 1  # the file counts from 1
        indptr, indices, _ = csc_from_edges(edges[:, 0], edges[:, 1], int(edges.max()) + 1, symmetrise=True)
    np.savez(path, indptr=indptr.numpy(), indices=indices.numpy())
    return path


def load_topology(path: Path) -> tuple[Tensor, Tensor]:
    """Read what `save_topology` wrote: ``indptr`` int64 [N + 1] and ``indices`` [E] of the graph's CSC form."""
    with np.load(path, allow_pickle=False) as arrays:
        return torch.from_numpy(arrays["indptr"]), torch.from_numpy(arrays["indices"])


DIGINETICA = "sessions_diginetica.npz"
"""Name of the file: `train_items` [clicks], one session behind the other, and `train_offsets` [sessions + 1]."""

INTERLEAVING_SEED = 0


def read_sessions(path: Path) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Read the training sessions: items [clicks], and where each session begins [sessions + 1].

    Raises:
        DataError: the file cannot be read, or has other arrays.
    """
    arrays = load_arrays(path)
    return integer_row(path, arrays, "train_items"), integer_row(path, arrays, "train_offsets")


def prefix_samples(
    items: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], *, max_sessions: int | None = None
) -> Any:
    """Make samples of the first `max_sessions` sessions (None: all), session by session.

    Returns:
        ``pyarrow.Table``: `label` int8, always 1; `session` int64, its number; `time` int64, place in the session;
        `history` lists of int64, the items before; `item` int64, the one that follows. A session of n items gives
        n - 1 samples.
    """
    import pyarrow as pa

    offsets = offsets[: None if max_sessions is None else max_sessions + 1]
    lengths = np.diff(offsets)
    samples = np.maximum(lengths - 1, 0)
    sessions = np.repeat(np.arange(lengths.size), samples)
    places = np.arange(sessions.size) - np.repeat(np.cumsum(samples) - samples, samples)
    starts = offsets[:-1][sessions]
    ends = np.concatenate([[0], np.cumsum(places + 1)])
    within = np.arange(ends[-1]) - np.repeat(ends[:-1], places + 1)
    history = pa.ListArray.from_arrays(
        pa.array(ends.astype(np.int32)), pa.array(items[np.repeat(starts, places + 1) + within])
    )
    return pa.table(
        {
            "label": np.ones(sessions.size, np.int8),
            "session": sessions,
            "time": places,
            "history": history,
            "item": items[starts + places + 1],
        }
    )


def interleaved(samples: Any, *, concurrent_sessions: int = 10_000) -> Any:
    """Samples in the order of a log that many sessions write at once; the file keeps no times of day.

    Sessions begin one after the other, and each lasts as long as it takes so many to begin.
    """
    sessions, places = (samples[name].to_numpy() for name in ("session", "time"))
    moments = (places + np.random.default_rng(INTERLEAVING_SEED).random(places.size)) / np.bincount(sessions)[sessions]
    return samples.take(np.argsort(sessions + concurrent_sessions * moments, kind="stable"))


def data_option(holds: str, folder: str = "") -> Callable[[ArgumentParser], None]:
    """What adds the option ``--data``, a folder, to a benchmark.

    Args:
        holds: what is in it, for the help.
        folder: where it is if nobody says so, below the folder of real data sets beside the checkout.
    """

    def add(parser: ArgumentParser) -> None:
        default = Path(__file__).resolve().parents[3] / "shared" / "data" / folder
        parser.add_argument("--data", type=Path, default=default, help=f"folder that holds {holds}")

    return add


def to_dgl(graph: Graph) -> Any:
    """Hand a graph to DGL: a ``dgl.DGLGraph`` with what there is of the names in `windrow.gnn.from_dgl`."""
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


def to_hetero_data(graph: Graph) -> Any:
    """Hand a graph with types to PyTorch Geometric: a ``HeteroData`` with the names of `windrow.gnn.from_pyg`."""
    from torch_geometric.data import HeteroData

    assert graph.types is not None
    assert graph.edge_type is not None
    data = HeteroData()
    for name, of_type in graph.types.vertices.items():
        first, last = graph.types.range_of(name)
        data[name].num_nodes = of_type.number
        if graph.features is not None and of_type.columns:
            data[name].x = graph.features[first:last, : of_type.columns]
        if graph.labels is not None and first <= int(graph.train_ids[0]) < last:
            data[name].y = graph.labels[first:last]
            for mask, ids in zip(MASKS, (graph.train_ids, graph.validation_ids, graph.test_ids), strict=True):
                data[name][mask] = torch.isin(torch.arange(first, last), ids)
    sources, destinations = edges_of(graph.indptr, graph.indices)
    for number, (edge, ends) in enumerate(zip(graph.types.edges, graph.types.ends, strict=True)):
        chosen = graph.edge_type == number
        source, destination = (int(graph.types.offsets[end]) for end in ends)
        data[edge].edge_index = torch.stack([sources[chosen] - source, destinations[chosen] - destination]).long()
    return data
