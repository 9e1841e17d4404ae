"""The learning rate over a run, and when to stop.

The rate is a pure function of the step: nothing to save, nothing to resume. A run stops when no better validation
metric came for a while.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from windrow.comm.errors import RecipeError
from windrow.comm.options import NonNegativeInt, Share, checked_dataclass

__all__ = ["EarlyStopping", "ScheduleKind", "ScheduleOptions", "learning_rate_factor"]

ScheduleKind = Literal["constant", "linear", "cosine"]
"""What follows the warm-up: stay, fall along a line, or fall along half a cosine wave."""


@checked_dataclass
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
    warmup_steps: NonNegativeInt = 0
    """Steps during which the rate rises along a line to its peak. Each minibatch is one, also with `accumulate`."""
    final_fraction: Share = 0.0
    """Learning rate at the end of the run, as a share of its peak, 0 to 1; "constant" has no use for it."""


def learning_rate_factor(options: ScheduleOptions, step: int, total_steps: int) -> float:
    """Tell what to multiply the peak learning rate with.

    With w warm-up steps, final fraction f and progress p = (step - w) / (total_steps - w)::

        step < w    (step + 1) / (w + 1)
        constant    1
        linear      1 - (1 - f) p
        cosine      f + (1 - f) (1 + cos(pi p)) / 2

    `step` counts minibatches from 0; the final fraction is reached after the last of `total_steps`, and stays.

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


@dataclass(kw_only=True, slots=True)
class EarlyStopping:
    """Remembers the best value of a metric and the epochs since.

        epoch        0     1     2     3     4
        value       .70   .74   .73   nan   .74        patience 3
        best        .70   .74   .74   .74   .74
        should_stop  no    no    no    no   yes        4 - 1 = 3 epochs without anything better

    A tie is not better, and neither is NaN. Every rank must be told the same values, so that all stop
    together.
    """

    patience: int
    """Epochs without improvement after which to stop; 0: never stop."""
    higher_is_better: bool = True
    """Whether the metric should rise, as ROC-AUC, or fall, as a loss."""
    best_value: float = field(init=False)
    """The best value so far; before the first, infinity in the direction that is worse."""
    best_epoch: int = -1
    """Where the best value was reached; -1 before the first (patience ends even if nothing ever counts)."""
    last_epoch: int = -1
    """The last epoch with a value; -1 before the first."""

    def __post_init__(self) -> None:
        self.best_value = -math.inf if self.higher_is_better else math.inf

    def update(self, epoch: int, value: float) -> bool:
        """Take in the value of an epoch later than all before; whether it is the best so far."""
        assert epoch > self.last_epoch, f"epoch {epoch} comes after epoch {self.last_epoch}"
        self.last_epoch = epoch
        improved = value > self.best_value if self.higher_is_better else value < self.best_value
        if improved:
            self.best_value, self.best_epoch = value, epoch
        return improved

    @property
    def should_stop(self) -> bool:
        """Whether the best epoch lies `patience` epochs or more behind the last one."""
        return 0 < self.patience <= self.last_epoch - self.best_epoch

    def state_dict(self) -> dict[str, Any]:
        """What changes as epochs go by, for a checkpoint; the options belong to the recipe."""
        return {"best_value": self.best_value, "best_epoch": self.best_epoch, "last_epoch": self.last_epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.best_value, self.best_epoch, self.last_epoch = (state[name] for name in self.state_dict())
