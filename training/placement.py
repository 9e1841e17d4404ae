"""What each rank holds, for placement.json.

The placement of a graph::

    {"kind": "graph", "ranks": [{"vertices": 1, "train_vertices": 1, "edges": 1, "feature_bytes": 1, "cached_rows": 1,
                                 "cached_bytes": 1}, ...]}

Of a click log, with a shard on each rank for a replicated table::

    {"kind": "log", "world_size": 4, "tables": [
        {"name": "t", "rows": 10, "dim": 8, "bytes": 320, "plan": "row-wise", "shards": [
            {"rank": 0, "first_row": 0, "rows": 5, "first_column": 0, "columns": 8, "bytes": 160}, ...]}, ...]}

Bytes of tables are those of weights and optimiser state. Every rank knows all of it: nothing is communicated.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from windrow.partition.tables.plan import Plan, Shard, TableSpec, rectangle_bytes

if TYPE_CHECKING:
    from windrow.gnn.partitioned import PartitionedGraph

__all__ = ["graph_placement", "table_placement"]


def graph_placement(
    graph: "PartitionedGraph", *, cached_rows: int | Sequence[int] = 0, copy_bytes: int | None = None
) -> dict[str, Any]:
    """What the parts of a graph are, by any rank's view of it.

    Args:
        graph: the view.
        cached_rows: rows of other ranks of which each rank keeps copies: one number for each, or one for all.
        copy_bytes: bytes of one such row, which is kept as it travels; None: as many as where it is owned.

    Returns:
        For each rank its vertices, the training vertices among them, the edges that end at them, the bytes of their
        features, and rows and bytes of its cache.
    """
    num_parts = graph.book.num_parts
    copies = [cached_rows] * num_parts if isinstance(cached_rows, int) else cached_rows
    offsets = graph.book.offsets
    first_edges = graph.indptr[offsets].numpy()
    training = np.bincount(graph.book.owner(graph.train_ids.numpy()), minlength=num_parts)
    row_bytes = graph.features.shape[1:].numel() * graph.features.element_size()
    if copy_bytes is None:
        copy_bytes = row_bytes
    columns = zip(np.diff(offsets).tolist(), training.tolist(), np.diff(first_edges).tolist(), copies, strict=True)
    return {
        "kind": "graph",
        "ranks": [
            {
                "vertices": vertices,
                "train_vertices": train_vertices,
                "edges": edges,
                "feature_bytes": vertices * row_bytes,
                "cached_rows": cached,
                "cached_bytes": cached * copy_bytes,
            }
            for vertices, train_vertices, edges, cached in columns
        ],
    }


def table_placement(tables: Iterable[tuple[TableSpec, Plan]], world_size: int) -> dict[str, Any]:
    """Where embedding tables, each with a plan that holds it, live on so many ranks."""

    def shards(spec: TableSpec, plan: Plan) -> Iterator[Shard]:
        yield from plan.shards_of(spec.name)
        for rank in range(world_size):
            for replica in plan.replicas_of(spec.name):
                yield Shard(spec.name, rank, replica.rows, (0, spec.dim))

    return {
        "kind": "log",
        "world_size": world_size,
        "tables": [
            {
                "name": spec.name,
                "rows": spec.rows,
                "dim": spec.dim,
                "bytes": spec.num_bytes,
                "plan": plan.kind_of(spec.name),
                "shards": [
                    {
                        "rank": shard.rank,
                        "first_row": shard.rows[0],
                        "rows": shard.num_rows,
                        "first_column": shard.columns[0],
                        "columns": shard.num_columns,
                        "bytes": rectangle_bytes(spec, shard.num_rows, shard.num_columns),
                    }
                    for shard in shards(spec, plan)
                ],
            }
            for spec, plan in tables
        ],
    }
