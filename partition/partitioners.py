"""Split a graph: one function for all methods, and the methods random and streaming (Fennel).

Random is the baseline, and the choice for graphs without structure. Streaming is for graphs that METIS cannot hold: it
takes memory of 4 bytes for each vertex and constraint. METIS is in `windrow.partition.metis`.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from windrow.comm.errors import DataError
from windrow.comm.random import Stream, hash_ids, stream_key
from windrow.partition.balance_kernels import stream_once
from windrow.partition.constraints import check_members, ensure_members, stack_weights, vertex_roles, vertex_weights
from windrow.partition.metis import metis_search
from windrow.partition.options import PartitionOptions
from windrow.partition.refine import balance_limits, symmetric_adjacency

if TYPE_CHECKING:
    from windrow.comm.world import World

__all__ = ["METHODS_ON_RANKS", "partition_graph", "partition_on_ranks"]

METHODS_ON_RANKS = ("fennel", "random")
"""Of `partition_on_ranks`: METIS needs the whole graph in one process."""

Progress = Callable[[str, float], None]


def partition_graph(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.integer],
    options: PartitionOptions,
    *,
    train_ids: npt.NDArray[np.integer] | None = None,
    validation_ids: npt.NDArray[np.integer] | None = None,
    progress: Progress | None = None,
) -> npt.NDArray[np.int32]:
    """Split a graph into parts.

    Args:
        indptr: int64 [N + 1] of the graph in CSC form: v's in-neighbours are ``indices[indptr[v]:indptr[v + 1]]``.
        indices: int32 or int64 [E].
        options: how to split; equal arguments and seed give equal parts. `measure_quality` says what was reached.
        train_ids: integer [T]; every part gets at least one of them.
        validation_ids: integer [V].
        progress: called with a stage name and the share done, 0 to 1.

    Returns:
        int32 [N], each vertex's part; no part is empty.

    Raises:
        DataError: fewer vertices or training vertices than parts, broken CSC arrays, ids out of range, no METIS.
    """
    _check_csc(indptr, indices)
    num_vertices, num_parts = len(indptr) - 1, options.num_parts
    weights = vertex_weights(indptr, train_ids=train_ids, validation_ids=validation_ids, balance=options.balance)
    columns = stack_weights(weights, list(weights))
    check_members(num_vertices, num_parts, num_training=None if train_ids is None else len(np.unique(train_ids)))
    if num_parts == 1:
        assignment = np.zeros(num_vertices, np.int32)
    elif options.method == "random":
        roles = vertex_roles(num_vertices, train_ids, validation_ids)
        assignment = _random_assignment(roles, num_parts, seed=options.seed)
    elif options.method == "fennel":
        assignment = _fennel_assignment(indptr, indices, columns, options, progress)
    else:
        assignment = metis_search(symmetric_adjacency(indptr, indices), columns, options, progress)
    return ensure_members(indptr, indices, assignment, num_parts, train_ids=train_ids)


def partition_on_ranks(
    world: "World",
    bounds: Sequence[int],
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.integer],
    options: PartitionOptions,
    *,
    train_ids: npt.NDArray[np.integer],
    validation_ids: npt.NDArray[np.integer],
    progress: Progress | None = None,
) -> npt.NDArray[np.int32]:
    """Split a graph of which each rank has the lists of consecutive vertices. Collective.

    "random" gives the parts of `partition_graph`, and so does "fennel" on one rank. On several each places its own
    vertices, and they tell one another where after every fiftieth of them: see `_fennel_assignment`.

    Args:
        world: whose ranks have the lists.
        bounds: [size + 1], rank r has those of vertices bounds[r] .. bounds[r + 1] - 1; must agree.
        indptr: int64 [own + 1], where they begin.
        indices: int32 or int64 [own edges], ids of the whole graph, checked.
        options: how to split; must agree.
        train_ids: integer, own vertices as they are counted in `indptr`.
        validation_ids: likewise.
        progress: called with a stage name and the share done, 0 to 1.

    Returns:
        int32 [N], the part of each vertex of the graph, the same on all ranks.

    Raises:
        DataError: fewer vertices or training vertices than parts, or a part got none of them.

    Cost: memory of 4 N bytes, "random" 41 N, and for each own vertex 12 bytes a constraint; on the wire, from each rank
    to each, 4 bytes for each of its vertices a pass.
    """
    num_vertices, num_parts = bounds[-1], options.num_parts
    own = slice(bounds[world.rank], bounds[world.rank + 1])
    counts = _summed(world, np.array([len(indices), len(train_ids)]))
    num_edges, num_training = counts.tolist()
    check_members(num_vertices, num_parts, num_training=num_training or None)
    if options.method == "random":
        roles = torch.from_numpy(vertex_roles(own.stop - own.start, train_ids, validation_ids))
        everyone = torch.cat(world.all_gather(roles, stage="partition")).numpy()
        assignment = _random_assignment(everyone, num_parts, seed=options.seed)
    elif num_parts == 1:
        assignment = np.zeros(num_vertices, np.int32)
    else:
        mine = vertex_weights(indptr, train_ids=train_ids, validation_ids=validation_ids, balance=options.balance)
        weighs = {name for some in world.all_gather_object(list(mine), stage="partition") for name in some}
        names = [name for name in options.balance if name in weighs] or ["vertices"]
        columns = stack_weights(mine, names)
        assignment = _fennel_assignment(
            indptr, indices, columns, options, progress, world=world, bounds=bounds, num_edges=num_edges
        )
    members = assignment[own][train_ids] if num_training else assignment[own]
    lacking = np.flatnonzero(_summed(world, np.bincount(members, minlength=num_parts)) == 0)
    if len(lacking):
        raise DataError(
            f"part {lacking[0]} of {num_parts} has got no {'training ' if num_training else ''}vertices: use fewer "
            "parts, or one process, which gives it some"
        )
    return assignment


def _summed(world: "World", counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Counts added up over all ranks. Collective."""
    total: npt.NDArray[np.int64] = world.all_reduce(torch.from_numpy(counts.copy()), stage="partition").numpy()
    return total


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


def _random_assignment(roles: npt.NDArray[np.integer], num_parts: int, *, seed: int) -> npt.NDArray[np.int32]:
    """Deal vertices out to the parts like cards, role by role, in random order. Cost O(N log N), 25 N bytes."""
    draw = hash_ids(stream_key(seed, Stream.PARTITION), np.arange(len(roles)))
    order = np.lexsort((draw, roles))
    assignment = np.empty(len(roles), np.int32)
    assignment[order] = np.arange(len(roles)) % num_parts
    return assignment


GAMMA = 1.5
REPORTS_PER_PASS = 50
MAX_DOUBLINGS = 64


def _fennel_assignment(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.integer],
    vertex_weights: npt.NDArray[np.int32],
    options: PartitionOptions,
    progress: Progress | None,
    *,
    world: "World | None" = None,
    bounds: Sequence[int] = (),
    num_edges: int = 0,
) -> npt.NDArray[np.int32]:
    """Fennel with several balance constraints and restreaming.

    Vertices come in the order of their ids; each goes to the part p that maximises

        |N(v) in p| - alpha * gamma * |p| ** (gamma - 1),   alpha = sqrt(P) m / N ** 1.5,   gamma = 1.5

    (Tsourakakis, Gkantsidis, Radunovic, Vojnovic: FENNEL, WSDM 2014). With ``|p| = load * N / P`` the second term is
    ``1.5 * m / N * sqrt(load)``; here load is the mean, over the constraints that v weighs in, of p's weight over the
    mean weight of a part. Parts without room in any of these constraints are left out; if all are, the part with
    the least excess takes v. Passes after the first see every neighbour (Nishimura and Ugander, Restreaming graph
    partitioning, KDD 2013); the tolerance starts at ``imbalance * 2 ** (passes - 1)`` and halves in each, since tight
    limits from the start freeze early choices.

    A directed graph is scored by its in-neighbours; `indices` may be memory-mapped. A pass costs O(E + N P C).

    With a world, each of its ranks has the lists and weights of its vertices, see `partition_on_ranks`, and `num_edges`
    is how many there are on all. All place a fiftieth of theirs at a time, as if each vertex weighed as much as one of
    every rank: so a rank takes its share of the room that is left at most, and together they keep to the limits. Not
    where a vertex times the ranks weighs more than a part may: of these each rank decides alone.
    """
    size, rank = (1, 0) if world is None else (world.size, world.rank)
    if world is None:
        bounds, num_edges = (0, len(indptr) - 1), len(indices)
    num_vertices, num_parts, passes = bounds[-1], options.num_parts, options.stream_passes
    assignment = np.full(num_vertices, -1, np.int32)
    totals = vertex_weights.sum(axis=0, dtype=np.int64)
    if world is not None:
        totals = _summed(world, totals)
    means = totals / num_parts
    weights: npt.NDArray[np.integer] = vertex_weights
    if size > 1:
        fits = int(vertex_weights.max(initial=0)) * size < 2**31
        weights = np.multiply(vertex_weights, size, dtype=np.int32 if fits else np.int64)
    part_weights = np.zeros((num_parts, vertex_weights.shape[1]), np.int64)
    crowding_cost = GAMMA * (num_edges / 2) / max(num_vertices, 1)
    marks = [np.linspace(0, stop - first, REPORTS_PER_PASS + 1).astype(np.int64) for first, stop in pairwise(bounds)]
    for number in range(passes):
        # A part holds P times the mean at most; a larger tolerance means the same and would overflow.
        tolerance = min(options.imbalance * 2.0 ** min(passes - 1 - number, MAX_DOUBLINGS), num_parts)
        limits = balance_limits(totals, num_parts, tolerance)
        for report in range(REPORTS_PER_PASS):
            before = part_weights.copy()
            stream_once(
                indptr, indices, weights, assignment, part_weights, means, limits, crowding_cost,
                bounds[rank], int(marks[rank][report]), int(marks[rank][report + 1]),
            )  # fmt: skip
            if world is not None:
                part_weights = before + _summed(world, (part_weights - before) // size)
                pieces = [slice(*(first + own[report : report + 2])) for first, own in zip(bounds, marks, strict=False)]
                told = world.all_gather(torch.from_numpy(assignment[pieces[rank]]), stage="partition")
                for piece, parts in zip(pieces, told, strict=True):
                    assignment[piece] = parts.numpy()
            if progress is not None:
                progress("streaming vertices", (number + (report + 1) / REPORTS_PER_PASS) / passes)
    return assignment
