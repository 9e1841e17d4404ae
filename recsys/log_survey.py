"""What is in the prepared log of a recipe: sizes, repeats in its batches, and what a training step costs.

Batches are those that training would have. A step's bytes and lookups are counted with equal lists of features held
once or not.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from windrow.comm.errors import RecipeError, from_here
from windrow.partition.tables.plan import Cost
from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.batch_reader import BatchReader
from windrow.recsys.batches.deduplication.options import INVERSE_BYTES
from windrow.recsys.batches.deduplication.propose_groups import lookup_costs, propose_groups
from windrow.recsys.batches.deduplication.survey import LogSurvey, SurveyedBatches, survey_log
from windrow.recsys.batches.deduplication.survey_sample import SAMPLE_ROWS
from windrow.recsys.log.staging import SHARD_ROWS
from windrow.recsys.log.store import LogStore
from windrow.recsys.log_tables import bag_configs, check_store, log_transforms, plan_of, plan_tables, sequence_configs
from windrow.recsys.recipe_sections import RecommendationSections
from windrow.recsys.sharded.layout import make_layout
from windrow.recsys.sharded.packing import MessageFormat
from windrow.recsys.sharded.traffic import FeatureLoad, expected_traffic
from windrow.training.terminal import byte_size, table

if TYPE_CHECKING:
    from windrow.recsys.tables.options import TableConfig

__all__ = ["StepCounter", "StepCounts", "groups_for", "log_summary", "open_and_survey"]

BATCHES_AS_READ = 4
"""Batches of the training reader that are looked at, spread over an epoch."""


def open_and_survey(
    recipe: RecommendationSections, *, ranks: int, seed: int, max_rows: int | None = None
) -> tuple[LogStore, LogSurvey]:
    """Open the prepared log of a recipe and look at it, as so many ranks would train from it.

    Args:
        recipe: as it would be trained.
        ranks: how many would train.
        seed: of the run.
        max_rows: about the most samples to look at; None for as many as rates need to be right within 1 %.

    Raises:
        RecipeError: a number is out of range, more ranks than shards, or a recipe without a store.
        StoreError: the store is of another recipe, has no sessions, or cannot be read.
    """
    for name, value in (("ranks", ranks), ("rows", max_rows)):
        if value is not None and value < 1:
            raise RecipeError(f"--{name} {value}: expected at least 1")
    if recipe.log.format == "interactions":
        raise RecipeError(
            f'{recipe.name} is of format = "interactions", whose minibatches have no sessions: logs of clicks alone '
            "can be deduplicated"
        )
    store = LogStore.open(recipe.store)
    check_store(recipe, store)
    found = survey_log(
        store,
        _batches_as_read(recipe, store, ranks, seed),
        batch_size=recipe.training.batch_size,
        reader_shards=recipe.training.reader_shards,
        size=ranks,
        transforms=log_transforms(recipe, store),
        num_files=-(-store.split("train").rows // SHARD_ROWS),
        max_rows=SAMPLE_ROWS if max_rows is None else max_rows,
    )
    return store, found


def groups_for(recipe: RecommendationSections, found: LogSurvey) -> tuple[tuple[str, ...], ...]:
    """Propose groups: those that save most in clustered batches."""
    log, tables = recipe.log, recipe.tables
    # A feature that transforms make has a table of its own name.
    dims = {name: tables.of(log.table_of(name) if name in log.features else name).dim for name in found.features}
    costs = lookup_costs(dims, sequences=recipe.model.sequences)
    return propose_groups(found, costs)


def _batches_as_read(recipe: RecommendationSections, store: LogStore, ranks: int, seed: int) -> Iterator[Batch]:
    """Batches of rank 0 in which nothing is held once."""
    training = recipe.training
    reader = BatchReader(
        store,
        "train",
        rank=0,
        size=ranks,
        batch_size=training.batch_size,
        reader_shards=training.reader_shards,
        shuffle=training.shuffle,
        shuffle_rows=training.shuffle_rows,
        seed=seed,
        memory_bytes=training.reader_memory_bytes,
        transforms=log_transforms(recipe, store),
    )
    # The last step may be short.
    full_steps = max(1, reader.samples_per_epoch // training.batch_size)
    for step in np.unique(np.linspace(0, full_steps - 1, BATCHES_AS_READ).astype(int)).tolist():
        with reader.batches(0, step) as batches:
            yield next(batches)


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
    """Counts what batches of a log mean for a recipe on so many ranks, with groups of features held once or not.

    Raises:
        PlanError: the tables do not fit, or the plan's file is not right.
    """

    def __init__(
        self, recipe: RecommendationSections, store: LogStore, found: LogSurvey, *, ranks: int, groups: Groups
    ) -> None:
        self._found = found
        self._ranks = ranks
        self._groups = tuple(tuple(group) for group in groups)
        transforms = log_transforms(recipe, store)
        self._entries = {feature.name: feature for feature in transforms.features}
        self._changed = [name for group in self._groups for name in group if transforms.changes(name)]
        self._plan = plan_tables(recipe, store, ranks)
        self._collections: list[tuple[Sequence[TableConfig], bool]] = [
            (bag_configs(recipe, store), True),
            (sequence_configs(recipe, store), False),
        ]
        grouped = {name for group in self._groups for name in group}
        self._vector_bytes = {
            name: VALUE_BYTES * table.embedding_dim
            for table in self._collections[1][0]
            for name in table.feature_names
            if name in grouped
        }
        """Of an item of each sequence that is in a group."""

    def count(self, batches: SurveyedBatches, *, deduplicated: bool) -> StepCounts:
        """Count in batches of one rank; those of the others are taken to be alike."""
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
        for name, vector_bytes in self._vector_bytes.items():
            padded += num_samples * batches.longest(name) * vector_bytes
            jagged += batches.num_ids(name) * vector_bytes
        each = self._ranks
        return StepCounts(
            held_bytes=each * (self._held_bytes(loads) + INVERSE_BYTES * num_samples * len(groups)),
            list_values=each * sum(loads[name].ids * self._stored_share(name) for name in self._changed),
            id_bytes=traffic.id_bytes,
            lookups=traffic.lookups,
            vector_bytes=traffic.forward_bytes,
            padded_bytes=each * padded,
            jagged_bytes=each * jagged,
            items=each * sum(loads[name].ids for name in self._vector_bytes),
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

    def _traffic(self, loads: Mapping[str, FeatureLoad], groups: Groups) -> Cost:
        total = Cost()
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


TRAIN = "train"


def log_summary(store: LogStore) -> list[str]:
    """Describe a prepared log in lines.

    They have samples and positives of each split; for each feature the rows of its table, the different values behind
    them, samples without a value and ids of unseen values in all splits, and ids per training sample; the size on disk.
    """
    manifest = store.manifest
    splits = [
        {
            "split": name,
            "samples": f"{entry.rows:,}",
            "positives": ", ".join(f"{count:,}" for count in entry.positives),
            "base rate": ", ".join(f"{rate:.4f}" for rate in store.split(name).base_rates),
            "files": len(entry.files),
        }
        for name, entry in manifest.splits.items()
    ]
    distinct = {file.name.split("/")[-1].removesuffix(".parquet"): file.rows for file in manifest.vocabularies}
    features = [
        {
            "feature": feature.name,
            "ids": feature.ids,
            "rows": f"{feature.rows:,}",
            "distinct": f"{distinct[feature.table]:,}" if feature.ids == "vocabulary" else "-",
            "missing": f"{_total(feature.counts, 'missing'):,}",
            "unseen": f"{_total(feature.counts, 'unseen'):,}" if feature.ids == "vocabulary" else "-",
            "ids per sample": f"{feature.mean_ids(TRAIN, manifest.splits[TRAIN].rows):.2f}",
        }
        for feature in store.features
    ]
    lines = table(splits).splitlines()
    if features:
        lines += ["", *table(features).splitlines()]
    empty = {name: missing for name, missing in manifest.dense_missing.items() if missing}
    if empty:
        lines.append("missing dense values, now 0: " + ", ".join(f"{name} {n:,}" for name, n in empty.items()))
    lines.append(from_here(f"{byte_size(sum(file.num_bytes for file in manifest.all_files()))} in {store.path}"))
    return lines


def _total(counts: Mapping[str, Mapping[str, int]], name: str) -> int:
    return sum(numbers[name] for numbers in counts.values())
