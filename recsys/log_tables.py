"""From a recipe and its prepared log to embedding tables: which there are, and where they live."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from windrow.comm.errors import StoreError
from windrow.partition.tables.plan import Plan, TableSpec
from windrow.partition.tables.planners import make_plan
from windrow.recsys.batches.transforms import Transforms
from windrow.recsys.log.store import LogStore, plain_settings
from windrow.recsys.recipe_sections import RecommendationSections
from windrow.recsys.sharded.collection import table_specs
from windrow.recsys.tables.import_export import load_pretrained
from windrow.recsys.tables.options import EmbeddingBagConfig, EmbeddingConfig, check_names

if TYPE_CHECKING:
    from windrow.recsys.tables.table import TableBatch

__all__ = [
    "check_store",
    "log_table_specs",
    "log_transforms",
    "plan_of",
    "plan_tables",
    "sequence_tables",
    "set_first_values",
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
    return [replace(spec, lookups_per_sample=sum(mean_ids.get(name, 1.0) for name in spec.features)) for spec in specs]


def plan_tables(recipe: RecommendationSections, store: LogStore, world_size: int) -> Plan:
    """Where the tables live, as the recipe's section [plan] says.

    Raises:
        PlanError: the plan's file is not right, or the tables do not fit into the ranks' memory.
    """
    return make_plan(recipe.plan, log_table_specs(recipe, store), world_size)


def plan_of(plan: Plan, tables: set[str]) -> Plan:
    """The part of a plan that concerns some tables."""
    return Plan(
        shards=tuple(shard for shard in plan.shards if shard.table in tables),
        replicated=tuple(replica for replica in plan.replicated if replica.table in tables),
    )


def set_first_values(
    pretrained: Mapping[str, Path], specs: Iterable[TableSpec], tables: "Iterable[TableBatch]"
) -> None:
    """Put rows that were trained elsewhere, in a file for each table, into this rank's pieces of tables.

    Nobody else has to be present.

    Raises:
        RecipeError: there is no table of that name.
        DataError: a file does not fit its table.
    """
    shapes = {spec.name: (spec.rows, spec.dim) for spec in specs}
    check_names("tables.pretrained", pretrained, list(shapes))
    for batch in tables:
        batch.load_state(
            replace(
                part,
                tensor=load_pretrained(pretrained[name], name, part.piece.rows, part.piece.columns, shape=shapes[name]),
            )
            for part in batch.state()
            if (name := part.piece.name) in pretrained and part.name == "weight"
        )
