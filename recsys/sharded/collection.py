"""What pooled and unpooled collections share: the pieces of tables of this rank, and how they learn."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from windrow.comm.errors import RecipeError
from windrow.comm.loopback import Loopback
from windrow.partition.tables.plan import Plan, check_plan
from windrow.partition.tables.planners import plan_with_planner
from windrow.partition.tables.spec import TableSpec
from windrow.recsys.embedding_configs import TableConfig, check_configs, features_of
from windrow.recsys.sharded.input_distribution import InputDistribution
from windrow.recsys.sharded.layout import make_layout
from windrow.recsys.sharded.message import Message, MessageFormat
from windrow.recsys.sharded.packing import pack
from windrow.recsys.sharded.rank_tables import RankTables, StoredTable
from windrow.recsys.sharded.rows_needed import rows_asked_for
from windrow.recsys.sharded.samples import Samples
from windrow.recsys.sharded.unpacking import LookupInput, unpack
from windrow.recsys.tables.options import TableOptions

if TYPE_CHECKING:
    from windrow.comm.world import World

__all__ = ["ShardedTables", "table_specs"]


class ShardedTables(nn.Module):
    """Embedding tables spread over the ranks of a world by a plan.

    A step, on every rank::

        reducer.start()                  # GradientReducer(world, [*tables.replicated_parameters(), *model's])
        loss(tables(batch)).backward()   # sharded tables learn here
        reducer.finish()
        tables.step()                    # replicated tables, and those whose optimiser is not fused, learn here

    The loss is divided by the samples of all ranks: gradients are summed over ranks.

    Args:
        tables: configurations, ours or TorchRec's; must agree.
        pooled: bags of rows become one vector, or rows are returned one by one.
        is_weighted: whether ids have weights.
        device: of the tables; None for the CPU.
        world: None for this process alone.
        plan: None for whole tables, one rank after another. Must agree.
        groups: features whose lists come deduplicated, group by group; may name others, too. Must agree.
        options: how tables are stored and learn; must agree.
        seed: of the first values; must agree.
        stage: name of the traffic in errors and in the meter; must agree.

    Raises:
        RecipeError: tables, groups or options are not right.
        PlanError: the plan does not fit the tables or the world.
    """

    def __init__(
        self,
        tables: Sequence[TableConfig],
        *,
        pooled: bool,
        is_weighted: bool,
        device: torch.device | None,
        world: "World | None",
        plan: Plan | None,
        groups: Sequence[Sequence[str]],
        options: TableOptions | None,
        seed: int,
        stage: str,
    ) -> None:
        super().__init__()
        check_configs(tables, pooled=pooled)
        _check_groups(groups)
        self.world = Loopback.single() if world is None else world
        self.options = options or TableOptions()
        self.device = device or torch.device("cpu")
        self.specs = table_specs(tables, self.options)
        self.plan = plan or plan_with_planner("round_robin", self.specs, self.world.size)
        check_plan(self.plan, self.specs, self.world.size)
        self.groups = tuple(tuple(group) for group in groups)
        """Features whose lists come deduplicated."""
        self.layout = make_layout(tables, self.plan, self.world.size, groups)
        self.form = MessageFormat(
            np.int64 if self.layout.wide_ids else np.int32, weighted=is_weighted, with_lengths=pooled
        )
        self._stage = stage
        rows = {table.name: table.num_embeddings for table in tables}
        self._sharded = RankTables(
            self.layout.owners[self.world.rank],
            self.options,
            rows=rows,
            pooled=pooled,
            device=self.device,
            fused=self.options.can_fuse,
            seed=seed,
        )
        self._replicated = RankTables(
            self.layout.replicated,
            self.options,
            rows=rows,
            pooled=pooled,
            device=self.device,
            fused=False,
            seed=seed,
        )

    def replicated_parameters(self) -> list[nn.Parameter]:
        """Values of the tables that every rank holds: their gradients must be summed over ranks before `step`."""
        return list(self._replicated.parameters())

    def step(self) -> None:
        """Learn where the backward pass did not: replicated tables, and all under adam."""
        for batch in (*self._sharded.batches, *self._replicated.batches):
            batch.step()

    def set_learning_rate(self, learning_rate: float) -> None:
        """Learn at this rate from the next lookup on; call it before that lookup starts. Must agree."""
        for batch in (*self._sharded.batches, *self._replicated.batches):
            batch.set_learning_rate(learning_rate)

    def local_tables(self) -> Iterator[StoredTable]:
        """The rectangles that this rank holds, replicated ones last, for checkpoints and export."""
        yield from self._sharded.stored(replicated=False)
        yield from self._replicated.stored(replicated=True)

    def distribute(self, samples: Sequence[Samples]) -> InputDistribution:
        """Send the counts of a minibatch. Collective."""
        return InputDistribution(self.world, self.layout, samples, self.form, stage=self._stage)

    def count_rows(self, samples: Sequence[Samples], messages: Sequence[Message]) -> None:
        """Count where the rows of a minibatch are, when it is looked up.

        Not earlier: a run that goes on from a checkpoint sends minibatches again that were only on their way.

        Args:
            samples: each group of this rank.
            messages: what it asks each owner for.
        """
        if self.world.meter is not None:
            found = rows_asked_for(self.layout, samples, messages, self.world.rank)
            self.world.meter.record_found(f"{self._stage}: rows", local=found.local, remote=found.remote)

    def replicated_input(self, samples: Sequence[Samples]) -> list[LookupInput]:
        """What this rank looks up in its copies of replicated tables."""
        messages = pack(samples, [self.layout.replicated], self.form)
        return [wanted.to(self.device) for wanted in unpack(messages, self.layout.replicated, self.form)]


def table_specs(tables: Sequence[TableConfig], options: TableOptions) -> list[TableSpec]:
    """What planners have to know of some tables.

    Args:
        tables: configurations, ours or TorchRec's.
        options: how they are stored and learn.

    Returns:
        One for each, with one lookup per sample and feature.
    """
    return [
        TableSpec(
            name=table.name,
            rows=table.num_embeddings,
            dim=table.embedding_dim,
            features=tuple(features_of(table)),
            bytes_per_value=options.dtype.itemsize,
            optimizer_bytes_per_row=options.optimizer_bytes_per_row(table.embedding_dim),
            lookups_per_sample=float(len(features_of(table))),
        )
        for table in tables
    ]


def _check_groups(groups: Sequence[Sequence[str]]) -> None:
    if any(isinstance(group, str) for group in groups):
        raise RecipeError(
            f"groups = {list(groups)}: each is a sequence of names, such as [['cart', 'sellers']]"
        )
    features = [feature for group in groups for feature in group]
    twice = sorted({feature for feature in features if features.count(feature) > 1})
    if twice:
        raise RecipeError(f"groups name {twice[0]!r} twice: a feature is in one group")
