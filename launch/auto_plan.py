"""Which settings of a recipe would make its steps fastest, by the models that predict them; nothing is trained.

Of a graph: what each rank keeps of others' rows, in which format they travel, and the pipeline
(`windrow.gnn.explain_caches`). Of a log: which lists are held once, where tables live (`windrow.partition.tables`), and
formats on the wire (`windrow.comm.wire_savings`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from windrow.comm.errors import PlanError, StoreError
from windrow.comm.wire import WireOptions
from windrow.comm.wire_savings import FormatSaving, predict_sum, row_savings, sum_savings
from windrow.launch.recipe import Recipe
from windrow.launch.recommendation_recipe import RecommendationRecipe
from windrow.launch.sweep import PLANNERS, changed, shorter_formats
from windrow.training.terminal import byte_size, table

if TYPE_CHECKING:
    from windrow.comm.links import Links
    from windrow.gnn.epoch_estimate import StepWork
    from windrow.gnn.explain_caches import SizeEstimate
    from windrow.gnn.partitioned import PartitionedGraph
    from windrow.partition.tables.costs import TableCosts
    from windrow.partition.tables.plan import Plan, TableSpec
    from windrow.recsys.log.store import LogStore

__all__ = ["AutoPlan", "Step", "describe_auto_plan", "plan_graph", "plan_log", "setting_of"]

WINDOW = 8
"""Minibatches that a cache knows: the most that `benchmarks/vip.py` has measured."""


GROUP_S = 7e-4
"""Seconds of a core that each group of deduplication adds to a step, by a lookup, messages and sums of its own: slope
over 1 to 27 groups of the sessions of `benchmarks/plan_auto.py`, minibatches of 512, a Xeon of 2.5 GHz."""
GROUP_BYTES = (0.0, 1e5, 1e6, 1e7)
"""Costs of a group by which sets of groups are proposed, of which one is chosen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What is predicted of a step."""

    seconds: float
    """Of a graph all of it, of a log that of its tables and of the sums of gradients."""
    memory_bytes: float
    """Of the fullest rank: of a graph its cache, of a log its tables."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AutoPlan:
    """What is proposed."""

    changes: Mapping[str, Any]
    """Settings by dotted name, with the values proposed; those that stay are left out."""
    before: Step | None
    """As the recipe is; None where its planner finds no room for the tables."""
    after: Step
    """With all changes."""


def plan_graph(
    recipe: Recipe, graph: "PartitionedGraph", links: "Links", work: "StepWork", *, shortest: str = "fp32"
) -> AutoPlan:
    """Propose settings for a partitioned graph that minibatches are sampled from.

    Rows are kept as the recipe says, or, where that is faster, up to ``cache.memory_gib`` those that spare more
    transfers than they cost; where these still take longer than all else, the cache gets a window, of which no gain
    is predicted: what is asked for is never more. Rows that are learnt (``model.embedding``) are in no prediction.
    A step of training must be known, and the network: what pays follows from both.

    Args:
        recipe: to begin with.
        graph: topology and training vertices.
        links: between as many ranks as the graph has parts.
        work: of a step.
        shortest: number format on the wire down to which rounding is allowed.

    Raises:
        DataError: the graph has no features.

    Cost: that of `windrow.gnn.explain_caches.explain`, once for each format.
    """
    from windrow.gnn.explain_caches import explain

    wire, pipelined = recipe.wire, recipe.pipeline.depth > 0
    allowed = shorter_formats(recipe, shortest)
    changes: dict[str, Any] = {"pipeline.depth": recipe.pipeline.depth or 4}
    for form in [wire.vectors, *allowed.get("wire.vectors", [])]:
        sampling = replace(recipe.sampling, wire=replace(wire, vectors=form))  # type: ignore[arg-type]
        found = explain(graph, sampling, pipelined=True, links=links, work=work)
        if form == wire.vectors:
            chosen, sums = found.marks["recipe"], found.formats
            before, after = (_step(chosen, found.steps, pipelined=overlaps) for overlaps in (pipelined, True))
        step = _step(found.marks["auto"], found.steps, pipelined=True)
        if step.seconds < after.seconds:
            chosen, after = found.marks["auto"], step
            changes |= {"cache.alpha": "auto", "wire.vectors": form}
    time = chosen.time
    if chosen.kept_rows and not recipe.cache.window and time and time.exchange_s > max(time.processor_s, time.device_s):
        changes["cache.window"] = WINDOW
    if (best := _best(sums, "wire.sums", wire, allowed)) is not None:
        changes["wire.sums"] = best.form
        after = replace(after, seconds=after.seconds - _gain(sums, best, wire))
    return AutoPlan(changes=_without_same(recipe, changes), before=before, after=after)


def _step(size: "SizeEstimate", steps: int, *, pipelined: bool) -> Step:
    assert size.time is not None
    return Step(seconds=size.time.seconds(pipelined=pipelined) / steps, memory_bytes=size.memory_bytes)


def plan_log(
    recipe: RecommendationRecipe, store: "LogStore", ranks: int, links: "Links | None", *, shortest: str = "fp32"
) -> AutoPlan:
    """Propose settings for a prepared log: groups of deduplication, a planner, formats on the wire.

    Args:
        recipe: to begin with.
        store: its prepared log.
        ranks: that will train.
        links: between them; None: nothing is known of the network, so that formats on the wire stay.
        shortest: number format on the wire down to which rounding is allowed.

    Raises:
        PlanError: no planner finds room for the tables; with the least shortfall.

    Cost: what the planners take, those of the recipe and of the proposal twice, and a look at a sample of the log;
    where it has sessions, another one, and a look and the recipe's planner for each set of groups that is compared.
    """
    job = _Job(recipe, store, ranks, links)
    changes: dict[str, Any] = {}
    if groups := _groups(recipe, job):
        changes["deduplication.groups"] = groups
    base, stays = _changed(recipe, changes), recipe.plan.planner
    planners = [stays] if recipe.plan.file else [stays, *(name for name in PLANNERS if name != stays)]
    best = job.best_plan(base, planners)
    changes["plan.planner"] = best.planner
    allowed = shorter_formats(recipe, shortest)
    savings = job.savings(best)
    for name in allowed:
        if (saving := _best(savings, name, recipe.wire, allowed)) is not None:
            changes[name] = saving.form
    try:
        before = job.step(recipe, savings)
    except PlanError:
        before = None
    after = job.step(_changed(recipe, changes), savings)
    return AutoPlan(changes=_without_same(recipe, changes), before=before, after=after)


def _groups(recipe: RecommendationRecipe, job: "_Job") -> list[list[str]]:
    """Groups to propose, where samples of a session meet in minibatches: many, few or none, by the time of a step."""
    from windrow.recsys.log_survey import groups_for
    from windrow.recsys.log_tables import survey

    if recipe.deduplication.groups or recipe.training.shuffle == "window":
        return []
    try:
        found = survey(recipe, job.store, ranks=job.ranks)
    except StoreError:
        return []  # There are no sessions.
    if not found.is_clustered:
        return []
    candidates = dict.fromkeys([*(groups_for(recipe, found, group_bytes=cost) for cost in GROUP_BYTES), ()])

    def seconds(groups: Iterable[Sequence[str]]) -> float:
        try:
            return job.step(_changed(recipe, {"deduplication.groups": list(map(list, groups))}), []).seconds
        except PlanError:
            return math.inf

    return list(map(list, min(candidates, key=seconds)))


@dataclass(frozen=True, slots=True)
class _Planned:
    """What a planner made of a recipe's tables."""

    planner: str
    plan: "Plan"
    costs: "TableCosts"


class _Job:
    """A log on some ranks; recipes differ in groups of deduplication, planner and formats."""

    def __init__(self, recipe: RecommendationRecipe, store: "LogStore", ranks: int, links: "Links | None") -> None:
        from windrow.recsys.recommendation import make_click_model

        self.store, self.ranks, self.links = store, ranks, links
        model = make_click_model(recipe, store, seed=0)
        self._dense_numbers = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
        self._surveyed: dict[Sequence[Sequence[str]], list[TableSpec]] = {}

    def _specs(self, recipe: RecommendationRecipe) -> "list[TableSpec]":
        """What a look at the log says of tables, which is had once for the same groups."""
        from windrow.recsys.log_tables import surveyed_table_specs

        groups = recipe.deduplication.groups
        if groups not in self._surveyed:
            self._surveyed[groups] = surveyed_table_specs(recipe, self.store, self.ranks)
        return self._surveyed[groups]

    def best_plan(self, recipe: RecommendationRecipe, planners: Sequence[str]) -> _Planned:
        """The plan that is predicted to take least, of those that fit."""
        from windrow.partition.tables.planners import make_plan
        from windrow.recsys.log_tables import costs_of_tables, plan_workload

        specs, workload = self._specs(recipe), plan_workload(recipe, self.ranks, self.links)
        found: list[_Planned] = []
        lacking: list[PlanError] = []
        for planner in planners:
            options = replace(recipe.plan, planner=planner, replan_every_steps=0)
            if recipe.plan.replan_every_steps and not options.asks_costs:
                continue
            try:
                plan = make_plan(options, specs, self.ranks, workload)
            except PlanError as error:
                lacking.append(error)
                continue
            costs = costs_of_tables(recipe, specs, self.ranks, self.links, replica_groups=plan.replica_groups)
            found.append(_Planned(planner, plan, costs))
        if not found:
            raise min(lacking, key=lambda error: error.shortfall_bytes)
        return min(found, key=lambda one: one.costs.of_plan(one.plan).total)

    def savings(self, planned: _Planned) -> list[FormatSaving]:
        """What shorter formats on the wire would save under a plan."""
        plan, costs = planned.plan, planned.costs
        if self.links is None or self.ranks == 1:
            return []
        width = round(np.mean([spec.dim for spec in costs.specs.values()]))
        # Each owner sends every rank as much.
        numbers = np.array([sum(map(costs.numbers, pieces)) for pieces in costs.owned(plan)])
        rows = np.repeat(numbers[:, None] / width, costs.world_size, axis=1)
        of_group = self.links.of_first(costs.world_size)
        found = row_savings("vectors", of_group, rows, width) + row_savings("gradients", of_group, rows.T, width)
        return found + sum_savings(self.links, self._dense_numbers)

    def step(self, recipe: RecommendationRecipe, savings: Sequence[FormatSaving]) -> Step:
        """What is predicted of a step of a recipe; of formats, what rounding takes, as it was measured."""
        planned = self.best_plan(recipe, [recipe.plan.planner])
        cost = planned.costs.of_plan(planned.plan)
        seconds = cost.total + GROUP_S * recipe.plan.ranks_per_core * len(recipe.deduplication.looked_up_groups())
        if self.links is not None and self.ranks > 1:
            seconds += predict_sum(self.links, self._dense_numbers, recipe.wire.sums)
        seconds += sum(one.codec_s for one in savings if getattr(recipe.wire, one.setting) == one.form)
        return Step(seconds=seconds, memory_bytes=float(cost.memory.max()))


def _best(
    savings: Sequence[FormatSaving], name: str, used: WireOptions, allowed: Mapping[str, Sequence[str]]
) -> FormatSaving | None:
    """Of one setting the allowed format that saves most; None where none saves more than the one in use."""
    found = [one for one in savings if f"wire.{one.setting}" == name and one.form in allowed.get(name, ())]
    best = max(found, key=lambda one: one.saved_s - one.codec_s, default=None)
    return best if best is not None and _gain(savings, best, used) > 0 else None


def _gain(savings: Sequence[FormatSaving], one: FormatSaving, used: WireOptions) -> float:
    """Seconds that a format saves over the one in use; what is known is over fp32."""
    now = (other for other in savings if other.setting == one.setting and other.form == getattr(used, one.setting))
    return one.saved_s - one.codec_s - sum(other.saved_s - other.codec_s for other in now)


def _changed(recipe: RecommendationRecipe, changes: Mapping[str, Any]) -> RecommendationRecipe:
    found = changed(recipe, changes)
    assert isinstance(found, RecommendationRecipe)
    return found


def _without_same(recipe: Recipe | RecommendationRecipe, changes: Mapping[str, Any]) -> dict[str, Any]:
    """What differs from the recipe."""
    return {name: value for name, value in changes.items() if value != setting_of(recipe, name)}


def setting_of(recipe: Recipe | RecommendationRecipe, name: str) -> Any:
    """The value that a recipe has of a setting, by its dotted name."""
    section, _, key = name.partition(".")
    return getattr(getattr(recipe, section), key)


def describe_auto_plan(found: AutoPlan, recipe: Recipe | RecommendationRecipe) -> str:
    """Lay out what is proposed, for a terminal."""
    what, memory = (
        ("a step takes", "its cache") if isinstance(recipe, Recipe) else ("a step's tables and sums take", "its tables")
    )
    before, after = found.before, found.after
    predicted = f"predicted: {what} {1e3 * after.seconds:.4g} ms as proposed"
    if before is None:
        predicted += ", and the recipe's planner finds no room for the tables"
    else:
        predicted += (
            f", {1e3 * before.seconds:.4g} ms as the recipe is ({before.seconds / after.seconds:.3g} times as fast)"
        )
    predicted += f"; the fullest rank holds {byte_size(round(after.memory_bytes))}"
    predicted += f" in {memory}" if before is None else f" in {memory}, and {byte_size(round(before.memory_bytes))}"
    if not found.changes:
        return f"nothing is predicted to be faster than the recipe as it is\n\n{predicted}"
    rows = [
        {"setting": name, "recipe": str(setting_of(recipe, name)), "proposed": str(value)}
        for name, value in found.changes.items()
    ]
    return f"{table(rows)}\n\n{predicted}"
