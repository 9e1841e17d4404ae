"""Which of several recipes trains fastest: some steps under each of them, in turn, on the ranks that will train.

Those that are near a recipe differ from it in one setting that decides about speed, not about what is learnt, unless
number formats on the wire may be shorter.
"""

import contextlib
import gc
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias, get_args

import torch

from windrow.comm.errors import DataError, PlanError, RecipeError
from windrow.comm.wire import CodecName, SumsName
from windrow.comm.world import World
from windrow.launch.profiling import AROUND, run_steps
from windrow.launch.rank_process import joined_job
from windrow.launch.recipe import AnyRecipe, Recipe, make_any_recipe
from windrow.launch.recommendation_recipe import RecommendationRecipe
from windrow.launch.settings import with_overrides
from windrow.launch.training import make_trainer
from windrow.training.trainer import Trainer

__all__ = ["AS_IT_IS", "Changes", "Measured", "changed", "near_recipes", "shorter_formats", "sweep", "sweep_rows"]

Changes: TypeAlias = Mapping[str, Any]
"""Settings by dotted name, with other values than a recipe has."""

AS_IT_IS = "the recipe as it is"

WIDTHS: Mapping[str, int] = {"fp32": 32, "bf16": 16, "fp16": 16, "int8": 8, "fp8": 8, "int4": 4}
"""Bits of a number on the wire."""

PLANNERS = ("greedy", "greedy_lookups", "row_wise", "neuroshard", "oper")
"""Those of which each is the best somewhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What training under one recipe took."""

    sample_s: Sequence[float]
    """Seconds of a sample on the slowest rank, in each round."""
    sent_bytes: float
    """That all ranks send each other for a sample, sums of gradients left out."""
    loss: float
    """Mean over the samples of all its steps, those that are not measured, too; NaN where training diverged. With other
    sizes of minibatches these are other samples."""


def shorter_formats(recipe: AnyRecipe, shortest: str) -> dict[str, list[str]]:
    """Number formats of [wire] that are shorter than those of a recipe, down to one, for each setting that they fit.

    Args:
        recipe: to look at.
        shortest: one of `WIDTHS`; "fp32" allows none.
    """
    found = {"wire.vectors": [*get_args(CodecName)], "wire.gradients": [*get_args(CodecName)]}
    if isinstance(recipe, Recipe) and (recipe.sampler.storage != "fp32" or recipe.full_graph.enabled):
        del found["wire.vectors"]
    if isinstance(recipe, Recipe) and not recipe.model.embedding:
        del found["wire.gradients"]
    # fp8 keeps what it leaves out, which sums within hosts have no place for.
    found["wire.sums"] = [form for form in get_args(SumsName) if form != "fp8" or recipe.wire.topology == "flat"]
    used = {name: getattr(recipe.wire, name.removeprefix("wire.")) for name in found}
    # Of equal length the one with the range of float32.
    return {
        name: [form for form in forms if form != "fp16" and WIDTHS[shortest] <= WIDTHS[form] < WIDTHS[used[name]]]
        for name, forms in found.items()
    }


def near_recipes(recipe: AnyRecipe, *, shortest: str = "fp32") -> dict[str, AnyRecipe]:
    """Recipes with other values of one setting, or of two that belong together, whose steps may be faster.

    Args:
        recipe: to begin with.
        shortest: number format on the wire down to which rounding is allowed.

    Returns:
        By what is changed, as ``--set`` takes it, with "; " between two; what recipes refuse, or are already, is left
        out.
    """
    near = _near_graph(recipe) if isinstance(recipe, Recipe) else _near_log(recipe)
    near += [{name: form} for name, forms in shorter_formats(recipe, shortest).items() for form in forms]
    found = dict[str, AnyRecipe]()
    for changes in near:
        with contextlib.suppress(RecipeError):
            one = changed(recipe, changes)
            if one != recipe:
                found["; ".join(_assignments(changes))] = one
    return found


def changed(recipe: AnyRecipe, changes: Changes) -> AnyRecipe:
    """A recipe with other values of some settings: RecipeError where they do not go together."""
    values = with_overrides(recipe.settings(), _assignments(changes))
    return make_any_recipe(values, source=recipe.name, base=Path())


def _assignments(changes: Changes) -> list[str]:
    """As ``--set`` takes them: of these values JSON is TOML."""
    return [f"{name} = {json.dumps(value)}" for name, value in changes.items()]


def _near_graph(recipe: Recipe) -> list[dict[str, Any]]:
    if recipe.full_graph.enabled:
        return [
            {"full_graph.partial_sums": not recipe.full_graph.partial_sums},
            {"full_graph.recompute": not recipe.full_graph.recompute},
        ]
    cache, pipeline = recipe.cache, recipe.pipeline
    size = ("cache.memory_gib", cache.memory_gib) if isinstance(cache.alpha, str) else ("cache.alpha", cache.alpha)
    return [
        {size[0]: size[1] / 2},
        {size[0]: 2 * size[1] or 0.1},
        {"cache.window": 0 if cache.window or not size[1] else 8},
        *({"pipeline.depth": depth} for depth in (0, 2, 4, 8) if depth != pipeline.depth),
        {"pipeline.sampler_threads": pipeline.sampler_threads + (pipeline.depth > 0)},
    ]


def _near_log(recipe: RecommendationRecipe) -> list[dict[str, Any]]:
    training, groups = recipe.training, recipe.deduplication.groups
    found: list[dict[str, Any]] = []
    if recipe.plan.file is None:
        found += [{"plan.planner": planner} for planner in PLANNERS if planner != recipe.plan.planner]
    size, parts = training.batch_size, training.accumulate
    # Of interactions, negatives are drawn for each part.
    if recipe.log.format != "interactions":
        halved = {"training.batch_size": size // 2, "training.accumulate": 2 * parts}
        whole = {"training.batch_size": size * 2, "training.accumulate": parts // 2}
        found += [halved] * (size % 2 == 0) + [whole] * (parts % 2 == 0)
    if groups:
        found.append({"deduplication.groups": []})
    return found


def sweep(
    recipes: Mapping[str, AnyRecipe], *, steps: int, rounds: int, say: Callable[[str], None] = print
) -> dict[str, Measured | str]:
    """Train some steps under each recipe, round after round, every other one backwards. Collective; nothing is kept.

    What faster means shows where it is so in every round. Before the rounds the first recipe trains once, uncounted, so
    that kernels are compiled.

    Args:
        recipes: by what is said of them; the ranks join the job as the first of them says. Must agree.
        steps: that are measured in each round, after a few that are not.
        rounds: how many.
        say: is told, on rank 0, what is done.

    Returns:
        Of each recipe what it took, or why it was refused; the same on every rank.

    Raises:
        WindrowError: the first recipe cannot be trained, or another one for a reason that is not the same on all ranks.
    """
    first = next(iter(recipes.values()))
    most = max(recipe.training.batch_size for recipe in recipes.values())
    found = dict[str, Measured | str]()
    with joined_job(first.run) as (world, device):
        _measure(world, first, device, 1)
        for number in range(rounds):
            for name in list(recipes)[:: -1 if number % 2 else 1]:
                if isinstance(found.get(name), str):
                    continue
                if world.rank == 0:
                    say(f"round {number + 1} of {rounds}: {name}")
                before = found.get(name)
                recipe, own = recipes[name], steps
                if not (isinstance(recipe, Recipe) and recipe.full_graph.enabled):
                    # As many samples as of the recipe with the largest minibatches.
                    own *= max(1, most // recipe.training.batch_size)
                try:
                    once = _measure(world, recipe, device, own)
                except (RecipeError, PlanError) as error:
                    found[name] = str(error)  # All ranks refuse these alike.
                    continue
                if isinstance(before, Measured):
                    once = replace(once, sample_s=(*before.sample_s, *once.sample_s))
                found[name] = once
    return {name: found[name] for name in recipes}


def _measure(world: World, recipe: AnyRecipe, device: torch.device, steps: int) -> Measured:
    """Train some steps under a recipe. Collective."""
    with make_trainer(world, recipe, device) as trainer:
        cost, _ = run_steps(trainer, steps)
        trainer.task.settle()
        samples = _samples(trainer, range(AROUND, AROUND + steps))
        try:
            loss = trainer.loss_so_far() / _samples(trainer, range(steps + 2 * AROUND))
        except DataError:
            loss = float("nan")  # On all ranks: it is their sum.
    del trainer
    gc.collect()  # Tables of two trainers may be more than fits into memory.
    sent = sum(map(sum, cost.bytes_sent.values()))
    everyone = world.all_gather_object((cost.seconds, sent), stage="sweep")
    took, bytes_of_ranks = zip(*everyone, strict=True)
    return Measured(sample_s=(max(took) / samples,), sent_bytes=sum(bytes_of_ranks) / samples, loss=loss)


def _verdict(ratios: Sequence[float]) -> str:
    return "faster" if min(ratios) > 1 else "slower" if max(ratios) < 1 else "no difference that shows"


def _samples(trainer: Trainer, steps: range) -> int:
    """Samples of so many steps from the first on, over all ranks."""
    positions = (divmod(step, trainer.steps_per_epoch) for step in steps)
    return sum(trainer.task.global_batch_size(epoch % trainer.options.epochs, step) for epoch, step in positions)


def sweep_rows(found: Mapping[str, Measured | str]) -> list[dict[str, Any]]:
    """A sweep as a table, the fastest first, what was refused last; ratios are those of the rounds, their median."""
    first = found[next(iter(found))]
    assert isinstance(first, Measured)
    rows, refused = list[dict[str, Any]](), list[dict[str, Any]]()
    for name, one in found.items():
        if isinstance(one, str):
            refused.append({"change": name, "samples/s": None, "": f"refused: {one.partition(': ')[2] or one}"[:80]})
            continue
        ratios = [before / now for before, now in zip(first.sample_s, one.sample_s, strict=True)]
        rows.append(
            {
                "change": name,
                "samples/s": 1 / median(one.sample_s),
                "times as fast": median(ratios),
                "in all rounds": f"{min(ratios):.2f} to {max(ratios):.2f}",
                "kB sent a sample": one.sent_bytes / 1e3,
                "loss": one.loss,
                "": "" if one is first else "diverged" if not isfinite(one.loss) else _verdict(ratios),
            }
        )
    return [*sorted(rows, key=lambda row: -float(row["times as fast"])), *refused]
