"""What `windrow.launch.explain_deduplication` and a survey found, as text for a terminal."""

import json
from collections.abc import Mapping, Sequence

from windrow.launch.explain_deduplication import DeduplicationExplanation, Saving
from windrow.launch.formatting import byte_size, count
from windrow.launch.recommendation_recipe import RecommendationRecipe
from windrow.launch.text_table import table
from windrow.recsys.deduplication.factor import WORTHWHILE_FACTOR
from windrow.recsys.deduplication.survey import LogSurvey

__all__ = ["describe_deduplication", "describe_groups", "groups_line"]

SELDOM = 0.5
"""A log whose batches have less than this share of a clustered log's samples per session is better clustered."""


def describe_deduplication(
    explained: DeduplicationExplanation, found: LogSurvey, recipe: RecommendationRecipe
) -> str:
    """Lay out what each step would save.

    Args:
        explained: what is expected.
        found: in the log.
        recipe: what was explained.

    Returns:
        A few lines about the log, the table of steps, and where it does not pay.
    """
    whose = "proposed, the recipe has none" if explained.proposed else "of the recipe"
    head = [*_head(found, explained.ranks), f"{groups_line(explained.groups)}   # {whose}", ""]
    if not explained.groups:
        head[-2] = f"no feature has a factor above {WORTHWHILE_FACTOR:g}: there is nothing to hold once"
    body = table([_row(saving, explained, recipe) for saving in explained.savings])
    return "\n".join([*head, body, "", *_notes(explained, found, recipe)])


def describe_groups(
    groups: Sequence[Sequence[str]], found: LogSurvey, recipe: RecommendationRecipe, *, ranks: int
) -> str:
    """Lay out what repeats, feature by feature, and the groups that are proposed.

    Args:
        groups: to propose.
        found: in the log.
        recipe: that was looked at.
        ranks: how many would train.

    Returns:
        A few lines about the log, a table of features, one of groups, and the line for the recipe.
    """
    features = [
        {"feature": name, "mean length": found.mean_length(name), **_figures([name], found)}
        for name in found.features
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
    """Groups as a recipe has them: ``groups = [["cart", "sellers"], ["history"]]``.

    Args:
        groups: features of each.
    """
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


def _row(
    saving: Saving, explained: DeduplicationExplanation, recipe: RecommendationRecipe
) -> dict[str, object]:
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


def _notes(explained: DeduplicationExplanation, found: LogSurvey, recipe: RecommendationRecipe) -> list[str]:
    lines = [
        f"without, with   in one step, {_ranks(explained.ranks)} together; with: of a clustered log",
        "as read         the factor in batches that training reads from the store as it is",
        f"an epoch        {explained.steps:.4g} steps",
    ]
    if explained.ranks == 1:
        lines.append(
            "one rank sends nothing: --ranks N shows what several would send under the recipe's [plan]"
        )
    if found.storage.as_logged is None:
        lines.append(
            "O1, O2 are not shown: the store is clustered and has no times that tell the order it had before"
        )
    elif found.num_files == 1:
        lines.append("O1 changes nothing where all samples are in one file")
    if not any(saving.step == "O4" for saving in explained.savings):
        lines.append("O4 changes nothing: [transforms] does nothing to a feature of a group")
    if not any(saving.step == "O6" for saving in explained.savings):
        lines.append("O6 changes nothing: no feature of a group is a sequence of [model]")
    if found.as_read.samples_per_session < SELDOM * found.samples_per_session_in_batch:
        lines.append(
            f"as it is read now, samples of a session seldom meet in a batch: {_cure(found, recipe)}"
        )
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


def _cure(found: LogSurvey, recipe: RecommendationRecipe) -> str:
    """What brings samples of a session together; empty where they are."""
    steps = []
    if not found.is_clustered:
        steps.append("set deduplication.cluster = true and run windrow prepare again")
    if recipe.training.shuffle == "window":
        steps.append('set training.shuffle = "sessions", which keeps sessions whole')
    return ", and ".join(steps)


def _ranks(number: int) -> str:
    return "1 rank" if number == 1 else f"{number} ranks"
