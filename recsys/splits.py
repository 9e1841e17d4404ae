"""Which samples train, which validate, which test.

by time    |---- train ----|-- validation --|-- test --|      all of one instant on one side
by hash    a share of the values of a column (or of the rows), the same ones whatever else is in the log
by files   [log] paths train; the other splits have files of their own
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import RecipeError
from windrow.comm.random import Stream, hash_ids, stream_key

__all__ = [
    "SPLITS",
    "LogSplitOptions",
    "SplitName",
    "SplitRule",
    "parse_instant",
    "split_by_hash",
    "split_by_time",
]

SplitRule = Literal["time", "hash", "files"]
"""What decides on a sample's split."""

SplitName = Literal["train", "validation", "test"]
"""A split."""

SPLITS: tuple[SplitName, SplitName, SplitName] = ("train", "validation", "test")
"""The splits, by their code: 0, 1, 2."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSplitOptions:
    """How samples are dealt to train, validation and test."""

    by: SplitRule = "hash"
    """time: earlier samples train, later ones validate and test, so that nothing is learnt from the future; needs
    [log] time. hash: at random, by `column`. files: by `validation_paths` and `test_paths`."""
    fractions: tuple[float, float, float] = (0.8, 0.1, 0.1)
    """time and hash: share of the samples in train, validation and test; 0 for no such split."""
    instants: tuple[str, ...] = ()
    """time only, instead of `fractions`: where validation and test begin, two ISO dates or times (UTC where they
    say nothing else) or integers, as the column has."""
    column: str = ""
    """hash only: samples that are equal in this column stay together; empty for the number of the row."""
    seed: int = 0
    """hash only: another seed deals otherwise."""
    validation_paths: tuple[Path, ...] = ()
    """files only: files or patterns of the validation split; may be empty."""
    test_paths: tuple[Path, ...] = ()
    """files only: files or patterns of the test split; may be empty."""

    def __post_init__(self) -> None:
        """Refuse contradictions.

        Raises:
            RecipeError: an option is out of range or belongs to another rule.
        """
        if self.by not in get_args(SplitRule):
            raise RecipeError(f'by = "{self.by}": expected one of {", ".join(get_args(SplitRule))}')
        if min(self.fractions) < 0 or abs(sum(self.fractions) - 1) > 1e-9 or self.fractions[0] == 0:
            raise RecipeError(
                f"fractions = {list(self.fractions)}: expected shares of 0 or more that add up to 1, "
                "the first of them above 0"
            )
        if self.instants and (self.by != "time" or len(self.instants) != len(SPLITS) - 1):
            raise RecipeError(
                f'instants = {list(self.instants)}: expected two, where validation and test begin, and by = "time"'
            )
        if self.instants and parse_instant(self.instants[0]) > parse_instant(self.instants[1]):
            raise RecipeError(f"instants = {list(self.instants)}: validation must begin before test")
        if self.column and self.by != "hash":
            raise RecipeError(f'column = {self.column!r} is for by = "hash", but by = "{self.by}"')
        if (self.validation_paths or self.test_paths) and self.by != "files":
            raise RecipeError(f'validation_paths and test_paths are for by = "files", but by = "{self.by}"')

    def expected_splits(self) -> tuple[SplitName, ...]:
        """The splits that must not be empty."""
        if self.by == "files":
            present = (True, bool(self.validation_paths), bool(self.test_paths))
        elif self.instants:
            present = (True, True, True)
        else:
            present = tuple(share > 0 for share in self.fractions)  # type: ignore[assignment]  # three of them
        return tuple(name for name, there in zip(SPLITS, present, strict=True) if there)


def parse_instant(text: str) -> int:
    """An instant of a recipe as it stands in the time column.

    Args:
        text: a whole number, or an ISO date or time; UTC where it says nothing else.

    Returns:
        The number, or microseconds since 1970.

    Raises:
        RecipeError: it is neither.
    """
    try:
        return int(text)
    except ValueError:
        pass
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise RecipeError(f"{text!r} is no whole number and no ISO date or time: {error}") from error
    aware = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    since = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds


def split_by_time(times: npt.NDArray[np.int64], cuts: tuple[int, int]) -> npt.NDArray[np.int8]:
    """Deal samples by time.

    Args:
        times: [n].
        cuts: times at which validation and test begin.

    Returns:
        [n] codes: positions in `SPLITS`.
    """
    return np.searchsorted(np.asarray(cuts, np.int64), times, side="right").astype(np.int8)


def split_by_hash(
    keys: npt.NDArray[np.integer], fractions: tuple[float, float, float], seed: int
) -> npt.NDArray[np.int8]:
    """Deal samples at random, equal keys alike.

    Args:
        keys: [n] integers: row numbers, or 64-bit hashes of a column's values.
        fractions: shares of train, validation and test.
        seed: deals otherwise.

    Returns:
        [n] codes: positions in `SPLITS`; a function of key and seed alone.
    """
    # 53 bits: every number is exact as a float64, and so is the comparison with a fraction.
    draws = (hash_ids(stream_key(seed, Stream.SPLIT), keys) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    bounds = np.cumsum(fractions[:-1])
    return np.searchsorted(bounds, draws, side="right").astype(np.int8)
