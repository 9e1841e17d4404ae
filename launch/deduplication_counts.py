"""What a training step holds, sends, looks up and computes, with equal lists of groups held once or not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from windrow.launch.recommendation_recipe import RecommendationRecipe
from windrow.launch.recommendation_tables import (
    bag_configs,
    log_transforms,
    plan_of,
    plan_tables,
    sequence_configs,
)
from windrow.recsys.deduplication.factor import INVERSE_BYTES
from windrow.recsys.deduplication.survey import LogSurvey
from windrow.recsys.deduplication.surveyed_batches import SurveyedBatches
from windrow.recsys.deduplication.traffic import FeatureLoad, LookupTraffic, expected_traffic
from windrow.recsys.sharded.layout import make_layout
from windrow.recsys.sharded.message import MessageFormat
from windrow.recsys.store import LogStore

if TYPE_CHECKING:
    from windrow.recsys.embedding_configs import TableConfig

__all__ = ["StepCounter", "StepCounts"]

HELD_BYTES = 8
"""An id, or the length of a list, in a batch: int64."""

VALUE_BYTES = 4
"""A float32: a weight of an id, or a number of a vector."""

Groups = Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCounts:
    """A step of training, all ranks together."""

    held_bytes: float
    """Ids, weights, lengths and inverses of the batches that readers give."""
    list_values: float
    """Ids of the groups' features that transforms go over."""
    id_bytes: float
    """Of ids on their way to other ranks."""
    lookups: float
    """Rows of tables that are read."""
    vector_bytes: float
    """Of vectors on their way home; as much again of gradients on the way back."""
    padded_bytes: float
    """Vectors of the groups' sequence features, in a matrix that is as wide as the longest list."""
    jagged_bytes: float
    """The same without padding."""
    items: float
    """Ids of the groups' sequence features: what their towers work on."""
    group_rows: float
    """Rows of all groups: what is computed from a group alone is computed for each."""


class StepCounter:
    """Counts what batches of a log mean for a recipe.

    Args:
        recipe: as it would be trained.
        store: its prepared log.
        found: in the log.
        ranks: how many would train.
        groups: of features that would be held once.

    Raises:
        PlanError: the tables do not fit, or the plan's file is not right.
    """

    def __init__(
        self,
        recipe: RecommendationRecipe,
        store: LogStore,
        found: LogSurvey,
        *,
        ranks: int,
        groups: Groups,
    ) -> None:
        self._found = found
        self._ranks = ranks
        self._groups = tuple(tuple(group) for group in groups)
        transforms = log_transforms(recipe, store)
        self._entries = {feature.name: feature for feature in transforms.features}
        self._changed = [name for group in self._groups for name in group if transforms.changes(name)]
        self._vector_bytes = VALUE_BYTES * recipe.tables.dim
        self._plan = plan_tables(recipe, store, ranks)
        self._collections: list[tuple[Sequence[TableConfig], bool]] = [
            (bag_configs(recipe, store), True),
            (sequence_configs(recipe, store), False),
        ]
        self._sequences = [
            name for name in recipe.model.sequences if any(name in group for group in self._groups)
        ]

    def count(self, batches: SurveyedBatches, *, deduplicated: bool) -> StepCounts:
        """Count.

        Args:
            batches: of one rank; those of the others are taken to be alike.
            deduplicated: whether equal lists of groups are held once.
        """
        groups = self._groups if deduplicated else ()
        num_samples = batches.num_samples
        loads = {
            name: FeatureLoad(num_samples, batches.num_ids(name), not entry.multi_hot)
            for name, entry in self._entries.items()
        }
        group_rows = num_samples * len(self._groups)
        if deduplicated:
            group_rows = 0.0
            for group in groups:
                rows, ids = batches.distinct(group)
                group_rows += rows
                loads |= {name: FeatureLoad(rows, ids[name], loads[name].one_each) for name in group}
        traffic = self._traffic(loads, groups)
        padded = jagged = 0.0
        for name in self._sequences:
            padded += num_samples * batches.longest(name) * self._vector_bytes
            jagged += batches.num_ids(name) * self._vector_bytes
        each = self._ranks
        return StepCounts(
            held_bytes=each * (self._held_bytes(loads) + INVERSE_BYTES * num_samples * len(groups)),
            list_values=each * sum(loads[name].ids * self._stored_share(name) for name in self._changed),
            id_bytes=traffic.id_bytes,
            lookups=traffic.lookups,
            vector_bytes=traffic.vector_bytes,
            padded_bytes=each * padded,
            jagged_bytes=each * jagged,
            items=each * sum(loads[name].ids for name in self._sequences),
            group_rows=each * group_rows,
        )

    def _stored_share(self, feature: str) -> float:
        """Ids that the store has, for each that transforms leave."""
        given = self._found.sample.num_ids(feature)
        return self._found.num_stored[feature] / given if given else 0.0

    def _held_bytes(self, loads: Mapping[str, FeatureLoad]) -> float:
        weighted = any(entry.weighted for entry in self._entries.values())
        each_id = HELD_BYTES + VALUE_BYTES * weighted
        return sum(each_id * load.ids + HELD_BYTES * load.rows for load in loads.values())

    def _traffic(self, loads: Mapping[str, FeatureLoad], groups: Groups) -> LookupTraffic:
        total = LookupTraffic(0.0, 0.0, 0.0)
        weighted = any(entry.weighted for entry in self._entries.values())
        for tables, pooled in self._collections:
            if not tables:
                continue
            held = {name for table in tables for name in table.feature_names}
            here = [kept for group in groups if (kept := [name for name in group if name in held])]
            plan = plan_of(self._plan, {table.name for table in tables})
            layout = make_layout(tables, plan, self._ranks, here)
            form = MessageFormat(
                np.int64 if layout.wide_ids else np.int32, weighted=weighted and pooled, with_lengths=pooled
            )
            total += expected_traffic(layout, form, loads, self._found.id_share)
        return total
