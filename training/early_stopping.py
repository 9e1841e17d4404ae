"""When to stop: no better validation metric for a while."""

import math
from dataclasses import dataclass, field
from typing import Any

from windrow.comm.errors import RecipeError, StoreError

__all__ = ["EarlyStopping"]

STATE = ("best_value", "best_epoch", "last_epoch")
"""The fields that change; the others are options."""


@dataclass(kw_only=True, slots=True)
class EarlyStopping:
    """Remembers the best value of a metric and the epochs since.

        epoch        0     1     2     3     4
        value       .70   .74   .73   nan   .74        patience 3
        best        .70   .74   .74   .74   .74
        should_stop  no    no    no    no   yes        4 - 1 = 3 epochs without anything better

    A tie is not better, and neither is NaN. Every rank must be told the same values, so that all stop
    together.

    Raises:
        RecipeError: an option is out of range.
    """

    patience: int | None
    """Epochs without improvement after which to stop, at least 1; None: never stop."""
    min_delta: float = 0.0
    """An improvement is more than this much better than the best value so far, in units of the metric."""
    higher_is_better: bool = True
    """Whether the metric should rise, as ROC-AUC, or fall, as a loss."""
    best_value: float = field(init=False)
    """The best value so far; before the first, infinity in the direction that is worse."""
    best_epoch: int = -1
    """Where the best value was reached; -1 before the first (patience ends even if nothing ever counts)."""
    last_epoch: int = -1
    """The last epoch with a value; -1 before the first."""

    def __post_init__(self) -> None:
        """Check the options."""
        self.best_value = -math.inf if self.higher_is_better else math.inf
        if self.patience is not None and self.patience < 1:
            raise RecipeError(
                f"patience = {self.patience} epochs: must be at least 1, or absent to train to the end"
            )
        if not 0 <= self.min_delta < math.inf:
            raise RecipeError(f"min_delta = {self.min_delta}: must be a finite number, not negative")

    def update(self, epoch: int, value: float) -> bool:
        """Take in the value of an epoch; epochs may be skipped between evaluations.

        Args:
            epoch: later than all before.
            value: the metric.

        Returns:
            Whether this is the best epoch so far.
        """
        assert epoch > self.last_epoch, f"epoch {epoch} comes after epoch {self.last_epoch}"
        self.last_epoch = epoch
        if self.higher_is_better:
            improved = value > self.best_value + self.min_delta
        else:
            improved = value < self.best_value - self.min_delta
        if improved:
            self.best_value, self.best_epoch = value, epoch
        return improved

    @property
    def should_stop(self) -> bool:
        """Whether the best epoch lies `patience` epochs or more behind the last one."""
        return self.patience is not None and self.last_epoch - self.best_epoch >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """What changes as epochs go by, for a checkpoint; the options belong to the recipe."""
        return {name: getattr(self, name) for name in STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave.

        Raises:
            StoreError: the fields are not those of this version.
        """
        if set(state) != set(STATE):
            raise StoreError(
                f"state of early stopping has the fields {sorted(state)} but {sorted(STATE)} are needed: the "
                "checkpoint is of another version, so start a new run"
            )
        for name, value in state.items():
            setattr(self, name, value)
