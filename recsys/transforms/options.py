"""The recipe section that says what is done to a feature's ids while they are read."""

from dataclasses import dataclass, fields
from itertools import pairwise

from windrow.comm.errors import RecipeError

__all__ = ["TransformOptions"]

SMALLEST_HASHED_TABLE = 2
"""Row 0 stays what it is, that of missing values; at least one is needed for the rest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformOptions:
    """The steps of one feature, done in the order of these fields, whatever their order in the recipe.

    Each depends on one sample's list alone, and on nothing random: lists that are equal before are equal after, so
    that a list which many samples share is transformed once.
    """

    drop: tuple[int, ...] = ()
    """Ids taken out of lists, with their weights."""
    clip: tuple[int, int] | None = None
    """Lowest and highest id: smaller ids become the first, larger ones the second."""
    hash_rows: int | None = None
    """Rows of a smaller table that ids are hashed to: id 0 (missing) stays 0, others become
    1 + hash(id) mod (hash_rows - 1)."""
    distinct: bool = False
    """Whether of equal ids in a list only the first stays, with its weight."""
    keep_first: int | None = None
    """How many ids of a list stay, at most: the first ones."""
    keep_last: int | None = None
    """How many ids of a list stay, at most: the last ones."""
    sort: bool = False
    """Whether the ids of a list are sorted; equal ones keep their order, and weights follow their ids."""
    reverse: bool = False
    """Whether the order of a list is turned round."""
    dense: str = ""
    """Makes a new feature of one id per sample: name of the dense column that it comes from, as the store holds it
    (after the log's dense_transform). Goes with `bucketise`, and with no other step."""
    bucketise: tuple[float, ...] = ()
    """Rising boundaries: the id is how many of them are at most the value, so there is one row more than boundaries.
    Not-a-number counts as larger than all."""

    def __post_init__(self) -> None:
        """Refuse contradictions.

        Raises:
            RecipeError: an option is out of range or contradicts another.
        """
        if self.clip is not None and not 0 <= self.clip[0] <= self.clip[1]:
            raise RecipeError(
                f"clip = {list(self.clip)}: expected the lowest id, at least 0, then the highest"
            )
        if self.hash_rows is not None and self.hash_rows < SMALLEST_HASHED_TABLE:
            raise RecipeError(f"hash_rows = {self.hash_rows}: expected at least {SMALLEST_HASHED_TABLE}")
        for name in ("keep_first", "keep_last"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RecipeError(f'{name} = {value}: expected at least 1, or "none"')
        if self.keep_first is not None and self.keep_last is not None:
            raise RecipeError("keep_first and keep_last contradict each other: set one of them")
        if bool(self.dense) != bool(self.bucketise):
            raise RecipeError("dense and bucketise go together: name the column, and give boundaries")
        if any(not low < high for low, high in pairwise(self.bucketise)):
            raise RecipeError(f"bucketise = {list(self.bucketise)}: boundaries must rise")
        if self.dense and self.steps() - {"dense", "bucketise"}:
            raise RecipeError(
                f"{self.dense!r} is bucketised, which takes no other step: remove "
                f"{', '.join(sorted(self.steps() - {'dense', 'bucketise'}))}"
            )

    def steps(self) -> set[str]:
        """Names of the fields that ask for something."""
        return {
            field.name for field in fields(self) if getattr(self, field.name) not in (None, False, "", ())
        }

    def keeps_length(self) -> bool:
        """Whether a list is as long afterwards as before, whatever it holds: what a feature of one id needs."""
        return not self.steps() & {"drop", "distinct", "keep_first", "keep_last"}

    def table_rows(self, rows: int) -> int:
        """Rows that the feature's table needs afterwards.

        Args:
            rows: of the table before; of no meaning where a dense column is bucketised.

        Returns:
            One more than the largest id that can come out.
        """
        if self.bucketise:
            return len(self.bucketise) + 1
        if self.hash_rows is not None:
            return self.hash_rows
        if self.clip is not None:
            low, high = self.clip
            return max(low, min(rows - 1, high)) + 1
        return rows
