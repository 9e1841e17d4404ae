"""METIS, as DGL 1.1.3 carries it: the one module of this package that imports DGL.

DGL's public `metis_partition_assignment` can give METIS one weight for each vertex type, and with
``balance_edges=True`` one in-degree weight for each type: six constraints where SALIENT++ asks for four. The
function below it takes any weights, so this module calls that one. Two things cannot be set through DGL: METIS's
imbalance tolerance (its default is 3 %) and its random seed. `windrow.partition.refine` sees to the tolerance, and
`metis_search` to the seed, by running METIS on several vertex orders.

Recursive bisection is used throughout: it balances several constraints better, and the k-way mode of this build was
seen to return different parts for the same graph in one process.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from windrow.comm.errors import DataError
from windrow.comm.random import Stream, hash_ids, stream_key
from windrow.partition.adjacency import Adjacency
from windrow.partition.adjacency_kernels import relabel
from windrow.partition.refine import excess, refine

__all__ = ["metis_assignment", "metis_search"]

METIS_FUNCTION = "_CAPI_DGLMetisPartition_Hetero"
LOG_OF_METIS = b"metis_partition_hetero.cc"
Assignment = npt.NDArray[np.int32]


def metis_assignment(graph: Adjacency, vertex_weights: npt.NDArray[np.int32], num_parts: int) -> Assignment:
    """Run METIS's multilevel recursive bisection once.

    Args:
        graph: undirected graph of N vertices; METIS is not given its edge weights.
        vertex_weights: int32 [N, C].
        num_parts: number of parts, at least 2.

    Returns:
        int32 [N], each vertex's part; a pure function of the arguments.

    Raises:
        DataError: DGL is absent or another version, or METIS failed.
    """
    dgl = _dgl()
    indptr, indices = torch.from_numpy(graph.indptr), torch.from_numpy(graph.indices.astype(np.int64))
    undirected = dgl.graph(("csc", (indptr, indices, torch.empty(0, dtype=torch.int64))))
    weights = dgl.backend.to_dgl_nd(torch.from_numpy(vertex_weights.astype(np.int64).reshape(-1)))
    run_metis = getattr(dgl.partition, METIS_FUNCTION)
    minimise_cut = True
    with _without_log_line(LOG_OF_METIS):
        parts = run_metis(undirected._graph, num_parts, weights, "recursive", minimise_cut)  # noqa: SLF001
    if len(parts) != graph.num_vertices:
        raise DataError(
            f"METIS failed on {graph.num_vertices} vertices and {len(graph.indices)} edges in {num_parts} parts, "
            'most likely for want of memory; use method = "fennel"'
        )
    return np.asarray(dgl.utils.toindex(parts).tonumpy(), np.int32)


def metis_search(
    graph: Adjacency,
    vertex_weights: npt.NDArray[np.int32],
    num_parts: int,
    *,
    imbalance: float,
    seed: int,
    restarts: int = 4,
    refine_cycles: int = 4,
    progress: Callable[[str, float], None] | None = None,
) -> Assignment:
    """Run METIS on several vertex orders, refine each result, and combine them into one better than all.

    The first run takes the vertices in the given order, the others shuffled. Results are ranked by (excess, cut);
    then the best is combined with each of the others (`refine` with ``other``).

    Args:
        graph: undirected graph of N vertices.
        vertex_weights: int32 [N, C].
        num_parts: number of parts.
        imbalance: tolerated excess over the mean weight of a part, 0.05 for 5 %.
        seed: of the vertex orders and of the refinement; equal seeds give equal results.
        restarts: METIS runs.
        refine_cycles: V-cycles of each refinement; 0 takes the best plain METIS result.
        progress: called with a stage name and the share done of the whole search, 0 to 1.

    Returns:
        int32 [N], each vertex's part.
    """
    def cost(candidate: Assignment) -> tuple[float, int]:
        return round(excess(vertex_weights, candidate, num_parts, imbalance), 9), graph.cut(candidate)

    steps = 2 * restarts - 1 if refine_cycles else restarts
    found = []
    for restart in range(restarts):
        candidate = _shuffled_run(graph, vertex_weights, num_parts, seed, restart)
        if refine_cycles:
            candidate = refine(
                graph, candidate, vertex_weights, num_parts, imbalance=imbalance, seed=seed + restart,
                cycles=refine_cycles,
            )  # fmt: skip
        found.append((cost(candidate), restart, candidate))
        _report(progress, "METIS and refinement", (restart + 1) / steps)
    found.sort(key=lambda item: item[:2])
    best = found[0][2]
    for number, (_, restart, other) in enumerate(found[1:]):
        if refine_cycles:
            best = refine(
                graph, best, vertex_weights, num_parts, imbalance=imbalance, seed=seed + restart,
                cycles=refine_cycles, other=other,
            )  # fmt: skip
            _report(progress, "combining partitions", (restarts + number + 1) / steps)
    return best


def _report(progress: Callable[[str, float], None] | None, stage: str, share: float) -> None:
    if progress is not None:
        progress(stage, share)


def _shuffled_run(
    graph: Adjacency, vertex_weights: npt.NDArray[np.int32], num_parts: int, seed: int, restart: int
) -> Assignment:
    if restart == 0:
        return metis_assignment(graph, vertex_weights, num_parts)
    vertices = np.arange(graph.num_vertices)
    order = np.argsort(hash_ids(stream_key(seed, Stream.PARTITION, restart), vertices), kind="stable")
    place = np.empty_like(order)
    place[order] = vertices
    indptr, indices = relabel(graph.indptr, graph.indices, order, place)
    shuffled = Adjacency(indptr=indptr, indices=indices, edge_weights=graph.edge_weights)
    return metis_assignment(shuffled, vertex_weights[order], num_parts)[place]


def _dgl() -> Any:
    """DGL, checked to hold METIS; DGL has no type information."""
    try:
        import dgl
        import dgl.partition
    except ImportError as error:
        raise DataError(
            f'METIS comes with DGL, which cannot be imported ({error}); install dgl==1.1.3 or use method = "fennel"'
        ) from error
    if not hasattr(dgl.partition, METIS_FUNCTION):
        raise DataError(f'DGL {dgl.__version__} has no METIS; install dgl==1.1.3 or use method = "fennel"')
    return dgl


@contextlib.contextmanager
def _without_log_line(marker: bytes) -> Iterator[None]:
    """Hold back what native code writes to standard error, then write it out without the lines of one source."""
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            held.seek(0)
            for line in held:
                if marker not in line:
                    os.write(2, line)
