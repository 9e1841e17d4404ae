"""What the training loop asks of a job, of a graph or of a click log; and what each rank holds, for placement.json.

The placement of a graph::

    {"kind": "graph", "ranks": [{"vertices": 1, "train_vertices": 1, "edges": 1, "feature_bytes": 1, "cached_rows": 1,
                                 "cached_bytes": 1}, ...]}

Of a click log, with a shard on each rank for a replicated table::

    {"kind": "log", "world_size": 4, "tables": [
        {"name": "t", "rows": 10, "dim": 8, "bytes": 320, "plan": "row-wise", "shards": [
            {"rank": 0, "first_row": 0, "rows": 5, "first_column": 0, "columns": 8, "bytes": 160}, ...]}, ...]}

Bytes of tables are those of weights and optimiser state. Every rank knows all of it: nothing is communicated.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from windrow.comm.meter import Stopwatch, Traffic
from windrow.launch.checkpoint import CheckpointHeader
from windrow.partition.tables.plan import Plan, Shard, TableSpec, rectangle_bytes

if TYPE_CHECKING:
    from windrow.gnn.partitioned import PartitionedGraph
    from windrow.recsys.tables.table import TableBatch

__all__ = ["JobTrainer", "TrainingJob", "graph_placement", "table_placement"]


class JobTrainer(Protocol):
    """What learns in a job, step by step.

    Implementations: `windrow.gnn.trainer.MinibatchTrainer`, `windrow.recsys.trainer.RecommendationTrainer`.
    """

    @property
    def steps_per_epoch(self) -> int:
        """Steps in an epoch."""

    @property
    def learning_rate(self) -> float:
        """The rate of the last step."""

    @property
    def stopwatch(self) -> Stopwatch:
        """Where this rank's seconds go."""

    def train_epoch(
        self, epoch: int, *, first_step: int, loss_before: float, after_step: Callable[[int], None]
    ) -> float:
        """Run the steps of an epoch, or the rest of them. Collective.

        Args:
            epoch: from 0.
            first_step: steps of it that are done already.
            loss_before: what `loss_so_far` gave after those.
            after_step: called after each step with the steps now done; it may call collectives.

        Returns:
            Mean loss over the whole epoch.
        """

    def loss_so_far(self) -> float:
        """Sum of the losses of the epoch's samples up to now, over all ranks. Collective."""

    def state_dict(self) -> dict[str, Any]:
        """What all ranks have in common: dense weights and optimiser."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave, on any number of ranks."""


class TrainingJob(Protocol):
    """One model in training on one rank: trainer, evaluator and data.

    Implementations: `windrow.launch.graph_job.GraphJob`, `windrow.launch.recommendation_job.RecommendationJob`.
    All ranks make the same one, and what their methods return is the same on all ranks where nothing else is said.
    """

    @property
    def data(self) -> Literal["graph", "log"]:
        """What is learnt from, for messages."""

    @property
    def trainer(self) -> JobTrainer:
        """What learns."""

    @property
    def data_fingerprint(self) -> str:
        """Digest of the user's graph or log: a run is resumed with the same one only."""

    @property
    def samples_per_epoch(self) -> int:
        """Samples (seeds) in an epoch, over all ranks."""

    @property
    def metric(self) -> str:
        """What chooses the best epoch: a key of the figures that `evaluate` gives."""

    @property
    def higher_is_better(self) -> bool:
        """Whether that metric should rise."""

    @property
    def shown_figures(self) -> Mapping[str, str]:
        """Figures of a record that get a column of the table, beside the metric, with its header."""

    @property
    def opening_lines(self) -> Sequence[str]:
        """What the user is told before the first epoch, by rank 0."""

    def evaluate(self) -> Mapping[str, Mapping[str, float]]:
        """Measure. Collective.

        Returns:
            For "validation" and "test", where there are such samples, figures by name.
        """

    def traffic(self) -> Traffic:
        """Rows that this rank exchanged since the meter was reset."""

    def placement(self) -> dict[str, Any]:
        """What each rank holds, as `windrow.launch.job` describes it; not collective."""

    def local_tables(self) -> "Sequence[TableBatch] | None":
        """What this rank stores of embedding tables, to read its state and to load it; None where there are none."""

    def check_resumable(self, header: CheckpointHeader) -> None:
        """Refuse a checkpoint for reasons of this kind of job.

        Raises:
            StoreError: says why.
        """

    def close(self) -> None:
        """Let go of everything."""


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
