"""A recommendation model by recipe: its tables, model, minibatches and evaluation."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from windrow.comm.errors import RecipeError
from windrow.comm.world import World
from windrow.partition.tables.planners import make_plan
from windrow.recsys.batches.interaction_reader import InteractionReader, Neighbourhoods
from windrow.recsys.batches.interactions import read_interactions
from windrow.recsys.batches.sampling import NegativeSampler
from windrow.recsys.evaluation import METRICS_OF
from windrow.recsys.log.store import LogStore
from windrow.recsys.log_tables import check_store, log_transforms, plan_tables, plan_workload, table_configs
from windrow.recsys.models.build import build_model
from windrow.recsys.models.click_models import ClickModel
from windrow.recsys.models.retrieval import TwoTower, two_tower_tables
from windrow.recsys.ranking_evaluation import RankingEvaluator
from windrow.recsys.recipe_sections import RecommendationSections
from windrow.recsys.recommender import Recommender
from windrow.recsys.sharded.pooled import EmbeddingBagCollection
from windrow.recsys.sharded.sequences import EmbeddingCollection
from windrow.recsys.sharded.tables_of_ranks import table_specs
from windrow.recsys.tables.options import TableConfig, embedding_names
from windrow.recsys.task import ClickTask, RecommendationTask

if TYPE_CHECKING:
    from windrow.comm.links import Links

__all__ = ["make_click_model", "recommendation"]

FIGURES = {
    "binary": {"test auc": "test auc", "test normalised entropy": "test NE"},
    "real": {"test rmse": "test rmse", "test mae": "test mae"},
}
SPEED = {"samples per second": "samples/s"}


def recommendation(
    world: World, recipe: RecommendationSections, device: torch.device, *, seed: int, links: "Links | None" = None
) -> tuple[Recommender, RecommendationTask]:
    """Model and task of a recipe. Collective.

    Args:
        world: the ranks.
        recipe: the same on all of them.
        device: where tables and model are.
        seed: of everything random.
        links: between the ranks, for planners that ask; those of rank 0 count.

    Raises:
        WindrowError: the data, the plan or the recipe does not fit.
    """
    if recipe.model.kind == "two_tower":
        return _two_tower(world, recipe, device, seed, links)
    store = LogStore.open(recipe.store)
    check_store(recipe, store)
    # Quality beside the metric (entropy: against the base rate's, 1.0), and speed.
    kind = store.manifest.label_kind
    metric = METRICS_OF[kind][0] if recipe.evaluation.metric == "auto" else recipe.evaluation.metric
    shown = f"test {metric.replace('_', ' ')}"
    figures = {name: header for name, header in FIGURES[kind].items() if name != shown}
    task = ClickTask(
        store,
        evaluation=recipe.evaluation,
        deduplication=recipe.deduplication,
        transforms=recipe.transforms,
        shown_figures=figures | SPEED,
    )
    return _click_recommender(world, recipe, store, device, seed, links), task


def _two_tower(
    world: World, recipe: RecommendationSections, device: torch.device, seed: int, links: "Links | None"
) -> tuple[Recommender, RecommendationTask]:
    """A two-tower model on a file of interactions, which every rank reads whole. Collective."""
    options = recipe.interactions
    interactions = read_interactions(
        recipe.log.paths[0],
        next(iter(recipe.split.test_paths), None),
        user_column=options.user_column,
        item_column=options.item_column,
        validation_fraction=options.validation_fraction,
        seed=seed,
    )
    negatives = NegativeSampler(
        interactions.item_counts(), options.num_negatives, exponent=options.negative_exponent, seed=seed
    )
    source = InteractionReader(
        interactions,
        rank=world.rank,
        size=world.size,
        batch_size=recipe.training.batch_size,
        negatives=negatives,
        neighbourhoods=Neighbourhoods.of(interactions, options.max_history, options.max_audience, seed=seed),
        seed=seed,
    )
    dim, of_items = (recipe.tables.of(table).dim for table in ("user", "item"))
    if dim != of_items:
        raise RecipeError(
            f"tables.user.dim = {dim} and tables.item.dim = {of_items}: a two_tower model multiplies users with items: "
            "give both tables the same dim"
        )
    tables = two_tower_tables(interactions.num_users, interactions.num_items, dim)
    specs = table_specs(tables, recipe.tables)
    workload = plan_workload(recipe, world.size, links)
    bags = EmbeddingBagCollection(
        tables,
        is_weighted=True,
        device=device,
        world=world,
        # Processors of several kinds may round predicted costs differently.
        plan=world.from_rank_0(lambda: make_plan(recipe.plan, specs, world.size, workload), stage="plan"),
        optimizer=recipe.tables,
        wire=recipe.wire,
        seed=seed,
    )
    correction = torch.from_numpy(negatives.log_probabilities()) if options.log_q_correction else None
    model = TwoTower(dim, temperature=recipe.model.temperature, log_probabilities=correction)
    recommender = Recommender(bags, None, model.to(device))

    evaluator = RankingEvaluator(
        world,
        recommender,
        interactions,
        Neighbourhoods.of(interactions, seed=seed),  # Whole ones.
        k=recipe.evaluation.k,
        batch_size=recipe.evaluation.batch_size,
        device=device,
    )
    ndcg = evaluator.metric.replace("recall", "ndcg")
    task = RecommendationTask(
        source, evaluator, fingerprint=interactions.fingerprint(), shown_figures={f"test {ndcg}": "test ndcg"} | SPEED
    )
    return recommender, task


def _click_recommender(
    world: World,
    recipe: RecommendationSections,
    store: LogStore,
    device: torch.device,
    seed: int,
    links: "Links | None",
) -> Recommender:
    """Tables and model with first values. Collective."""
    # Processors of several kinds may round predicted costs differently.
    plan = world.from_rank_0(lambda: plan_tables(recipe, store, world.size, links), stage="plan")
    bag_tables, sequence_tables = table_configs(recipe, store)
    if not bag_tables and not sequence_tables:
        raise RecipeError(f"{store.path} has no features, and no tables without them: name some in [log.features]")

    def options(tables: Sequence[TableConfig]) -> dict[str, Any]:
        names = {table.name for table in tables}
        return {
            "device": device,
            "world": world,
            "plan": plan.only({spec.name for spec in table_specs(tables, recipe.tables.only(names))}),
            "groups": recipe.deduplication.looked_up_groups(),
            "optimizer": recipe.tables.only(names),
            "wire": recipe.wire,
            "seed": seed,
        }

    is_weighted = any(feature.weighted for feature in log_transforms(recipe, store).features)
    bags = sequences = None
    if bag_tables:
        bags = EmbeddingBagCollection(bag_tables, is_weighted=is_weighted, **options(bag_tables))
    if sequence_tables:
        index_dedup = recipe.deduplication.index_dedup
        sequences = EmbeddingCollection(sequence_tables, index_dedup=index_dedup, **options(sequence_tables))
    model = make_click_model(recipe, store, seed=seed)
    return Recommender(bags, sequences, model.to(device))


def make_click_model(recipe: RecommendationSections, store: LogStore, *, seed: int) -> ClickModel:
    """The dense part of a model of clicks, on the CPU."""
    bag_tables, sequence_tables = table_configs(recipe, store)
    return build_model(
        recipe.model,
        num_dense=store.num_dense,
        num_labels=len(store.labels),
        label_kind=store.manifest.label_kind,
        pooled_dims={
            name: table.embedding_dim
            for table, names in zip(bag_tables, embedding_names(bag_tables), strict=True)
            for name in names
        },
        sequence_dims={name: table.embedding_dim for table in sequence_tables for name in table.feature_names},
        seed=seed,
        deduplication=recipe.deduplication,
    )
