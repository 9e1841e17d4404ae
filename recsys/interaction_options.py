"""The recipe section that says how implicit feedback becomes minibatches."""

from dataclasses import dataclass

from windrow.comm.errors import RecipeError

__all__ = ["InteractionOptions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class InteractionOptions:
    """Columns, validation split, neighbourhoods and negatives of a log of format "interactions"."""

    user_column: str = "user"
    """Parquet and CSV only: column of user numbers, from 0."""
    item_column: str = "item"
    """Parquet and CSV only: column of item numbers, from 0."""
    validation_fraction: float = 0.0
    """Share of each user's training items that are set apart to choose settings by, in [0, 1)."""
    max_history: int = 50
    """The most items of a user's past that a training sample holds; 0: users are told by their number alone.
    Evaluation takes all of them."""
    max_audience: int = 50
    """The most users of an item that a training sample holds; 0: items are told by their number alone. Evaluation
    takes all of them."""
    num_negatives: int = 1024
    """Items that every positive of a step is told apart from; all positives share them."""
    negative_exponent: float = 0.0
    """Items are drawn with probability proportional to their count to this power: 0: all alike, 1: by popularity."""
    log_q_correction: bool = False
    """Whether the loss subtracts the logarithm of these probabilities from scores."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            RecipeError: names the field, its value and what is allowed.
        """
        if not 0 <= self.validation_fraction < 1:
            raise RecipeError(
                f"interactions.validation_fraction = {self.validation_fraction}: must be at least 0 and below 1"
            )
        for name, least in (
            ("max_history", 0),
            ("max_audience", 0),
            ("num_negatives", 1),
            ("negative_exponent", 0),
        ):
            if not getattr(self, name) >= least:
                raise RecipeError(f"interactions.{name} = {getattr(self, name)}: must be at least {least}")
