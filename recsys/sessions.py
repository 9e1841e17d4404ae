"""Sessions of clicks, and the samples that they are: each click is to be told from those before it.

::

    items      17  4  4 99 | 5 | 8 17         3 sessions
    offsets    0             4   5    7
    sample     -   0  1  2   -   -  3
    history        [17] [17 4] [17 4 4] -> 99                [8] -> 17
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError
from windrow.comm.npz_file import integer_row, load_arrays
from windrow.recsys.id_lists import IdLists, offsets_of_lengths

__all__ = ["NextItemSamples", "Sessions", "load_sessions", "places_in_lists"]

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class NextItemSamples:
    """Histories, and what came next.

    Attributes:
        histories: items of each sample, oldest first, at least one.
        targets: [n] int64 item that came next.
    """

    histories: IdLists
    targets: IntArray

    def __len__(self) -> int:
        """n."""
        return len(self.targets)


@dataclass(frozen=True)
class Sessions:
    """Clicks of many sessions; the top of this module has an example.

    Attributes:
        items: [clicks] int64, one session behind the other, oldest first.
        offsets: [sessions + 1] int64 where each begins; the last is the number of clicks.
        max_history: the most items in a history, the latest ones; at least 1.

    Raises:
        DataError: offsets do not begin at 0, fall, or end elsewhere than items do; an item is negative; or
            `max_history` is below 1.
    """

    items: IntArray
    offsets: IntArray
    max_history: int = 50

    def __post_init__(self) -> None:
        """Check the laws."""
        offsets = self.offsets
        if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(self.items):
            raise DataError(
                f"offsets of sessions must begin with 0 and end with the number of items, {len(self.items)}"
            )
        if len(offsets) > 1 and np.diff(offsets).min() < 0:
            raise DataError(f"offsets of sessions fall behind session {int(np.diff(offsets).argmin())}")
        if len(self.items) and self.items.min() < 0:
            raise DataError(f"item {self.items.min()} of click {self.items.argmin()}: items are not negative")
        if self.max_history < 1:
            raise DataError(f"max_history = {self.max_history}: a history has at least one item")

    @cached_property
    def sample_offsets(self) -> IntArray:
        """[sessions + 1] first sample of each session, then the number of samples."""
        return offsets_of_lengths(np.maximum(np.diff(self.offsets) - 1, 0))

    @property
    def num_samples(self) -> int:
        """Clicks that follow another one of their session."""
        return int(self.sample_offsets[-1])

    def samples(self, numbers: IntArray) -> NextItemSamples:
        """Make some samples.

        Args:
            numbers: [n] which, each 0 <= number < num_samples, in any order.

        Returns:
            n samples. Cost: a binary search for each, and a copy of the histories.
        """
        sessions = np.searchsorted(self.sample_offsets, numbers, side="right") - 1
        firsts = self.offsets[sessions]
        targets = firsts + 1 + numbers - self.sample_offsets[sessions]
        lengths = np.minimum(targets - firsts, self.max_history)
        places = places_in_lists(targets - lengths, lengths)
        return NextItemSamples(
            IdLists(offsets_of_lengths(lengths), self.items[places], None), self.items[targets]
        )

    def split(self, last: int) -> "tuple[Sessions, Sessions]":
        """Cut the last sessions off.

        Args:
            last: how many, at most all.

        Returns:
            The sessions before, and the last ones.
        """
        cut = len(self.offsets) - 1 - last
        first = int(self.offsets[cut])
        return (
            Sessions(self.items[:first], self.offsets[: cut + 1], self.max_history),
            Sessions(self.items[first:], self.offsets[cut:] - first, self.max_history),
        )


def load_sessions(path: Path, *, max_history: int = 50) -> Sessions:
    """Read sessions from an archive of NumPy's.

    Args:
        path: of a file with the arrays `items` and `offsets`, whole numbers, as `Sessions` has them.
        max_history: the most items in a history.

    Raises:
        DataError: the file cannot be read, or does not hold sessions.
    """
    arrays = load_arrays(path)
    items, offsets = (integer_row(path, arrays, name) for name in ("items", "offsets"))
    return Sessions(items, offsets, max_history)


def places_in_lists(starts: IntArray, lengths: IntArray) -> IntArray:
    """Number the places of some lists.

    Args:
        starts: [n] first place of each.
        lengths: [n] places of each.

    Returns:
        [sum of lengths] ``starts[0], starts[0] + 1, ...``, list after list.
    """
    ends = np.cumsum(lengths)
    places: IntArray = np.repeat(starts - (ends - lengths), lengths)
    places += np.arange(len(places))
    return places
