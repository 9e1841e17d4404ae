"""What repeats in the prepared log of a recipe, in the batches that its training would have."""

from collections.abc import Iterator

import numpy as np

from windrow.comm.errors import RecipeError
from windrow.launch.recommendation_recipe import RecommendationRecipe
from windrow.launch.recommendation_tables import check_store, log_transforms
from windrow.recsys.batch import Batch
from windrow.recsys.batch_reader import BatchReader
from windrow.recsys.deduplication.propose_groups import lookup_costs, propose_groups
from windrow.recsys.deduplication.session_sample import SAMPLE_ROWS
from windrow.recsys.deduplication.survey import LogSurvey, survey_log
from windrow.recsys.staged_log import SHARD_ROWS
from windrow.recsys.store import LogStore

__all__ = ["groups_for", "open_and_survey"]

BATCHES_AS_READ = 4
"""Batches of the training reader that are looked at, spread over an epoch."""


def open_and_survey(
    recipe: RecommendationRecipe, *, ranks: int, max_rows: int | None = None
) -> tuple[LogStore, LogSurvey]:
    """Open the prepared log of a recipe and look at it.

    Args:
        recipe: as it would be trained.
        ranks: how many would train.
        max_rows: about the most samples to look at; None for as many as rates need to be right within 1 %.

    Returns:
        The store, and what was found in it.

    Raises:
        RecipeError: a number is out of range, more ranks than lanes, or a recipe without a store.
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
        _batches_as_read(recipe, store, ranks),
        batch_size=recipe.training.batch_size,
        lanes=recipe.training.lanes,
        size=ranks,
        transforms=log_transforms(recipe, store),
        num_files=-(-store.split("train").rows // SHARD_ROWS),
        max_rows=SAMPLE_ROWS if max_rows is None else max_rows,
    )
    return store, found


def groups_for(recipe: RecommendationRecipe, found: LogSurvey) -> tuple[tuple[str, ...], ...]:
    """Propose groups: those that save most in clustered batches.

    Args:
        recipe: says how wide embeddings are and which features are sequences.
        found: in its log.
    """
    costs = lookup_costs(found.features, dim=recipe.tables.dim, sequences=recipe.model.sequences)
    return propose_groups(found, costs)


def _batches_as_read(recipe: RecommendationRecipe, store: LogStore, ranks: int) -> Iterator[Batch]:
    """Batches of rank 0 in which nothing is held once."""
    training = recipe.training
    reader = BatchReader(
        store,
        "train",
        rank=0,
        size=ranks,
        batch_size=training.batch_size,
        lanes=training.lanes,
        shuffle=training.shuffle,
        shuffle_rows=training.shuffle_rows,
        seed=recipe.run.seed,
        memory_bytes=training.reader_memory_bytes,
        transforms=log_transforms(recipe, store),
    )
    # The last step may be short.
    full_steps = max(1, reader.samples_per_epoch // training.batch_size)
    for step in np.unique(np.linspace(0, full_steps - 1, BATCHES_AS_READ).astype(int)).tolist():
        with reader.batches(0, step) as batches:
            yield next(batches)
