"""The recipe that fits a generated log."""

from typing import Any

from windrow.recsys.deduplication.factor import WORTHWHILE_FACTOR, dedupe_factor
from windrow.recsys.session_log.options import SessionLogOptions
from windrow.recsys.session_log.statistics import expected_statistics

__all__ = ["recipe_features", "recipe_groups", "session_log_recipe"]


def recipe_features(options: SessionLogOptions) -> dict[str, dict[str, Any]]:
    """The recipe's tables ``[log.features.NAME]``: ids are rows of tables already.

    Args:
        options: of the log.
    """
    return {
        feature.name: {"ids": "rows", "rows": feature.rows}
        | ({} if group.mean_length is None else {"multi_hot": True})
        for group in options.groups
        for feature in group.features
    }


def recipe_groups(options: SessionLogOptions) -> list[list[str]]:
    """The recipe's ``deduplication.groups``: those whose samples repeat often enough.

    Args:
        options: of the log.
    """
    unchanged = expected_statistics(options).unchanged
    found = []
    for group in options.groups:
        names = [feature.name for feature in group.features]
        if not names:
            continue
        factor = dedupe_factor(options.samples_per_session, min(unchanged[name] for name in names))
        if factor > WORTHWHILE_FACTOR:
            found.append(names)
    return found


def session_log_recipe(options: SessionLogOptions, *, log: str, store: str) -> dict[str, Any]:
    """A whole recipe, for ``windrow prepare`` and ``windrow train``.

    Args:
        options: of the log.
        log: path of the log, as seen from the recipe.
        store: folder for the prepared log, as seen from the recipe.

    Returns:
        Nested dictionaries, as in the file.
    """
    return {
        "store": store,
        "log": {
            "paths": [log],
            "format": "parquet",
            "dense": list(options.dense),
            "time": "time",
            "session": "session",
            "features": recipe_features(options),
        },
        # Whole sessions: a sample of a session tells much of the others.
        "split": {"by": "hash", "column": "session", "fractions": [0.8, 0.1, 0.1]},
        "deduplication": {"groups": recipe_groups(options), "cluster": True},
        "tables": {"dim": 16},
        "training": {"batch_size": 4096, "shuffle": "sessions"},
    }
