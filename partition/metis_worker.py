"""Runs METIS, as DGL 1.1.3 carries it, in a process of its own: the one module of this package that imports DGL.

    python -P -m windrow.partition.metis_worker FOLDER NUM_PARTS SEED RESTARTS

reads indptr.npy, indices.npy and vertex_weights.npy from FOLDER, writes run-0.npy, run-1.npy, ... there and says
"finished 0", "finished 1", ... on standard output. `windrow.partition.metis` starts it. The reasons for a process:

* METIS in this build depends on what the process did before: the same graph was seen to get different parts in one
  process, and the same in every fresh one. Here the history is always the same, so results are reproducible.
* Short of memory METIS ends its process, and it may write temporary files into the working directory.
* Its log lines stay out of the caller's standard error.

DGL's public `metis_partition_assignment` gives METIS one weight for each vertex type and, with ``balance_edges``,
one in-degree weight for each type: six constraints where SALIENT++ has four. The function below it takes any
weights, so this module calls that one; pymetis 2025.2 takes one weight for each vertex. METIS's tolerance (its
default, 3 %) and seed cannot be set through DGL: `windrow.partition.refine` sees to the tolerance, and the vertex order
takes the place of the seed.
"""

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from windrow.comm.random import Stream, hash_ids, stream_key
from windrow.partition.graph_kernels import relabel

__all__ = ["METIS_FUNCTION", "main", "run_metis"]

METIS_FUNCTION = "_CAPI_DGLMetisPartition_Hetero"
MODES = ("recursive", "k-way")
"""Runs take turns: recursive bisection balances several constraints better, k-way often cuts less."""

Array = npt.NDArray[np.int64]


def run_metis(
    indptr: Array, indices: npt.NDArray[np.integer], vertex_weights: npt.NDArray[np.int32], num_parts: int, mode: str
) -> npt.NDArray[np.int32]:
    """Run METIS once in this process, "recursive" or "k-way", on an undirected graph: int32 [N], each vertex's part.

    Raises:
        RuntimeError: METIS failed or DGL has none.
    """
    import dgl
    import dgl.partition

    metis = getattr(dgl.partition, METIS_FUNCTION, None)
    if metis is None:
        raise RuntimeError(f"DGL {dgl.__version__} has no METIS; install dgl==1.1.3")
    neighbours = torch.from_numpy(indices.astype(np.int64))
    graph = dgl.graph(("csc", (torch.from_numpy(indptr), neighbours, torch.empty(0, dtype=torch.int64))))
    weights = dgl.backend.to_dgl_nd(torch.from_numpy(vertex_weights.astype(np.int64).reshape(-1)))
    minimise_cut = True
    parts = metis(graph._graph, num_parts, weights, mode, minimise_cut)  # noqa: SLF001
    if len(parts) != len(indptr) - 1:
        raise RuntimeError("METIS failed, most likely for want of memory")
    return np.asarray(dgl.utils.toindex(parts).tonumpy(), np.int32)


def _shuffle(num_vertices: int, seed: int, restart: int) -> Array:
    """The vertex order of one run: the first keeps the user's."""
    vertices = np.arange(num_vertices)
    if restart == 0:
        return vertices
    return np.argsort(hash_ids(stream_key(seed, Stream.PARTITION, restart), vertices), kind="stable")


def main(folder: Path, num_parts: int, seed: int, restarts: int) -> None:
    """Run METIS on several vertex orders; see the module's text for what is read and written."""
    indptr, indices, vertex_weights = (
        np.load(folder / f"{name}.npy", allow_pickle=False) for name in ("indptr", "indices", "vertex_weights")
    )
    for restart in range(restarts):
        order = _shuffle(len(indptr) - 1, seed, restart)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        shuffled = relabel(indptr, indices, order, place)
        parts = run_metis(*shuffled, vertex_weights[order], num_parts, MODES[restart % len(MODES)])
        np.save(folder / f"run-{restart}.npy", parts[place])
        sys.stdout.write(f"finished {restart}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
