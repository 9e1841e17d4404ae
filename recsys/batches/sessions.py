"""Sessions of clicks, and their minibatches: each click is to be told from those before it.

::

    items      17  4  4 99 | 5 | 8 17         3 sessions
    offsets    0             4   5    7
    sample     -   0  1  2   -   -  3
    history        [17] [17 4] [17 4 4] -> 99                [8] -> 17

B samples and M more items that they are told apart from, negatives that all of a minibatch share, make B + M rows of
two features, which look into one table::

    row              history      item
    0 .. B - 1       [i, ...]     [what came next]
    B .. B + M - 1   []           [another item]

Deduplicated, each item is in the batch once, as a group, and histories are windows into packed ids: those of samples
of one session, next to one another, overlap (the partial variant of RecD's inverse keyed jagged tensor; Zhao et al.,
RecD: Deduplication for End-to-End Deep Learning Recommendation Model Training Infrastructure, MLSys 2023, arXiv
2211.05239). Row b then has the ids that sample b adds to the packed ones.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.numpy_files import integer_row, load_arrays
from windrow.recsys.batches.arrow_columns import Lists
from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.deduplication.ikjt import deduplicate
from windrow.recsys.batches.jagged import (
    Jagged,
    Windows,
    check_lists,
    keyed,
    list_positions,
    offsets_of_lengths,
    pack_windows,
)
from windrow.recsys.batches.sampling import NegativeSampler, ShuffledSource

__all__ = [
    "HISTORY",
    "ITEM",
    "NextItemSamples",
    "SampleOrder",
    "SessionReader",
    "Sessions",
    "load_sessions",
    "make_session_batch",
]

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class NextItemSamples:
    """Histories, and what came next.

    Attributes:
        histories: items of each sample, oldest first, at least one.
        targets: [n] int64 item that came next.
    """

    histories: Lists
    targets: IntArray

    def __len__(self) -> int:
        """n."""
        return len(self.targets)


@dataclass(frozen=True)
class Sessions:
    """Clicks of many sessions; the top of this module has an example.

    Attributes:
        clicks: int64 items of each session, oldest first.
        max_history: the most items in a history, the latest ones; at least 1.

    Raises:
        DataError: offsets do not begin at 0, fall, or end elsewhere than items do; an item is negative; or
            `max_history` is below 1.
    """

    clicks: Lists
    max_history: int = 50

    def __post_init__(self) -> None:
        """Check the laws."""
        check_lists(self.clicks, "clicks", "session {}".format)
        items = self.clicks.values
        if len(items) and items.min() < 0:
            raise DataError(f"item {items.min()} of click {items.argmin()}: items are not negative")
        if self.max_history < 1:
            raise DataError(f"max_history = {self.max_history}: a history has at least one item")

    @cached_property
    def sample_offsets(self) -> IntArray:
        """[sessions + 1] first sample of each session, then the number of samples."""
        return offsets_of_lengths(np.maximum(self.clicks.lengths - 1, 0))

    @property
    def num_samples(self) -> int:
        """Clicks that follow another one of their session."""
        return int(self.sample_offsets[-1])

    def samples(self, numbers: IntArray) -> NextItemSamples:
        """Make the samples of some numbers [n], each 0 <= number < num_samples, in any order.

        Cost: a binary search for each, and a copy of the histories.
        """
        sessions = np.searchsorted(self.sample_offsets, numbers, side="right") - 1
        firsts = self.clicks.offsets[sessions]
        targets = firsts + 1 + numbers - self.sample_offsets[sessions]
        lengths = np.minimum(targets - firsts, self.max_history)
        items = self.clicks.values
        return NextItemSamples(Windows(items, targets - lengths, lengths).expand(), items[targets])

    def split(self, last: int) -> "tuple[Sessions, Sessions]":
        """Cut so many of the last sessions off: the sessions before, and the last ones."""
        end = len(self.clicks)
        return (
            Sessions(self.clicks.slice(0, end - last), self.max_history),
            Sessions(self.clicks.slice(end - last, end), self.max_history),
        )


def load_sessions(path: Path, *, max_history: int = 50) -> Sessions:
    """Read sessions from an archive of NumPy's with the arrays `items` and `offsets`, as `Sessions` has them.

    Raises:
        DataError: the file cannot be read, or does not hold sessions.
    """
    arrays = load_arrays(path)
    items, offsets = (integer_row(path, arrays, name) for name in ("items", "offsets"))
    return Sessions(Jagged(items, offsets), max_history)


SampleOrder = Literal["samples", "sessions"]


class SessionReader(ShuffledSource):
    """The minibatches of one rank, laid out as this module says; a pure function of (epoch, step).

    The order of an epoch is cut into global minibatches, of which each rank takes a near-equal part in rank order::

        sessions    a b c d | e f g | h i          samples of three sessions
        samples     f a | h c | b g | e i | d      all of them shuffled anew in each epoch
        sessions    e f | g h | i a | b c | d      sessions are, and their samples stay together, oldest first

    Args:
        sessions: the same on every rank.
        rank: whose rows to give.
        size: number of ranks.
        batch_size: samples in a step, over all ranks, at least 1.
        negatives: draws those of each step; the same on every rank.
        seed: the run's seed.
        order: of samples; see above.
        deduplicated: hold what repeats in a minibatch once. The results of training are the same, but for rounding.

    Raises:
        RecipeError: the batch size or the order is none.
        DataError: no session has two clicks.
    """

    def __init__(
        self,
        sessions: Sessions,
        *,
        rank: int,
        size: int,
        batch_size: int,
        negatives: NegativeSampler,
        seed: int,
        order: SampleOrder = "samples",
        deduplicated: bool = False,
    ) -> None:
        if order not in get_args(SampleOrder):
            raise RecipeError(f'order = "{order}": expected one of {", ".join(get_args(SampleOrder))}')
        if not sessions.num_samples:
            raise DataError("no session has two clicks, so there is no next item to learn from")
        super().__init__(sessions.num_samples, rank=rank, size=size, batch_size=batch_size, seed=seed)
        self._sessions = sessions
        self._negatives = negatives
        self._order: SampleOrder = order
        self._deduplicated = deduplicated

    def read(self, epoch: int, step: int) -> Batch:
        """This rank's part of one step: B samples and M negatives; B may be 0. row_ids are numbers of samples.

        Cost: a sort of all samples, or sessions, at the first call of an epoch, then proportional to the ids in the
        minibatch.
        """
        numbers = self.samples_of(epoch, step)
        samples = self._sessions.samples(numbers)
        items = np.concatenate([samples.targets, self._negatives.sample(epoch, step)])
        return make_session_batch(samples.histories, items, numbers, deduplicated=self._deduplicated)

    def shuffle(self, epoch: int) -> IntArray:
        """The numbers of all samples in the order of an epoch; see the class."""
        if self._order == "samples":
            return super().shuffle(epoch)
        offsets = self._sessions.sample_offsets
        sessions = self.shuffled(len(offsets) - 1, epoch)
        return list_positions(offsets[sessions], np.diff(offsets)[sessions])


HISTORY, ITEM = "history", "item"
"""The features."""


def make_session_batch(histories: Lists, items: IntArray, row_ids: IntArray, *, deduplicated: bool = False) -> Batch:
    """Put histories and items into one minibatch.

    Args:
        histories: of B samples, without weights, offsets from 0; each has at least one item.
        items: [B + M] what came next after each history, then the other items; or [M], for histories of which
            nothing is known, or for no histories.
        row_ids: [B] numbers of the samples.
        deduplicated: hold what repeats once.

    Returns:
        labels are [B] ones, dense is [B, 0].

    Raises:
        DataError: a history is empty.
    """
    num_samples, num_rows = len(row_ids), max(len(row_ids), len(items))
    lengths = np.zeros((2, num_rows), np.int64)
    lengths[0, :num_samples] = histories.lengths
    lengths[1, : len(items)] = 1
    if num_samples and lengths[0, :num_samples].min() == 0:
        row = int(lengths[0, :num_samples].argmin())
        raise DataError(f"the history of sample {row_ids[row]} is empty: leave such samples out")
    ids, windows = histories.values, {}
    if deduplicated:
        packed = pack_windows(histories.to_torch())
        windows[HISTORY] = packed
        ids = packed.values.numpy()
        # Ids up to the end of each window that lie behind the ends of all windows before.
        ends = np.maximum.accumulate((packed.starts + packed.lengths).numpy())
        lengths[0, :num_samples] = np.diff(ends, prepend=0)
    values = np.concatenate([ids, items])
    flat = torch.from_numpy(lengths.ravel())
    sparse = keyed([HISTORY, ITEM], torch.from_numpy(values), flat, num_samples=num_rows)
    groups = (deduplicate(sparse, [ITEM]),) if deduplicated else ()
    if deduplicated:
        sparse = keyed([HISTORY], torch.from_numpy(ids), flat[:num_rows], num_samples=num_rows)
    return Batch(
        dense=torch.empty(num_samples, 0),
        sparse=sparse,
        labels=torch.ones(num_samples),
        row_ids=torch.from_numpy(row_ids),
        deduplicated=groups,
        windows=windows,
    )
