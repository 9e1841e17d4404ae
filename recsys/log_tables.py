"""From a recipe and its prepared log to embedding tables: which there are, and where they live."""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError

from windrow.comm.errors import StoreError
from windrow.partition.atomic_writes import write_atomically
from windrow.partition.tables.access import find_hot, is_frequent_first, octave_shares
from windrow.partition.tables.affinity import RANGES
from windrow.partition.tables.cost_model import ComputeModel
from windrow.partition.tables.costs import TableCosts, Workload
from windrow.partition.tables.plan import Plan, TableSpec
from windrow.partition.tables.planners import SHIPPED_MODEL, make_plan
from windrow.recsys.batches.arrow_columns import Lists
from windrow.recsys.batches.batch_reader import Shards
from windrow.recsys.batches.deduplication.survey import SAMPLE_ROWS, LogSurvey, survey_log
from windrow.recsys.batches.jagged import Jagged
from windrow.recsys.batches.row_groups import ColumnChoice, Columns, SplitFiles
from windrow.recsys.batches.transforms import Transforms
from windrow.recsys.log.store import FeatureEntry, LogStore, plain_settings
from windrow.recsys.recipe_sections import RecommendationSections
from windrow.recsys.sharded.tables_of_ranks import table_specs
from windrow.recsys.tables.options import EmbeddingBagConfig, EmbeddingConfig

if TYPE_CHECKING:
    from windrow.comm.links import Links

__all__ = [
    "LogAccess",
    "check_store",
    "costs_of_tables",
    "count_table_rows",
    "log_access",
    "log_table_specs",
    "log_transforms",
    "plan_tables",
    "plan_workload",
    "sequence_tables",
    "survey",
    "surveyed_table_specs",
    "table_configs",
]

ACCESS_VERSION = 1
"""Of the files that `log_access` keeps."""
OWN_COPY = "_sequence"
"""Ends the name of a table that pools some features and not others: the two kinds of lookup have tables each."""


def check_store(recipe: RecommendationSections, store: LogStore) -> None:
    """Refuse a store that was prepared for other features, or with other settings.

    Where the files of the log are does not matter: they may have moved.

    Raises:
        StoreError: names what differs.
    """
    for what, wanted, found in (
        ("features", tuple(recipe.log.features), tuple(feature.name for feature in store.features)),
        ("dense columns", recipe.log.dense, store.dense),
    ):
        # What only the reader of a format knows, such as Criteo's columns, the recipe need not name.
        if wanted and wanted != found:
            raise StoreError(
                f"{store.path} was prepared with the {what} {list(found)}, but the recipe has {list(wanted)}: run "
                "windrow prepare again, or name another store"
            )
    # What else is to be deduplicated does not concern the store.
    order = {"shard": recipe.deduplication.shard, "cluster": recipe.deduplication.cluster}
    for section, settings, before in (
        ("log", plain_settings(recipe.log), {"label_kind": "binary", "sample_weight": "", "vocabularies_from": None}),
        ("split", plain_settings(recipe.split), {}),
        ("deduplication", order, {"shard": False, "cluster": False}),  # Older stores do not say.
    ):
        prepared = before | store.manifest.origin.get(section, {})
        for key, value in settings.items():
            if not key.endswith(("paths", "_from")) and value != prepared.get(key):
                raise StoreError(
                    f"{store.path} was prepared with {key} = {prepared.get(key)}, but the recipe has {value}: run "
                    "windrow prepare again, or name another store"
                )


def log_transforms(recipe: RecommendationSections, store: LogStore) -> Transforms:
    """What is done to the ids of a log while it is read, and the features that come out.

    Raises:
        RecipeError: the section [transforms] does not fit the log.
    """
    return Transforms(recipe.transforms, store.features, store.dense)


def table_configs(
    recipe: RecommendationSections, store: LogStore
) -> tuple[Sequence[EmbeddingBagConfig], Sequence[EmbeddingConfig]]:
    """The tables whose rows are pooled, and those whose rows come one by one, in the order in which features name them.

    A table that features of both kinds name becomes two, with weights of their own.
    """
    by_table: dict[str, tuple[int, list[str]]] = {}
    for feature in log_transforms(recipe, store).features:
        by_table.setdefault(feature.table, (feature.rows, []))[1].append(feature.name)
    bags, sequences = [], []
    for table, (rows, features) in by_table.items():
        pooled = [name for name in features if name not in recipe.model.sequences]
        single = [name for name in features if name in recipe.model.sequences]
        own = table + OWN_COPY if pooled else table
        if pooled:
            dim = recipe.tables.of(table).dim
            bags.append(EmbeddingBagConfig(name=table, num_embeddings=rows, embedding_dim=dim, feature_names=pooled))
        if single:
            dim = recipe.tables.of(own).dim
            sequences.append(EmbeddingConfig(name=own, num_embeddings=rows, embedding_dim=dim, feature_names=single))
    return bags, sequences


def sequence_tables(recipe: RecommendationSections) -> set[str]:
    """Names of the tables whose rows come one by one, from the recipe alone."""
    log, sequences = recipe.log, set(recipe.model.sequences)
    pooled = {log.table_of(feature) for feature in log.features if feature not in sequences}
    found = {log.table_of(feature) for feature in sequences}
    return {table + OWN_COPY if table in pooled else table for table in found}


def log_table_specs(recipe: RecommendationSections, store: LogStore) -> list[TableSpec]:
    """What planners have to know of all tables: sizes, and ids per sample as counted in the training split."""
    bags, sequences = table_configs(recipe, store)
    specs = table_specs([*bags, *sequences], recipe.tables)
    rows = store.split("train").rows
    mean_ids = {feature.name: feature.mean_ids("train", rows) for feature in store.features}
    # A feature that the reader makes of a dense column has one id in every sample.
    return [
        replace(
            spec,
            lookups_per_sample=sum(mean_ids.get(name, 1.0) for name in spec.features),
            index_dedup=recipe.deduplication.index_dedup and not spec.pooled,
        )
        for spec in specs
    ]


def survey(recipe: RecommendationSections, store: LogStore, *, ranks: int, max_rows: int = SAMPLE_ROWS) -> LogSurvey:
    """Look at the prepared log of a recipe as so many ranks would train from it: see `survey_log`."""
    return survey_log(
        store,
        batch_size=recipe.training.batch_size,
        reader_shards=recipe.training.reader_shards,
        size=ranks,
        transforms=log_transforms(recipe, store),
        max_rows=max_rows,
    )


@dataclass(frozen=True, kw_only=True)
class LogAccess:
    """What was counted in a log: how often rows are looked up, by which rank, and which lists are looked up once."""

    access: Mapping[str, tuple[float, ...]]
    """By table, as `TableSpec.access`."""
    hot: Mapping[str, tuple[int, ...]]
    """`TableSpec.hot` of the tables whose frequent rows are not the first ones."""
    near: Mapping[str, tuple[tuple[float, ...], ...]]
    """`TableSpec.near`, where there are several ranks, each of which reads a part of the log."""
    lists: Mapping[str, float]
    """By deduplicated feature, lists for each sample that are looked up."""
    ids: Mapping[str, float]
    """Likewise ids in these."""


def log_access(recipe: RecommendationSections, store: LogStore, world_size: int) -> LogAccess:
    """Look at `SAMPLE_ROWS` samples of the training split as so many ranks would read it, or at what was found before.

    What is found is kept in the folder ``access`` of the store, a file for each number of ranks and of shards, and for
    what else it depends on.

    Cost: one pass over that part of the log; with deduplicated groups, another one.
    """
    groups, training = recipe.deduplication.looked_up_groups(), recipe.training
    transforms = {name: plain_settings(found) for name, found in recipe.transforms.items()}
    about = [ACCESS_VERSION, SAMPLE_ROWS, store.fingerprint, world_size, training.reader_shards, transforms]
    about += [groups, training.batch_size] if groups else []
    digest = hashlib.sha256(json.dumps(about).encode()).hexdigest()
    path = store.path / "access" / f"{digest[:16]}.json"
    kept: TypeAdapter[LogAccess] = TypeAdapter(LogAccess)
    # One that cannot be read is counted anew, and so is each where the store cannot be written to.
    with contextlib.suppress(OSError, ValidationError):
        return kept.validate_json(path.read_bytes())
    found = _count_access(recipe, store, world_size)
    with contextlib.suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, kept.dump_json(found))
    return found


def _count_access(recipe: RecommendationSections, store: LogStore, world_size: int) -> LogAccess:
    transforms, first_rows = log_transforms(recipe, store), _first_rows(recipe, store, world_size)
    rows = {feature.table: feature.rows for feature in transforms.features}
    counts = {table: np.zeros(number, np.int64) for table, number in rows.items()}
    near = {table: np.zeros((world_size, RANGES), np.int64) for table in rows}
    seen = np.zeros(len(first_rows) - 1, np.int64)
    """Samples of each rank."""
    for first, number, columns in _read_sample(store, transforms, SAMPLE_ROWS):
        bounds_here = np.clip(first_rows, first, first + number)
        seen += bounds_here[1:] - bounds_here[:-1]
        for feature in transforms.features:
            read = columns[feature.name]
            counts[feature.table] += _named(read, feature)
            bounds = read.offsets[bounds_here - first]
            for rank, (start, stop) in enumerate(pairwise(bounds.tolist())):
                ranges = read.values[start:stop].astype(np.int64) * RANGES // feature.rows
                near[feature.table][rank] += np.bincount(ranges, minlength=RANGES)
    access, hot = dict[str, tuple[float, ...]](), dict[str, tuple[int, ...]]()
    for table, found in counts.items():
        if is_frequent_first(found):
            access[table] = octave_shares(found)
        else:
            access[table], hot[table] = find_hot(np.arange(len(found)), found, len(found))
    lists, ids_of_lists = dict[str, float](), dict[str, float]()
    groups = recipe.deduplication.looked_up_groups()
    if groups:
        surveyed = survey(recipe, store, ranks=world_size)
        samples = surveyed.counted_samples()
        for group in groups:
            distinct, of_features = surveyed.distinct(group)
            lists |= dict.fromkeys(group, distinct / samples)
            ids_of_lists |= {name: ids / samples for name, ids in of_features.items()}
    shares = dict[str, tuple[tuple[float, ...], ...]]()
    if len(seen) == world_size > 1 and seen.all():
        # Of some ranks more samples were looked at than of others.
        scale = (np.diff(first_rows) / seen)[:, None]
        shares = {
            table: tuple(map(tuple, (scale * found / (scale * found).sum()).tolist()))
            for table, found in near.items()
            if found.any()
        }
    return LogAccess(access=access, hot=hot, near=shares, lists=lists, ids=ids_of_lists)


def _first_rows(recipe: RecommendationSections, store: LogStore, world_size: int) -> npt.NDArray[np.int64]:
    """Where the rows of the training split that each rank reads begin, and the end; of one, where so many cannot."""
    rows, training = store.split("train").rows, recipe.training
    shards = Shards(rows, training.batch_size, training.reader_shards)
    ranks = world_size if world_size <= shards.num_shards else 1
    return np.array([*(shards.rows(shards.of_rank(rank, ranks)[0])[0] for rank in range(ranks)), rows], np.int64)


def surveyed_table_specs(recipe: RecommendationSections, store: LogStore, world_size: int) -> list[TableSpec]:
    """`log_table_specs`, with what `log_access` finds."""
    found = log_access(recipe, store, world_size)
    specs = []
    for spec in log_table_specs(recipe, store):
        table = spec.name.removesuffix(OWN_COPY) if spec.name not in found.access else spec.name
        per_feature = spec.lookups_per_sample / len(spec.features)
        specs.append(
            replace(
                spec,
                access=found.access.get(table, ()),
                frequent_first=table not in found.hot,
                hot=found.hot.get(table, ()),
                near=found.near.get(table, ()),
                lists_per_sample=float(np.mean([found.lists.get(name, 1.0) for name in spec.features])),
                lookups_per_sample=sum(found.ids.get(name, per_feature) for name in spec.features),
            )
        )
    return specs


def count_table_rows(store: LogStore, transforms: Transforms | None = None) -> dict[str, npt.NDArray[np.int64]]:
    """How often each row of each table is named in the training split: [rows] by table, one pass over its files.

    Args:
        store: prepared log.
        transforms: what is done to ids while they are read.
    """
    transforms = transforms or Transforms({}, store.features, store.dense)
    counts = {feature.table: np.zeros(feature.rows, np.int64) for feature in transforms.features}
    for _, _, columns in _read_sample(store, transforms, None):
        for feature in transforms.features:
            counts[feature.table] += _named(columns[feature.name], feature)
    return counts


def _named(lists: Lists, feature: FeatureEntry) -> npt.NDArray[np.int64]:
    """How often each row of the feature's table is in some lists."""
    return np.bincount(lists.values[lists.offsets[0] : lists.offsets[-1]], minlength=feature.rows)


def _read_sample(
    store: LogStore, transforms: Transforms, most_samples: int | None
) -> Iterator[tuple[int, int, dict[str, Lists]]]:
    """About so many samples of the training split, in row groups all over it; None: all of them.

    Yields:
        The first row, how many there are, and the ids of each feature, transformed.
    """
    split = store.split("train")
    files = SplitFiles(split)
    every = 1 if most_samples is None else max(split.rows // most_samples, 1)
    num_dense = store.num_dense * any(transforms.is_new(feature.name) for feature in transforms.features)
    choice = ColumnChoice(features=store.features, num_dense=num_dense, num_labels=0, transforms=transforms)

    def take(table: Any) -> dict[str, Lists]:
        columns = Columns(table, choice)
        return {
            feature.name: columns.lists(feature.name)
            if feature.multi_hot
            else Jagged.of_single(columns.ids(feature.name))
            for feature in transforms.features
        }

    for number, first in enumerate(files.offsets[:-1]):
        if number % every == 0:
            rows = int(files.offsets[number + 1] - first)
            yield int(first), rows, files.read(number, choice.columns(), take)


def plan_workload(recipe: RecommendationSections, world_size: int, links: "Links | None") -> Workload:
    """What a step of a recipe does with its tables, on so many ranks."""
    per_core = recipe.plan.ranks_per_core
    return Workload.of_step(recipe.training.batch_size, world_size, recipe.wire, links, ranks_per_core=per_core)


def costs_of_tables(
    recipe: RecommendationSections,
    specs: Sequence[TableSpec],
    world_size: int,
    links: "Links | None",
    *,
    replica_groups: int,
) -> TableCosts:
    """What predicts the cost of plans of a recipe's tables, by its cost model: StoreError where there is none."""
    model = ComputeModel.load(recipe.plan.cost_model or SHIPPED_MODEL)
    return TableCosts(specs, world_size, plan_workload(recipe, world_size, links), model, replica_groups=replica_groups)


def plan_tables(
    recipe: RecommendationSections,
    store: LogStore,
    world_size: int,
    links: "Links | None" = None,
    surveyed: Sequence[TableSpec] = (),
) -> Plan:
    """Where the tables live, as the recipe's section [plan] says.

    Args:
        recipe: of a prepared log.
        store: that log.
        world_size: number of ranks.
        links: between these, for planners that ask what travelling costs; None: nothing.
        surveyed: what `surveyed_table_specs` found, where it was asked before.

    Raises:
        PlanError: the plan's file is not right, or the tables do not fit into the ranks' memory.
        StoreError: there is no such cost model.
    """
    if not recipe.plan.asks_costs:
        specs: Sequence[TableSpec] = log_table_specs(recipe, store)
    else:
        specs = surveyed or surveyed_table_specs(recipe, store, world_size)
    return make_plan(recipe.plan, specs, world_size, plan_workload(recipe, world_size, links))
