"""Split a graph: one function for all methods."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError
from windrow.partition.adjacency import symmetric_adjacency
from windrow.partition.constraints import (
    SALIENT_CONSTRAINTS,
    vertex_roles,
    vertex_weights,
)
from windrow.partition.metis import metis_search
from windrow.partition.options import Method, PartitionOptions
from windrow.partition.random_parts import random_assignment
from windrow.partition.repair import check_members, ensure_members
from windrow.partition.streaming import fennel_assignment

__all__ = ["partition_graph", "partition_with_options"]

Progress = Callable[[str, float], None]


def partition_graph(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.integer],
    num_parts: int,
    *,
    method: Method = "metis",
    train_ids: npt.NDArray[np.integer] | None = None,
    validation_ids: npt.NDArray[np.integer] | None = None,
    seed: int = 0,
    imbalance: float = 0.03,
    balance: Sequence[str] = SALIENT_CONSTRAINTS,
    restarts: int = 4,
    refine_cycles: int = 4,
    stream_passes: int = 5,
    progress: Progress | None = None,
) -> npt.NDArray[np.int32]:
    """Split a graph into parts; the keywords are fields of `PartitionOptions`.

    Args:
        indptr: int64 [N + 1] of the graph in CSC form: v's in-neighbours are ``indices[indptr[v]:indptr[v + 1]]``.
        indices: int32 or int64 [E].
        num_parts: number of parts.
        method: "metis", "fennel" or "random".
        train_ids: integer [T]; every part gets at least one of them.
        validation_ids: integer [V].
        seed: equal arguments and seed give equal parts.
        imbalance: tolerated excess of a part over the mean in each constraint; `measure_quality` says what was reached.
        balance: names out of `windrow.partition.constraints.CONSTRAINTS`.
        restarts: METIS runs to combine.
        refine_cycles: V-cycles of each refinement of a METIS result.
        stream_passes: passes of Fennel.
        progress: called with a stage name and the share done, 0 to 1.

    Returns:
        int32 [N], each vertex's part; no part is empty.

    Raises:
        RecipeError: an option is out of range.
        DataError: fewer vertices or training vertices than parts, broken CSC arrays, ids out of range, no METIS.
    """
    options = PartitionOptions(
        num_parts=num_parts, method=method, balance=tuple(balance), imbalance=imbalance, seed=seed,
        restarts=restarts, refine_cycles=refine_cycles, stream_passes=stream_passes,
    )  # fmt: skip
    return partition_with_options(
        indptr, indices, options, train_ids=train_ids, validation_ids=validation_ids, progress=progress
    )


def partition_with_options(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.integer],
    options: PartitionOptions,
    *,
    train_ids: npt.NDArray[np.integer] | None = None,
    validation_ids: npt.NDArray[np.integer] | None = None,
    progress: Progress | None = None,
) -> npt.NDArray[np.int32]:
    """`partition_graph` with the options in one object, as a recipe holds them.

    Args:
        indptr: int64 [N + 1], CSC.
        indices: int32 or int64 [E].
        options: how to split.
        train_ids: integer [T]; every part gets at least one of them.
        validation_ids: integer [V].
        progress: called with a stage name and the share done, 0 to 1.

    Returns:
        int32 [N], each vertex's part; no part is empty.

    Raises:
        DataError: as `partition_graph`.
    """
    _check_csc(indptr, indices)
    num_parts = options.num_parts
    constraints = vertex_weights(
        indptr, train_ids=train_ids, validation_ids=validation_ids, balance=options.balance
    )
    check_members(len(indptr) - 1, num_parts, train_ids=train_ids)
    if num_parts == 1:
        assignment = np.zeros(len(indptr) - 1, np.int32)
    elif options.method == "random":
        roles = vertex_roles(len(indptr) - 1, train_ids, validation_ids)
        assignment = random_assignment(roles, num_parts, seed=options.seed)
    elif options.method == "fennel":
        assignment = fennel_assignment(
            indptr, indices, constraints.weights, num_parts,
            imbalance=options.imbalance, passes=options.stream_passes, progress=progress,
        )  # fmt: skip
    else:
        assignment = metis_search(
            symmetric_adjacency(indptr, indices), constraints.weights, num_parts,
            imbalance=options.imbalance, seed=options.seed, restarts=options.restarts,
            refine_cycles=options.refine_cycles, progress=progress,
        )  # fmt: skip
    return ensure_members(indptr, indices, assignment, num_parts, train_ids=train_ids)


def _check_csc(indptr: npt.NDArray[np.int64], indices: npt.NDArray[np.integer]) -> None:
    if len(indptr) < 2:
        raise DataError("the graph has no vertices: check the file that it was read from")
    if indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        raise DataError(
            f"indptr must rise from 0 to the number of edges, {len(indices)}; it runs from {indptr[0]} to {indptr[-1]}"
            ": build the graph again from its edge list"
        )
    if len(indices) and (indices.min() < 0 or indices.max() >= len(indptr) - 1):
        raise DataError(
            f"neighbour ids run from {indices.min()} to {indices.max()}, expected [0, {len(indptr) - 1}): "
            "build the graph again from its edge list"
        )
