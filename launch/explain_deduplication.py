"""Predict what each step of RecD (Zhao et al., MLSys 2023, O1 to O7) would save on a prepared log, without training.

Everything is counted on batches of the log, see `windrow.recsys.deduplication.survey`; what travels follows from the
plan of the tables, see `windrow.recsys.deduplication.traffic`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from windrow.comm.errors import RecipeError
from windrow.launch.deduplication_counts import StepCounter
from windrow.launch.log_survey import groups_for
from windrow.launch.recommendation_recipe import RecommendationRecipe
from windrow.recsys.deduplication.factor import WORTHWHILE_FACTOR
from windrow.recsys.deduplication.survey import LogSurvey
from windrow.recsys.store import LogStore

__all__ = ["DeduplicationExplanation", "Saving", "explain_deduplication"]

Unit = Literal["bytes", "number"]

FIGURES: tuple[tuple[str, str, str, Unit, str, str], ...] = (
    ("O3", "read", "lists that readers hold", "bytes", "held_bytes", "held_bytes"),
    ("O4", "transform", "ids transformed", "number", "list_values", "list_values"),
    ("O5", "look_up", "ids on the wire", "bytes", "id_bytes", "id_bytes"),
    ("O5", "look_up", "rows looked up", "number", "lookups", "lookups"),
    ("O5", "look_up", "vectors on the wire", "bytes", "vector_bytes", "vector_bytes"),
    ("O5", "look_up", "gradients on the wire", "bytes", "vector_bytes", "vector_bytes"),
    ("O6", "expand_jagged", "vectors of sequences", "bytes", "padded_bytes", "jagged_bytes"),
    ("O7", "compute", "items of sequence towers", "number", "items", "items"),
    ("O7", "compute", "rows computed of groups", "number", "group_rows", "group_rows"),
)
"""Step, switch, what, unit, and which field of `StepCounts` it is without the step, and with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Saving:
    """What one step saves of one thing, in a step of training over all ranks."""

    step: str
    """O1 to O7."""
    switch: str
    """Its key in the recipe's section [deduplication]."""
    what: str
    """What there is less of."""
    unit: Unit
    """Of the figures."""
    without: float
    """All of it, as without deduplication."""
    clustered: float
    """What is left of it in batches of a clustered log."""
    as_read: float | None
    """What is left of it in batches as training reads them from the store now; None for what is on disk."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeduplicationExplanation:
    """What deduplication would save."""

    groups: tuple[tuple[str, ...], ...]
    """Of the recipe; where it has none, those that are proposed."""
    proposed: bool
    """Whether they are."""
    ranks: int
    """How many would train."""
    batch_size: float
    """Samples of a step over all ranks."""
    steps: float
    """In an epoch, the last one counted as what there is of it."""
    savings: tuple[Saving, ...]
    """In the order of steps."""
    factors: Mapping[str, float]
    """Feature -> samples over distinct lists, counted in clustered batches."""
    predicted_factors: Mapping[str, float]
    """Feature -> the same by the formula, which knows of repeats within sessions alone."""

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

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def explain_deduplication(
    recipe: RecommendationRecipe, store: LogStore, found: LogSurvey, *, ranks: int
) -> DeduplicationExplanation:
    """Work out what each step would save.

    Args:
        recipe: as it would be trained.
        store: its prepared log.
        found: in the log, for this number of ranks.
        ranks: how many would train.

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
    counter = StepCounter(recipe, store, found, ranks=ranks, groups=groups)
    plain = counter.count(found.clustered, deduplicated=False)
    once = counter.count(found.clustered, deduplicated=True)
    plain_as_read = counter.count(found.as_read, deduplicated=False)
    once_as_read = counter.count(found.as_read, deduplicated=True)
    batch_size = found.batch_size * ranks
    savings = _on_disk(found, batch_size)
    for step, switch, what, unit, before, after in FIGURES:
        without: float = getattr(plain, before)
        if without:
            # The two kinds of batches are of different samples: what is left is a share of each kind's own whole.
            share = _share(getattr(once_as_read, after), getattr(plain_as_read, before))
            savings.append(
                Saving(
                    step=step,
                    switch=switch,
                    what=what,
                    unit=unit,
                    without=without,
                    clustered=getattr(once, after),
                    as_read=without * share,
                )
            )
    return DeduplicationExplanation(
        groups=tuple(tuple(group) for group in groups),
        proposed=not recipe.deduplication.groups,
        ranks=ranks,
        batch_size=batch_size,
        steps=found.split_samples / batch_size,
        savings=tuple(savings),
        factors={name: found.clustered.factor([name]) for name in found.features},
        predicted_factors={name: found.predicted_factor([name]) for name in found.features},
    )


def _on_disk(found: LogSurvey, batch_size: float) -> list[Saving]:
    """Bytes of the samples of a step; nothing where the order of the log is not known any more."""
    sizes = found.storage
    if sizes.as_logged is None or sizes.sharded is None:
        return []
    return [
        Saving(
            step=step,
            switch=switch,
            what="samples on disk",
            unit="bytes",
            without=batch_size * sizes.as_logged,
            clustered=batch_size * left,
            as_read=None,
        )
        for step, switch, left in (("O1", "shard", sizes.sharded), ("O2", "cluster", sizes.clustered))
    ]


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 1.0
