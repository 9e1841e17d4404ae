"""Predict what steps of RecD (Zhao et al., MLSys 2023, O3 to O7) would save on a prepared log, without training.

Repeats are counted in batches of a clustered log, see `windrow.recsys.batches.deduplication.survey`; what travels
follows from the plan of the tables, see `windrow.recsys.sharded.traffic`. What was found is written as text for a
terminal.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from windrow.comm.errors import RecipeError
from windrow.comm.links import Links
from windrow.comm.wire_savings import FormatSaving, row_savings, sum_savings
from windrow.partition.tables.access import filled_bags
from windrow.partition.tables.plan import Cost, Plan, Range
from windrow.recsys.batches.deduplication.options import INVERSE_BYTES, WORTHWHILE_FACTOR
from windrow.recsys.batches.deduplication.survey import LogSurvey
from windrow.recsys.log.store import LogStore
from windrow.recsys.log_survey import groups_for
from windrow.recsys.log_tables import log_transforms, plan_tables, table_configs
from windrow.recsys.recipe_sections import RecommendationSections
from windrow.recsys.recommendation import make_click_model
from windrow.recsys.sharded.copies import CopyIndex
from windrow.recsys.sharded.packing import MessageFormat
from windrow.recsys.sharded.tables_of_ranks import TablesOfRanks, table_specs
from windrow.recsys.sharded.traffic import FeatureLoad, expected_traffic
from windrow.training.terminal import byte_size, count, table

__all__ = [
    "DeduplicationExplanation",
    "Saving",
    "describe_deduplication",
    "describe_groups",
    "explain_deduplication",
    "explain_formats",
    "groups_line",
]

HELD_BYTES = 8
"""An id, or the length of a list, in a batch: int64."""

VALUE_BYTES = 4
"""A float32 weight of an id."""

FIGURES: tuple[tuple[str, str, str, str], ...] = (
    ("O3", "read", "lists that readers hold", "bytes"),
    ("O4", "transform", "ids transformed", "number"),
    ("O5", "look_up", "ids on the wire", "bytes"),
    ("O5", "look_up", "rows looked up", "number"),
    ("O5", "look_up", "vectors on the wire", "bytes"),
    ("O5", "look_up", "gradients on the wire", "bytes"),
    ("O7", "compute", "items of sequence towers", "number"),
    ("O7", "compute", "rows computed of groups", "number"),
)
"""Step, its key in the recipe's section [deduplication], what there is less of, and its unit."""


@dataclass(frozen=True, slots=True)
class Saving:
    """What one step saves of one thing, in a step of training over all ranks, in batches of a clustered log.

    Attributes:
        step: O3 to O7.
        switch: its key in the recipe's section [deduplication].
        what: there is less of.
        unit: "bytes" or "number".
        without: all of it, as without deduplication.
        left: of it.
    """

    step: str
    switch: str
    what: str
    unit: str
    without: float
    left: float


@dataclass(frozen=True, kw_only=True, slots=True)
class DeduplicationExplanation:
    """What deduplication would save.

    Attributes:
        groups: of the recipe; where it has none, those that are proposed.
        proposed: whether they are.
        ranks: how many would train.
        group_size: ranks that look rows up among themselves; all, but for `Plan.replica_groups`.
        batch_size: samples of a step over all ranks.
        steps: in an epoch, the last one counted as what there is of it.
        savings: in the order of steps.
        factors: feature -> samples over distinct lists, counted in clustered batches.
        predicted_factors: feature -> the same by the formula, which knows of repeats within sessions alone.
    """

    groups: tuple[tuple[str, ...], ...]
    proposed: bool
    ranks: int
    group_size: int
    batch_size: float
    steps: float
    savings: tuple[Saving, ...]
    factors: Mapping[str, float]
    predicted_factors: Mapping[str, float]

    @property
    def not_worthwhile(self) -> dict[str, float]:
        """The features whose factor is too small, and the factor."""
        return {name: factor for name, factor in self.factors.items() if factor < WORTHWHILE_FACTOR}

    @property
    def repeated_by_chance(self) -> dict[str, float]:
        """Features that repeat, but not because sessions do: of few values; and the factor."""
        return {
            name: factor
            for name, factor in self.factors.items()
            if factor >= WORTHWHILE_FACTOR > self.predicted_factors[name]
        }


def explain_deduplication(
    recipe: RecommendationSections, store: LogStore, found: LogSurvey, *, ranks: int
) -> DeduplicationExplanation:
    """Work out what each step would save of a prepared log, by what was found in it for so many ranks.

    Raises:
        PlanError: the tables do not fit, or the plan's file is not right.
        RecipeError: a group names a feature that the log lacks.
    """
    groups = recipe.deduplication.groups or groups_for(recipe, found)
    unknown = [name for group in groups for name in group if name not in found.features]
    if unknown:
        raise RecipeError(
            f"deduplication.groups names {unknown[0]!r}, but the features are {', '.join(found.features)}: name these"
        )
    plan = plan_tables(recipe, store, ranks)
    plain, left = (_amounts(recipe, store, found, plan, ranks, groups, once=once) for once in (False, True))
    batch_size = found.batch_size * ranks
    return DeduplicationExplanation(
        groups=tuple(groups),
        proposed=not recipe.deduplication.groups,
        ranks=ranks,
        group_size=plan.group_size(ranks),
        batch_size=batch_size,
        steps=found.split_samples / batch_size,
        savings=tuple(Saving(*figure, plain[figure[2]], left[figure[2]]) for figure in FIGURES if plain[figure[2]]),
        factors={name: found.counted_factor([name]) for name in found.features},
        predicted_factors={name: found.predicted_factor([name]) for name in found.features},
    )


def _amounts(
    recipe: RecommendationSections,
    store: LogStore,
    found: LogSurvey,
    plan: Plan,
    ranks: int,
    groups: Sequence[Sequence[str]],
    *,
    once: bool,
) -> dict[str, float]:
    """What there is of `FIGURES` in a step of all ranks, taken to be alike; groups are held once or not."""
    transforms = log_transforms(recipe, store)
    num_samples = found.counted_samples()
    loads = {
        feature.name: FeatureLoad(num_samples, found.counted_ids(feature.name), not feature.multi_hot)
        for feature in transforms.features
    }
    rows_computed = 0.0 if once else num_samples * len(groups)
    for group in groups if once else ():
        rows, ids = found.distinct(group)
        rows_computed += rows
        loads |= {name: FeatureLoad(rows, ids[name], loads[name].one_each) for name in group}
    is_weighted = any(feature.weighted for feature in transforms.features)
    id_bytes = HELD_BYTES + VALUE_BYTES * is_weighted
    held = sum(id_bytes * load.ids + HELD_BYTES * load.rows for load in loads.values())
    traffic, group_size = Cost(), plan.group_size(ranks)
    for tables, pooled in zip(table_configs(recipe, store), (True, False), strict=True):
        if tables:
            features = {name for table in tables for name in table.feature_names}
            here = [kept for group in groups if once and (kept := [name for name in group if name in features])]
            options = recipe.tables.only(table.name for table in tables)
            names = {spec.name for spec in table_specs(tables, options)}
            of_tables = plan.only(names)
            stored = TablesOfRanks(tables, options, here, of_tables.copies if group_size > 1 else ())
            layout = stored.layout(of_tables, group_size, pooled=pooled)
            id_type = np.int64 if layout.wide_ids else np.int32
            form = MessageFormat(id_type, weighted=pooled and (is_weighted or bool(stored.arrays)), with_lengths=pooled)
            held_loads = loads | {name: loads[block.feature] for name, block in stored.blocks.items()}
            distinct = recipe.deduplication.index_dedup and not pooled and group_size > 1
            if distinct:
                held_loads = {name: replace(held_loads[name], ids=found.distinct_ids(name)) for name in layout.features}
            copied = {layout.features[number]: of_table for number, of_table in stored.copied_features(layout).items()}
            shares = partial(_shares, found, stored, held_loads, copied, distinct=distinct)
            of_group = expected_traffic(layout, form, held_loads, shares)
            traffic += sum([of_group] * plan.replica_groups, Cost())
    grouped = [name for group in groups for name in group]
    return {
        "lists that readers hold": ranks * (held + INVERSE_BYTES * num_samples * len(groups) * once),
        "ids transformed": ranks * sum(loads[name].ids for name in grouped if transforms.changes(name)),
        "ids on the wire": traffic.id_bytes,
        "rows looked up": traffic.lookups,
        "vectors on the wire": traffic.forward_bytes,
        "gradients on the wire": traffic.backward_bytes,
        "items of sequence towers": ranks * sum(loads[name].ids for name in grouped if name in recipe.model.sequences),
        "rows computed of groups": ranks * rows_computed,
    }


def _shares(
    found: LogSurvey,
    held: TablesOfRanks,
    loads: Mapping[str, FeatureLoad],
    copied: Mapping[str, CopyIndex],
    feature: str,
    rows: Range,
    *,
    distinct: bool,
) -> tuple[float, float]:
    """Share of a feature's ids in a range of rows, and of its lists that have any; blocks are looked up alike."""
    block, load = held.blocks.get(feature), loads[feature]
    if block is None:
        renumber = copied[feature].renumber if feature in copied else None
        of_ids = found.id_share(feature, rows, distinct=distinct, renumber=renumber)
    else:
        of_ids = (rows[1] - rows[0]) / block.form.stored[0].num_rows
    return of_ids, filled_bags(of_ids, load.ids / load.rows if load.rows else 0.0)


def explain_formats(
    recipe: RecommendationSections, store: LogStore, explained: DeduplicationExplanation, links: Links
) -> list[FormatSaving]:
    """Work out what shorter formats on the wire would save a step on the links of as many ranks.

    Vectors, whose mean width counts, are taken to go evenly between ranks; replicated tables are left out of the sums.
    """
    is_deduplicated = bool(recipe.deduplication.looked_up_groups())
    moved = {each.what: each.left if is_deduplicated else each.without for each in explained.savings}
    width = round(np.mean([table.embedding_dim for tables in table_configs(recipe, store) for table in tables]))
    found: list[FormatSaving] = []
    settings: tuple[Literal["vectors", "gradients"], ...] = ("vectors", "gradients")
    group = np.arange(links.size) // explained.group_size
    pairs = links.size * (explained.group_size - 1)
    for setting in settings:
        rows = moved.get(f"{setting} on the wire", 0.0) / (VALUE_BYTES * width) / max(pairs, 1)
        found += row_savings(setting, links, rows * (group[:, None] == group), width)
    model = make_click_model(recipe, store, seed=0)
    return found + sum_savings(links, sum(weight.numel() for weight in model.parameters() if weight.requires_grad))


def describe_deduplication(
    explained: DeduplicationExplanation, found: LogSurvey, recipe: RecommendationSections
) -> str:
    """Lay out what each step would save: about the log, the table of steps, and where it does not pay."""
    whose = "proposed, the recipe has none" if explained.proposed else "of the recipe"
    head = [*_head(found, explained.ranks), f"{groups_line(explained.groups)}   # {whose}", ""]
    if not explained.groups:
        head[-2] = NOTHING
    body = table([_row(saving, explained, recipe) for saving in explained.savings])
    return "\n".join([*head, body, "", *_notes(explained, found, recipe)])


def describe_groups(
    groups: Sequence[Sequence[str]], found: LogSurvey, recipe: RecommendationSections, *, ranks: int
) -> str:
    """Lay out what repeats, feature by feature, and the groups that are proposed, with the line for the recipe."""
    features = [
        {"feature": name, "mean length": found.mean_length(name), **_figures([name], found)} for name in found.features
    ]
    lines = [
        *_head(found, ranks),
        "",
        table(features),
        "",
        "d        share of samples that are as the one before in their session",
        f"formula  S / (1 + (S - 1)(1 - d)), with S = {found.samples_per_session_in_batch:.3g} of a clustered batch",
        "counted  samples over distinct ones in batches of a clustered log; repeats in other sessions count",
        "",
    ]
    if not groups:
        return "\n".join([*lines, NOTHING])
    lines += [table([{"group": ", ".join(group), **_figures(group, found)} for group in groups])]
    lines += ["", "for the recipe:", "", "[deduplication]"]
    lines += ([] if found.is_clustered else ["cluster = true"]) + [groups_line(groups)]
    if recipe.training.shuffle == "window":
        lines.append('# and in [training]: shuffle = "sessions"')
    if cure := _cure(found, recipe):
        lines += ["", f"so that samples of a session meet in batches: {cure}"]
    return "\n".join(lines)


NOTHING = f"no feature has a factor above {WORTHWHILE_FACTOR:g}: there is nothing to hold once"


def groups_line(groups: Sequence[Sequence[str]]) -> str:
    """Groups as a recipe has them: ``groups = [["cart", "sellers"], ["history"]]``."""
    return f"groups = {json.dumps([list(group) for group in groups], ensure_ascii=False)}"


def _head(found: LogSurvey, ranks: int) -> list[str]:
    order = "clustered" if found.is_clustered else "not clustered"
    pieces = "1 piece" if found.pieces == 1 else f"{found.pieces:g} pieces"
    return [
        (
            f"{found.num_samples:,} of {found.split_samples:,} training samples looked at, in {found.num_sessions:,} "
            f"sessions of {found.samples_per_session:.3g} samples (S); the store is {order}"
        ),
        (
            f"a batch of {ranks} x {found.batch_size:g} samples, {pieces} of the log on a rank: it holds "
            f"{found.samples_per_session_in_batch:.3g} samples of a session where the log is clustered"
        ),
    ]


def _figures(group: Sequence[str], found: LogSurvey) -> dict[str, object]:
    return {
        "d": found.unchanged(group),
        "formula": found.predicted_factor(group),
        "counted": found.counted_factor(group),
    }


def _row(saving: Saving, explained: DeduplicationExplanation, recipe: RecommendationSections) -> dict[str, object]:
    show = byte_size if saving.unit == "bytes" else count
    return {
        "step": saving.step,
        "switch": f"{saving.switch}, {'on' if getattr(recipe.deduplication, saving.switch) else 'off'}",
        "less": saving.what,
        "without": show(saving.without),
        "with": show(saving.left),
        "factor": f"{saving.without / saving.left:.3g} x" if saving.left else "",
        "an epoch saves": show((saving.without - saving.left) * explained.steps),
    }


def _notes(explained: DeduplicationExplanation, found: LogSurvey, recipe: RecommendationSections) -> list[str]:
    ranks = "1 rank" if explained.ranks == 1 else f"{explained.ranks} ranks together"
    lines = [f"without, with   in one step, {ranks}, of a clustered log; an epoch has {explained.steps:.4g} steps"]
    if explained.ranks == 1:
        lines.append("one rank sends nothing: --ranks N shows what several would send under the recipe's [plan]")
    if cure := _cure(found, recipe):
        lines.append(f"as it is read now, samples of a session seldom meet in a batch: {cure}")
    if explained.repeated_by_chance:
        lines.append(
            f"{_named(explained.repeated_by_chance)}: new in most samples, but of few values, which come back in other "
            "sessions; clustering does nothing for them, and no group is proposed for them"
        )
    if explained.not_worthwhile:
        lines.append(
            f"it does not pay for features with a factor below {WORTHWHILE_FACTOR:g}: "
            f"{_named(explained.not_worthwhile)}. Leave them out of groups; what describes the item that is shown is "
            "new in nearly every sample"
        )
    return lines


def _named(factors: Mapping[str, float]) -> str:
    return ", ".join(f"{name} ({factor:.2f})" for name, factor in factors.items())


def _cure(found: LogSurvey, recipe: RecommendationSections) -> str:
    """What brings samples of a session together; empty where they are."""
    steps = []
    if not found.is_clustered:
        steps.append("set deduplication.cluster = true and run windrow prepare again")
    if recipe.training.shuffle == "window":
        steps.append('set training.shuffle = "sessions", which keeps sessions whole')
    return ", and ".join(steps)
