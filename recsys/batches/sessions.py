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
from windrow.comm.npz_file import integer_row, load_arrays
from windrow.comm.random import Stream, hash_ids, stream_key
from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.deduplication.deduplicate import deduplicate
from windrow.recsys.batches.deduplication.ikjt import PartialLists, pack_windows
from windrow.recsys.batches.id_lists import IdLists, offsets_of_lengths
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
    "places_in_lists",
]

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


Int64Array = npt.NDArray[np.int64]

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
        super().__init__(sessions.num_samples, rank=rank, size=size, batch_size=batch_size)
        self._sessions = sessions
        self._negatives = negatives
        self._seed = seed
        self._order: SampleOrder = order
        self._deduplicated = deduplicated

    def read(self, epoch: int, step: int) -> Batch:
        """This rank's part of one step.

        Args:
            epoch: from 0.
            step: of the epoch, 0 <= step < steps_per_epoch.

        Returns:
            B samples and M negatives; B may be 0. row_ids are numbers of samples. Cost: a sort of all samples, or
            sessions, at the first call of an epoch, then proportional to the ids in the minibatch.
        """
        numbers = self.samples_of(epoch, step)
        samples = self._sessions.samples(numbers)
        items = np.concatenate([samples.targets, self._negatives.sample(epoch, step)])
        return make_session_batch(samples.histories, items, numbers, deduplicated=self._deduplicated)

    def shuffle(self, epoch: int) -> Int64Array:
        """The numbers of all samples in the order of an epoch; see the class."""
        # Hashing with one key is one-to-one, so there are no ties.
        key = stream_key(self._seed, Stream.SHUFFLE, epoch)
        if self._order == "samples":
            return np.argsort(hash_ids(key, np.arange(self.samples_per_epoch)))
        offsets = self._sessions.sample_offsets
        sessions = np.argsort(hash_ids(key, np.arange(len(offsets) - 1)))
        return places_in_lists(offsets[sessions], np.diff(offsets)[sessions])


HISTORY, ITEM = "history", "item"
"""The features."""

Int64ArrayOfBatch = npt.NDArray[np.int64]


def make_session_batch(
    histories: IdLists, items: Int64ArrayOfBatch, row_ids: Int64ArrayOfBatch, *, deduplicated: bool = False
) -> Batch:
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
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

    num_samples, num_rows = len(row_ids), max(len(row_ids), len(items))
    lengths = np.zeros((2, num_rows), np.int64)
    lengths[0, :num_samples] = np.diff(histories.offsets)
    lengths[1, : len(items)] = 1
    if num_samples and lengths[0, :num_samples].min() == 0:
        row = int(lengths[0, :num_samples].argmin())
        raise DataError(f"the history of sample {row_ids[row]} is empty: leave such samples out")
    ids, windows = histories.ids, {}
    if deduplicated:
        packed = pack_windows(torch.from_numpy(histories.offsets), torch.from_numpy(histories.ids))
        windows[HISTORY] = packed
        ids = packed.values.numpy()
        lengths[0, :num_samples] = _added(packed)
    sparse = KeyedJaggedTensor(
        keys=[HISTORY, ITEM],
        values=torch.from_numpy(np.concatenate([ids, items])),
        lengths=torch.from_numpy(lengths.ravel()),
        stride=num_rows,
    )
    groups = (deduplicate(sparse, [ITEM]),) if deduplicated else ()
    if deduplicated:
        sparse = KeyedJaggedTensor(
            keys=[HISTORY],
            values=torch.from_numpy(ids),
            lengths=torch.from_numpy(lengths[0]),
            stride=num_rows,
        )
    return Batch(
        dense=torch.empty(num_samples, 0),
        sparse=sparse,
        labels=torch.ones(num_samples),
        row_ids=torch.from_numpy(row_ids),
        deduplicated=groups,
        windows=windows,
    )


def _added(packed: PartialLists) -> Int64ArrayOfBatch:
    """[B] packed ids up to the end of each window that lie behind the ends of all windows before."""
    ends = np.maximum.accumulate((packed.starts + packed.lengths).numpy())
    return np.diff(ends, prepend=0)
