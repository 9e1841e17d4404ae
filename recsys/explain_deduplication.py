"""Predict what each step of RecD (Zhao et al., MLSys 2023, O1 to O7) would save on a prepared log, without training.

Everything is counted on batches of the log, see `windrow.recsys.batches.deduplication.survey`; what travels follows
from the plan of the tables, see `windrow.recsys.sharded.traffic`. What was found is written as text for a terminal.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from windrow.comm.errors import RecipeError
from windrow.recsys.batches.deduplication.options import WORTHWHILE_FACTOR
from windrow.recsys.batches.deduplication.survey import LogSurvey
from windrow.recsys.log.store import LogStore
from windrow.recsys.log_survey import StepCounter, groups_for
from windrow.recsys.recipe_sections import RecommendationSections
from windrow.training.terminal import byte_size, count, table

__all__ = [
    "DeduplicationExplanation",
    "Saving",
    "describe_deduplication",
    "describe_groups",
    "explain_deduplication",
    "groups_line",
]

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


def explain_deduplication(
    recipe: RecommendationSections, store: LogStore, found: LogSurvey, *, ranks: int
) -> DeduplicationExplanation:
    """Work out what each step would save of a prepared log, by what was found in it for so many ranks.

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


SELDOM = 0.5
"""A log whose batches have less than this share of a clustered log's samples per session is better clustered."""


def describe_deduplication(
    explained: DeduplicationExplanation, found: LogSurvey, recipe: RecommendationSections
) -> str:
    """Lay out what each step would save: about the log, the table of steps, and where it does not pay."""
    whose = "proposed, the recipe has none" if explained.proposed else "of the recipe"
    head = [*_head(found, explained.ranks), f"{groups_line(explained.groups)}   # {whose}", ""]
    if not explained.groups:
        head[-2] = f"no feature has a factor above {WORTHWHILE_FACTOR:g}: there is nothing to hold once"
    body = table([_row(saving, explained, recipe) for saving in explained.savings])
    return "\n".join([*head, body, "", *_notes(explained, found, recipe)])


def describe_groups(
    groups: Sequence[Sequence[str]], found: LogSurvey, recipe: RecommendationSections, *, ranks: int
) -> str:
    """Lay out what repeats, feature by feature, and the groups that are proposed, with the line for the recipe."""
    features = [
        {"feature": name, "mean length": found.mean_length(name), **_figures([name], found)} for name in found.features
    ]
    lines = [*_head(found, ranks), "", table(features), "", *_meanings(found)]
    if groups:
        lines += ["", table([{"group": ", ".join(group), **_figures(group, found)} for group in groups])]
        lines += ["", "for the recipe:", "", "[deduplication]"]
        lines += ([] if found.is_clustered else ["cluster = true"]) + [groups_line(groups)]
        if recipe.training.shuffle == "window":
            lines.append('# and in [training]: shuffle = "sessions"')
        if cure := _cure(found, recipe):
            lines += ["", f"so that samples of a session meet in batches: {cure}"]
    else:
        lines += ["", f"no feature has a factor above {WORTHWHILE_FACTOR:g}: there is nothing to hold once"]
    return "\n".join(lines)


def groups_line(groups: Sequence[Sequence[str]]) -> str:
    """Groups as a recipe has them: ``groups = [["cart", "sellers"], ["history"]]``."""
    return f"groups = {json.dumps([list(group) for group in groups], ensure_ascii=False)}"


def _head(found: LogSurvey, ranks: int) -> list[str]:
    order = "clustered" if found.is_clustered else "not clustered"
    pieces = "1 piece" if found.pieces == 1 else f"{found.pieces:g} pieces"
    return [
        (
            f"{found.num_samples:,} of {found.split_samples:,} training samples looked at, in {found.num_sessions:,} "
            f"sessions of {found.samples_per_session:.3g} samples (S); the store is {order}"
        ),
        (
            f"a batch of {ranks} x {found.batch_size:g} samples, {pieces} of the log on a rank: it holds "
            f"{found.samples_per_session_in_batch:.3g} samples of a session where the log is clustered, "
            f"{found.as_read.samples_per_session:.3g} as the store is read now"
        ),
    ]


def _figures(group: Sequence[str], found: LogSurvey) -> dict[str, object]:
    return {
        "S": found.samples_per_session,
        "d": found.unchanged(group),
        "formula": found.predicted_factor(group),
        "clustered": found.clustered.factor(group),
        "as read": found.as_read.factor(group),
    }


def _meanings(found: LogSurvey) -> list[str]:
    return [
        "S          samples of a session in the log",
        "d          share of samples that are as the one before in their session",
        f"formula    S / (1 + (S - 1)(1 - d)), with S = {found.samples_per_session_in_batch:.3g} of a clustered batch",
        "clustered  samples over distinct ones, counted in batches of a clustered log; repeats in other sessions count",
        "as read    the same in batches that training reads from the store as it is",
    ]


def _row(saving: Saving, explained: DeduplicationExplanation, recipe: RecommendationSections) -> dict[str, object]:
    show = byte_size if saving.unit == "bytes" else count
    switch = "on" if getattr(recipe.deduplication, saving.switch) else "off"
    saved = (saving.without - saving.clustered) * explained.steps
    return {
        "step": saving.step,
        "switch": f"{saving.switch}, {switch}",
        "less": saving.what,
        "without": show(saving.without),
        "with": show(saving.clustered),
        "factor": _factor(saving.without, saving.clustered),
        "as read": "" if saving.as_read is None else _factor(saving.without, saving.as_read),
        "an epoch saves": show(saved),
    }


def _factor(without: float, left: float) -> str:
    return f"{without / left:.3g} x" if left else ""


def _notes(explained: DeduplicationExplanation, found: LogSurvey, recipe: RecommendationSections) -> list[str]:
    lines = [
        f"without, with   in one step, {_ranks(explained.ranks)} together; with: of a clustered log",
        "as read         the factor in batches that training reads from the store as it is",
        f"an epoch        {explained.steps:.4g} steps",
    ]
    if explained.ranks == 1:
        lines.append("one rank sends nothing: --ranks N shows what several would send under the recipe's [plan]")
    if found.storage.as_logged is None:
        lines.append("O1, O2 are not shown: the store is clustered and has no times that tell the order it had before")
    elif found.num_files == 1:
        lines.append("O1 changes nothing where all samples are in one file")
    if not any(saving.step == "O4" for saving in explained.savings):
        lines.append("O4 changes nothing: [transforms] does nothing to a feature of a group")
    if not any(saving.step == "O6" for saving in explained.savings):
        lines.append("O6 changes nothing: no feature of a group is a sequence of [model]")
    if found.as_read.samples_per_session < SELDOM * found.samples_per_session_in_batch:
        lines.append(f"as it is read now, samples of a session seldom meet in a batch: {_cure(found, recipe)}")
    if explained.repeated_by_chance:
        lines.append(
            f"{_named(explained.repeated_by_chance)}: new in most samples, but of few values, which come back in other "
            "sessions; clustering does nothing for them, and no group is proposed for them"
        )
    if explained.not_worthwhile:
        lines.append(
            f"it does not pay for features with a factor below {WORTHWHILE_FACTOR:g}: "
            f"{_named(explained.not_worthwhile)}. Leave them out of groups; what describes the item that is shown is "
            "new in nearly every sample"
        )
    else:
        lines.append(f"every feature has a factor of at least {WORTHWHILE_FACTOR:g}")
    return lines


def _named(factors: Mapping[str, float]) -> str:
    return ", ".join(f"{name} ({factor:.2f})" for name, factor in factors.items())


def _cure(found: LogSurvey, recipe: RecommendationSections) -> str:
    """What brings samples of a session together; empty where they are."""
    steps = []
    if not found.is_clustered:
        steps.append("set deduplication.cluster = true and run windrow prepare again")
    if recipe.training.shuffle == "window":
        steps.append('set training.shuffle = "sessions", which keeps sessions whole')
    return ", and ".join(steps)


def _ranks(number: int) -> str:
    return "1 rank" if number == 1 else f"{number} ranks"
