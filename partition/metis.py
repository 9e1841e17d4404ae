"""METIS partitions: several runs, each refined, combined into one that is better than all of them."""

import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError
from windrow.partition.refine import Adjacency, badness, refine

__all__ = ["metis_runs", "metis_search"]

WORKER = "windrow.partition.metis_worker"
SHOWN_ERROR_CHARACTERS = 2000
Assignment = npt.NDArray[np.int32]


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

    Results are ranked by `badness`; then the best is combined with each of the others (`refine` with ``other``).
    METIS runs ahead in its own process while results are refined here. It is not given the edge weights of the graph.

    `seed` is that of the vertex orders and of the refinement; equal seeds give equal results. See `PartitionOptions`
    for `imbalance`, `restarts` and `refine_cycles`; with 0 cycles the best plain METIS result is taken. `progress` is
    called with a stage name and the share done of the whole search, 0 to 1.

    Raises:
        DataError: DGL is absent or of another version, or METIS failed.
    """

    def refined(candidate: Assignment, restart: int, other: Assignment | None = None) -> Assignment:
        if refine_cycles == 0:
            return candidate
        return refine(
            graph, candidate, vertex_weights, num_parts,
            imbalance=imbalance, seed=seed + restart, cycles=refine_cycles, other=other,
        )  # fmt: skip

    def report(stage: str, steps_done: int) -> None:
        if progress is not None:
            progress(stage, steps_done / (2 * restarts - 1))

    found: list[tuple[tuple[float, int], int, Assignment]] = []
    runs = metis_runs(graph, vertex_weights, num_parts, seed=seed, restarts=restarts)
    for restart, candidate in enumerate(runs):
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
    graph: Adjacency, vertex_weights: npt.NDArray[np.int32], num_parts: int, *, seed: int, restarts: int
) -> Iterator[Assignment]:
    """Run METIS in a process of its own, on several vertex orders; see `windrow.partition.metis_worker` for why.

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
        with _worker(folder, num_parts, seed, restarts) as finished:
            for run in range(restarts):
                if not finished(run):
                    raise DataError(
                        f"METIS failed on {graph.num_vertices} vertices and {len(graph.indices)} stored edges in "
                        f'{num_parts} parts; install dgl==1.1.3, or use method = "fennel". METIS said:\n'
                        + (folder / "log.txt").read_text(errors="replace")[-SHOWN_ERROR_CHARACTERS:]
                    )
                yield np.load(folder / f"run-{run}.npy", allow_pickle=False)


@contextlib.contextmanager
def _worker(folder: Path, num_parts: int, seed: int, restarts: int) -> Iterator[Callable[[int], bool]]:
    """Start the worker; yields a function that waits for one run and says whether it succeeded."""
    command = [sys.executable, "-P", "-m", WORKER, str(folder), *map(str, (num_parts, seed, restarts))]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    with (
        (folder / "log.txt").open("wb") as log,
        subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
        ) as process,
    ):
        assert process.stdout is not None
        lines = process.stdout

        def finished(run: int) -> bool:
            return any(line == b"finished %d\n" % run for line in lines)

        try:
            yield finished
        finally:
            process.kill()
