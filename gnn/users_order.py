"""Rows of all ranks on rank 0, in the user's order, a chunk at a time: memory stays bounded, whatever the graph.

    the user's ids         0  1  2  3  4  5          chunks of 4
    vertices of rank 0        1     3  4             rank 0 receives  1 3 | 0 2   places them  0 1 2 3
    vertices of rank 1     0     2        5                           4 | 5                    4 5

Which rank has which vertex of a chunk is known everywhere, so that rows alone travel, each once.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from windrow.comm.splits import chunk_bounds, group_by_owner
from windrow.comm.world import World
from windrow.gnn.partitioned import PartitionedGraph

__all__ = ["rows_in_users_order", "wanted_vertices"]

STAGE = "predictions"
ROOT = 0


def wanted_vertices(graph: PartitionedGraph, ids: Tensor | None) -> Tensor:
    """Put vertices into the user's order.

    Args:
        graph: any rank's view.
        ids: int64 [n], distinct ids of the partition; None for all vertices.

    Returns:
        int64 [n], ascending ids of the user.
    """
    if ids is None:
        return torch.arange(graph.num_vertices)
    return graph.original_ids[ids].sort().values


def rows_in_users_order(
    world: World,
    graph: PartitionedGraph,
    wanted: Tensor,
    own_ids: Tensor,
    own_rows: Tensor,
    *,
    chunk_rows: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Bring rows to rank 0, chunk by chunk. Collective: every rank goes through all chunks.

    Args:
        world: all ranks call this.
        graph: this rank's view.
        wanted: int64, ascending ids of the user; must agree.
        own_ids: int64, ascending ids of the partition, in this rank's range: all that are wanted are among them.
        own_rows: [len(own_ids), ...] their rows, on any device; row shape and dtype must agree.
        chunk_rows: most rows that are brought together at a time; must agree.

    Yields:
        The user's ids of a chunk, ascending, and on rank 0 their rows on the CPU; on other ranks no rows.

    Memory: rank 0 holds a chunk twice, other ranks what they send of it, besides 8 bytes for each id.
    """
    start, stop = graph.own_range
    old_to_new = torch.from_numpy(graph.book.old_to_new)
    for first, last in chunk_bounds(len(wanted), chunk_rows):
        chunk = wanted[first:last]
        ids = old_to_new[chunk]
        own = ids[(ids >= start) & (ids < stop)]
        places = torch.searchsorted(own_ids, own).to(own_rows.device)
        yield chunk, _to_root(world, graph, ids, own_rows[places].cpu())


def _to_root(world: World, graph: PartitionedGraph, ids: Tensor, own: Tensor) -> Tensor:
    """Rows of a chunk's vertices in the chunk's order on the root, none elsewhere; `own` keeps that order too."""
    nobody = [0] * world.size
    if world.rank != ROOT:
        sends = [len(own) if rank == ROOT else 0 for rank in range(world.size)]
        return world.all_to_all(own, sends, nobody, stage=STAGE)
    order, counts = group_by_owner(ids, graph.offsets)
    sends = [len(own) if rank == ROOT else 0 for rank in range(world.size)]
    received = world.all_to_all(own, sends, counts, stage=STAGE)
    if order is None:
        return received
    rows = torch.empty_like(received)
    rows[order] = received
    return rows
