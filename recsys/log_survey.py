"""What is in the prepared log of a recipe: sizes, and what repeats in the batches that training would have."""

from collections.abc import Mapping

from windrow.comm.errors import RecipeError, from_here
from windrow.recsys.batches.deduplication.propose_groups import propose_groups, row_bytes
from windrow.recsys.batches.deduplication.survey import SAMPLE_ROWS, LogSurvey
from windrow.recsys.log.store import LogStore
from windrow.recsys.log_tables import check_store, survey
from windrow.recsys.recipe_sections import RecommendationSections
from windrow.training.terminal import byte_size, table

__all__ = ["groups_for", "log_summary", "open_and_survey"]


def open_and_survey(
    recipe: RecommendationSections, *, ranks: int, max_rows: int | None = None
) -> tuple[LogStore, LogSurvey]:
    """Open the prepared log of a recipe and look at it, as so many ranks would train from it.

    About `max_rows` samples are looked at; None for as many as rates need to be right within 1 %.

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
    return store, survey(recipe, store, ranks=ranks, max_rows=SAMPLE_ROWS if max_rows is None else max_rows)


def groups_for(
    recipe: RecommendationSections, found: LogSurvey, *, group_bytes: float = 0.0
) -> tuple[tuple[str, ...], ...]:
    """Propose groups: those that save most in clustered batches, each for a cost, as in `propose_groups`."""
    log, tables = recipe.log, recipe.tables
    # A feature that transforms make has a table of its own name.
    dims = {name: tables.of(log.table_of(name) if name in log.features else name).dim for name in found.features}
    return propose_groups(found, row_bytes(found, dims, sequences=recipe.model.sequences), group_bytes=group_bytes)


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
            "ids per sample": f"{feature.mean_ids('train', manifest.splits['train'].rows):.2f}",
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
