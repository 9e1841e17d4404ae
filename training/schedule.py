"""The learning rate over a run, as a pure function of the step: nothing to save, nothing to resume."""

import math
from dataclasses import dataclass
from typing import Literal

from windrow.comm.errors import RecipeError

__all__ = ["ScheduleKind", "ScheduleOptions", "learning_rate_factor"]

ScheduleKind = Literal["constant", "linear", "cosine"]
"""What follows the warm-up: stay, fall along a line, or fall along half a cosine wave."""

SCHEDULE_KINDS = ("constant", "linear", "cosine")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleOptions:
    """How the learning rate changes from step to step.

    The rate rises to its peak over the warm-up steps, then stays there or falls::

        1         ______                    "constant" stays at 1
                 /      ``--.._
        1/(w+1) /              ``--.__      final_fraction
                0     w             total_steps
    """

    kind: ScheduleKind = "constant"
    """What follows the warm-up; "cosine" is that of Loshchilov and Hutter, SGDR (ICLR 2017), no restarts."""
    warmup_steps: int = 0
    """Optimiser steps during which the rate rises along a line to its peak."""
    final_fraction: float = 0.0
    """Learning rate at the end of the run, as a share of its peak, 0 to 1; "constant" has no use for it."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            RecipeError: names the field, its value and what is allowed.
        """
        if self.kind not in SCHEDULE_KINDS:
            raise RecipeError(f"schedule.kind = {self.kind!r}: must be one of {', '.join(SCHEDULE_KINDS)}")
        if self.warmup_steps < 0:
            raise RecipeError(f"schedule.warmup_steps = {self.warmup_steps}: must not be negative")
        if not 0 <= self.final_fraction <= 1:
            raise RecipeError(f"schedule.final_fraction = {self.final_fraction}: must be between 0 and 1")


def learning_rate_factor(options: ScheduleOptions, step: int, total_steps: int) -> float:
    """Tell what to multiply the peak learning rate with.

    With w warm-up steps, final fraction f and progress p = (step - w) / (total_steps - w)::

        step < w    (step + 1) / (w + 1)
        constant    1
        linear      1 - (1 - f) p
        cosine      f + (1 - f) (1 + cos(pi p)) / 2

    Args:
        options: the schedule.
        step: optimiser steps taken before this one, from 0.
        total_steps: optimiser steps of the whole run; the final fraction is reached after the last of them.

    Returns:
        A factor in [0, 1], above 0 in the warm-up and 1 at ``step == warmup_steps``; steps past the end get
        the factor of the end.

    Raises:
        RecipeError: the warm-up is longer than the run.
    """
    warmup = options.warmup_steps
    if warmup > total_steps:
        raise RecipeError(
            f"schedule.warmup_steps = {warmup} but the whole run has {total_steps} steps: warm up for fewer"
        )
    if step < warmup:
        return (step + 1) / (warmup + 1)
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    match options.kind:
        case "constant":
            share = 1.0
        case "linear":
            share = 1.0 - progress
        case "cosine":
            share = (1.0 + math.cos(math.pi * progress)) / 2.0
    # Written so that shares of exactly 0 and 1 give exactly the final fraction and 1.
    return options.final_fraction * (1.0 - share) + share
