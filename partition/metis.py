"""METIS partitions: several runs, each refined, combined into one that is better than all of them.

METIS is that of DGL 1.1.3, and runs in a process of its own::

    python -P -m windrow.partition.metis FOLDER NUM_PARTS SEED RESTARTS

reads indptr.npy, indices.npy and vertex_weights.npy from FOLDER, writes run-0.npy, run-1.npy, ... there and says
"finished 0", "finished 1", ... on standard output. The reasons for a process:

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

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from windrow.comm.errors import DataError
from windrow.comm.random import Stream, hash_ids, stream_key
from windrow.partition.graph_kernels import relabel
from windrow.partition.options import PartitionOptions
from windrow.partition.refine import Adjacency, badness, refine

__all__ = ["metis_runs", "metis_search"]

WORKER = "windrow.partition.metis"
SHOWN_ERROR_CHARACTERS = 2000
METIS_FUNCTION = "_CAPI_DGLMetisPartition_Hetero"
MODES = ("recursive", "k-way")
"""Runs take turns: recursive bisection balances several constraints better, k-way often cuts less."""

Assignment = npt.NDArray[np.int32]
Array = npt.NDArray[np.int64]


def metis_search(
    graph: Adjacency,
    vertex_weights: npt.NDArray[np.int32],
    options: PartitionOptions,
    progress: Callable[[str, float], None] | None = None,
) -> Assignment:
    """Run METIS on several vertex orders, refine each result, and combine them into one better than all.

    Results are ranked by `badness`; then the best is combined with each of the others (`refine` with ``other``).
    METIS runs ahead in its own process while results are refined here. It is not given the edge weights of the graph.

    The seed of the options is that of the vertex orders and of the refinement; equal seeds give equal results.
    `progress` is called with a stage name and the share done of the whole search, 0 to 1.

    Raises:
        DataError: DGL is absent or of another version, or METIS failed.
    """
    num_parts, imbalance, restarts = options.num_parts, options.imbalance, options.restarts

    def refined(candidate: Assignment, restart: int, other: Assignment | None = None) -> Assignment:
        return refine(
            graph, candidate, vertex_weights, num_parts,
            imbalance=imbalance, seed=options.seed + restart, cycles=options.refine_cycles, other=other,
        )  # fmt: skip

    def report(stage: str, steps_done: int) -> None:
        if progress is not None:
            progress(stage, steps_done / (2 * restarts - 1))

    found: list[tuple[tuple[float, int], int, Assignment]] = []
    for restart, candidate in enumerate(metis_runs(graph, vertex_weights, options)):
        improved = refined(candidate, restart)
        found.append((badness(graph, vertex_weights, improved, num_parts, imbalance), restart, improved))
        report("METIS and refinement", restart + 1)
    found.sort(key=lambda item: item[:2])
    best = found[0][2]
    for number, (_, restart, other) in enumerate(found[1:]):
        best = refined(best, restart, other)
        report("combining partitions", restarts + number + 1)
    return best


def metis_runs(
    graph: Adjacency, vertex_weights: npt.NDArray[np.int32], options: PartitionOptions
) -> Iterator[Assignment]:
    """Run METIS in a process of its own, on several vertex orders.

    Yields int32 [N] for each run, each vertex's part; a pure function of the arguments.

    Raises:
        DataError: DGL is absent or of another version, or METIS failed.
    """
    if importlib.util.find_spec("dgl") is None:
        raise DataError('METIS comes with DGL, which is not installed: install dgl==1.1.3 or use method = "fennel"')
    with tempfile.TemporaryDirectory(prefix="windrow-metis-") as name:
        folder = Path(name)
        np.save(folder / "indptr.npy", graph.indptr)
        np.save(folder / "indices.npy", graph.indices)
        np.save(folder / "vertex_weights.npy", vertex_weights)
        command = [sys.executable, "-P", "-m", WORKER, name]
        command += map(str, (options.num_parts, options.seed, options.restarts))
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        with (
            (folder / "log.txt").open("wb") as log,
            subprocess.Popen(
                command, cwd=name, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
            ) as process,
        ):
            assert process.stdout is not None
            try:
                for run in range(options.restarts):
                    if not any(line == b"finished %d\n" % run for line in process.stdout):
                        raise DataError(
                            f"METIS failed on {graph.num_vertices} vertices and {len(graph.indices)} stored edges in "
                            f'{options.num_parts} parts; install dgl==1.1.3, or use method = "fennel". METIS said:\n'
                            + (folder / "log.txt").read_text(errors="replace")[-SHOWN_ERROR_CHARACTERS:]
                        )
                    yield np.load(folder / f"run-{run}.npy", allow_pickle=False)
            finally:
                process.kill()


def _run_metis(
    indptr: Array, indices: npt.NDArray[np.integer], vertex_weights: npt.NDArray[np.int32], num_parts: int, mode: str
) -> Assignment:
    """Run METIS once in this process, "recursive" or "k-way", on an undirected graph."""
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


def _work(folder: Path, num_parts: int, seed: int, restarts: int) -> None:
    """Run METIS on several vertex orders, of which the first is the user's."""
    indptr, indices, vertex_weights = (
        np.load(folder / f"{name}.npy", allow_pickle=False) for name in ("indptr", "indices", "vertex_weights")
    )
    order = vertices = np.arange(len(indptr) - 1)
    for restart in range(restarts):
        if restart:
            order = np.argsort(hash_ids(stream_key(seed, Stream.PARTITION, restart), vertices), kind="stable")
        place = np.empty_like(order)
        place[order] = vertices
        shuffled = relabel(indptr, indices, order, place)
        parts = _run_metis(*shuffled, vertex_weights[order], num_parts, MODES[restart % len(MODES)])
        np.save(folder / f"run-{restart}.npy", parts[place])
        sys.stdout.write(f"finished {restart}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _work(Path(sys.argv[1]), *map(int, sys.argv[2:]))
