"""From a recipe and its prepared log to embedding tables: which there are, and where they live."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import StoreError
from windrow.partition.tables.access import find_hot, is_frequent_first, octave_shares
from windrow.partition.tables.cost_model import ComputeModel
from windrow.partition.tables.costs import TableCosts, Workload
from windrow.partition.tables.plan import Plan, TableSpec
from windrow.partition.tables.planners import SHIPPED_MODEL, make_plan
from windrow.recsys.batches.arrow_columns import filled_in
from windrow.recsys.batches.deduplication.survey import SAMPLE_ROWS, LogSurvey, survey_log
from windrow.recsys.batches.transforms import Transforms
from windrow.recsys.log.store import LogStore, plain_settings
from windrow.recsys.recipe_sections import RecommendationSections
from windrow.recsys.sharded.tables_of_ranks import table_specs
from windrow.recsys.tables.options import EmbeddingBagConfig, EmbeddingConfig

if TYPE_CHECKING:
    from windrow.comm.links import Links

__all__ = [
    "check_store",
    "costs_of_tables",
    "count_table_rows",
    "log_table_specs",
    "log_transforms",
    "plan_tables",
    "plan_workload",
    "sequence_tables",
    "survey",
    "surveyed_table_specs",
    "table_configs",
]

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


def surveyed_table_specs(recipe: RecommendationSections, store: LogStore, world_size: int) -> list[TableSpec]:
    """`log_table_specs`, and of each table which rows are looked up how often, and which lists are looked up once.

    Rows are counted in `SAMPLE_ROWS` samples of the training split, equal lists in batches as so many ranks would have
    them. One pass over that part of the log.
    """
    counts = count_table_rows(store, SAMPLE_ROWS)
    groups, lists, ids = recipe.deduplication.looked_up_groups(), dict[str, float](), dict[str, float]()
    if groups:
        found = survey(recipe, store, ranks=world_size)
        samples = found.counted_samples()
        for group in groups:
            rows, of_features = found.distinct(group)
            lists |= dict.fromkeys(group, rows / samples)
            ids |= {name: number / samples for name, number in of_features.items()}
    specs = []
    for spec in log_table_specs(recipe, store):
        table = spec.name.removesuffix(OWN_COPY) if spec.name not in counts else spec.name
        looked_up = counts.get(table)
        per_feature = spec.lookups_per_sample / len(spec.features)
        access, hot = () if looked_up is None else octave_shares(looked_up), tuple[int, ...]()
        in_order = looked_up is None or is_frequent_first(looked_up)
        if looked_up is not None and not in_order:
            access, hot = find_hot(np.arange(len(looked_up)), looked_up, len(looked_up))
        specs.append(
            replace(
                spec,
                access=access,
                frequent_first=in_order,
                hot=hot,
                lists_per_sample=float(np.mean([lists.get(name, 1.0) for name in spec.features])),
                lookups_per_sample=sum(ids.get(name, per_feature) for name in spec.features),
            )
        )
    return specs


def count_table_rows(store: LogStore, most_samples: int | None = None) -> dict[str, npt.NDArray[np.int64]]:
    """How often each row of each table is named in the training split: [rows] by table, one pass over its files.

    Tables of features that are made while the log is read are left out.

    Args:
        store: prepared log.
        most_samples: about as many samples, in row groups all over the split; None for all.
    """
    from pyarrow import compute, parquet

    counts = {table: np.zeros(rows, np.int64) for table, rows in store.table_rows().items()}
    names = [feature.name for feature in store.features]
    split = store.split("train")
    every = 1 if most_samples is None else max(split.rows // most_samples, 1)
    place = 0
    for path in split.files:
        file = parquet.ParquetFile(path)
        for group in range(file.num_row_groups):
            place += 1
            if (place - 1) % every:
                continue
            columns = filled_in(file.read_row_group(group, columns=names))
            for feature in store.features:
                ids = compute.list_flatten(columns[feature.name]) if feature.multi_hot else columns[feature.name]
                counts[feature.table] += np.bincount(ids.to_numpy(), minlength=feature.rows)
    return counts


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
