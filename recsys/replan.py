"""Tables planned anew in the middle of a run, when what is looked up has changed.

    step 0 ... 1000    counted: lookups of each table, by octaves of rows, in some of the steps
    step 1000          planned for what was counted; moved where that is predicted to be worth it
    step 1000 ... 2000 counted anew

Placement by rows (`windrow.partition.tables.search`) rests on which rows are hot; clicks of another season have others.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, Any, TypeAlias

from windrow.comm.errors import PlanError, RecipeError
from windrow.partition.tables.access import AccessCounts
from windrow.partition.tables.cost_model import ComputeModel
from windrow.partition.tables.costs import TableCosts, Workload
from windrow.partition.tables.plan import Plan, TableSpec
from windrow.partition.tables.planners import SHIPPED_MODEL, PlanOptions, make_plan
from windrow.recsys.recommender import collections_of
from windrow.recsys.sharded.collection import ShardedTables
from windrow.training.callbacks import Callback

if TYPE_CHECKING:
    from windrow.comm.links import Links
    from windrow.training.trainer import Trainer

__all__ = ["Replan"]

COUNTED_STEPS = 32
"""Between two plans, at least, or all where these are fewer."""

KEPT_IDS = 8192
"""Of each list of a step that is counted, all ranks together, to find hot rows: 2 MB of a feature between two plans."""

Collections: TypeAlias = Sequence[ShardedTables[Any]]


class Replan(Callback):
    """Plans the tables anew every so many steps, for what was looked up meanwhile, and moves them if that is better.

    A callback of `windrow.Trainer`, for any model with collections of tables; recipes have it by
    ``plan.replan_every_steps``. What is learnt does not depend on where tables are, but as `ShardedTables.move_to`
    says. Every rank has it, with equal arguments.

    Args:
        options: which planner is asked, with how much memory, after how many steps, and what it has to save.
        links: between the ranks; those of rank 0 count. None: what travels takes no time.
        say: shows a line, on rank 0; None prints it.

    Raises:
        RecipeError: the options name no number of steps.

    Cost: 10 ns for each id in `COUNTED_STEPS` of these steps; on rank 0, which others wait for, one or two searches
    (`search_plan`), no longer than the deadline of the world (``search.seconds`` limits it); for a move see
    `windrow.recsys.sharded.moving.move_state`.
    """

    def __init__(
        self, options: PlanOptions, *, links: "Links | None" = None, say: Callable[[str], object] | None = None
    ) -> None:
        if not options.replan_every_steps:
            raise RecipeError("Replan with replan_every_steps = 0: say after how many steps tables are planned anew")
        self._options, self._links = options, links
        self._say = say or partial(print, flush=True)
        self._counts: list[AccessCounts] = []
        self._steps, self._timed, self._seconds, self._last = 0, 0, 0.0, 0.0

    def on_start(self, trainer: "Trainer") -> None:
        """Begin to count."""
        self._begin(collections_of(trainer.model))

    def on_step(self, trainer: "Trainer", done: int) -> None:
        """Count; after so many steps plan, which is collective."""
        collections, every = collections_of(trainer.model), self._options.replan_every_steps
        now, self._steps = time.monotonic(), self._steps + 1
        # From step to step of an epoch, since evaluation and checkpoints come between epochs.
        if done > 1:
            self._timed += 1
            self._seconds += now - self._last
        self._last = now
        is_counted = self._steps % max(every // COUNTED_STEPS, 1) == 0
        for collection, counts in zip(collections, self._counts, strict=True):
            collection.access = counts if is_counted else None
        # Gradients that are added up over several steps belong to where tables are.
        if self._steps >= every and done % trainer.options.accumulate == 0:
            self._plan(trainer, collections)
            self._begin(collections)

    def on_end(self, trainer: "Trainer", result: object) -> None:  # noqa: ARG002
        """Count no more."""
        for collection in collections_of(trainer.model):
            collection.access = None

    def _begin(self, collections: Collections) -> None:
        kept = max(KEPT_IDS // collections[0].world.size, 1) if collections else 0
        self._counts = [AccessCounts(collection.specs, kept=kept) for collection in collections]
        for collection, counts in zip(collections, self._counts, strict=True):
            collection.access = counts
        # What planning and moving took is no part of a step.
        self._steps, self._timed, self._seconds, self._last = 0, 0, 0.0, time.monotonic()

    def _plan(self, trainer: "Trainer", collections: Collections) -> None:
        world = trainer.world
        everyone = world.gather_object(self._counts, root=0, stage="replan: counts")
        counted = [reduce(add, counts) for counts in zip(*everyone, strict=True)]
        found: tuple[Plan, float, float] | None = None
        if counted and all(counts.samples for counts in counted):
            found = self._planned(counted, trainer, collections)
        (found,) = world.broadcast_object((found,), root=0, stage="replan: plan")
        if found is None:
            return
        plan, before, after = found
        if before <= after * (1 + self._options.replan_margin):
            return
        begun = time.monotonic()
        for collection in collections:
            collection.move_to(plan.only([spec.name for spec in collection.specs]))
        took = max(world.all_gather_object(time.monotonic() - begun, stage="replan: moved"))
        if world.rank == 0:
            steps = f", as long as {took * self._timed / self._seconds:.1f} steps" if self._seconds else ""
            self._say(
                f"windrow: tables have moved to a plan that is predicted to take {after * 1e3:.3g} ms a step instead "
                f"of {before * 1e3:.3g}, by what was looked up lately; that took {took:.2g} s{steps}"
            )

    def _planned(
        self, counted: Sequence[AccessCounts], trainer: "Trainer", collections: Collections
    ) -> tuple[Plan, float, float]:
        """Another plan, and the predicted seconds of a step under this one and under that one."""
        each = list(zip(collections, counted, [counts.hot_rows() for counts in counted], strict=True))

        def specs(listed: Collection[str]) -> list[TableSpec]:
            """Of all tables; rows of these are in any order."""
            return [
                spec
                for collection, counts, hot in each
                for spec in counts.measured(collection.specs, {name: hot[name] for name in hot.keys() & listed})
            ]

        options, size, first = self._options, trainer.world.size, collections[0]
        now = Plan(
            tuple(shard for collection in collections for shard in collection.plan.shards),
            tuple(copy for collection in collections for copy in collection.plan.replicated),
            first.plan.replica_groups,
            tuple(rows for collection in collections for rows in collection.plan.copies),
        )
        samples, per_core = round(size * counted[0].samples / counted[0].batches), options.ranks_per_core
        workload = Workload.of_step(samples, size, first.forms, self._links, ranks_per_core=per_core)
        model = ComputeModel.load(options.cost_model or SHIPPED_MODEL)
        price = partial(TableCosts, world_size=size, workload=workload, model=model, replica_groups=now.replica_groups)
        before = price(specs({rows.table for rows in now.copies})).of_plan(now).total
        scattered = set[str]().union(*(counts.out_of_order(hot) for _, counts, hot in each))
        found: list[tuple[float, Plan]] = []
        # Rows in any order get copies; where they stand says how to cut them.
        for listed in dict.fromkeys((frozenset[str](), frozenset(scattered))):
            measured = specs(listed)
            try:
                plan = make_plan(replace(options, replica_groups=now.replica_groups), measured, size, workload)
            except PlanError as error:
                # The run goes on as it is.
                self._say(f"windrow: tables stay where they are: {error}")
                return now, before, before
            found.append((price(measured).of_plan(plan).total, plan))
        after, other = min(found, key=lambda priced: priced[0])
        return other, before, after
