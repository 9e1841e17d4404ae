"""Minibatches of implicit feedback: positives, their users' histories and shared negatives in one container.

A rank with B positives and M negatives gets B + M rows of three features; histories and items are rows of one table::

    row              user    history    item
    0 .. B - 1       [u]     [i, ...]   [positive]       history: items that the user took, without the positive
    B .. B + M - 1   []      []         [negative]       the same M negatives on every rank
"""

from collections.abc import Generator
from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt
import torch

from windrow.comm.errors import RecipeError
from windrow.comm.random import Stream, hash_ids, stream_key
from windrow.comm.splits import near_equal_split
from windrow.recsys.batch import Batch
from windrow.recsys.interactions import Interactions
from windrow.recsys.negative_sampling import NegativeSampler
from windrow.recsys.prefetch import prefetch

if TYPE_CHECKING:
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

__all__ = ["FEATURES", "HistorySampler", "InteractionReader", "make_features"]

FEATURES = ("user", "history", "item")
"""The features of a minibatch, in this order; "history" and "item" look into one table."""

IntArray = npt.NDArray[np.int64]


class HistorySampler:
    """Gives histories: training items of a user, at most so many.

    Args:
        interactions: whose training split the histories come from.
        max_history: the most items in a history; 0 for none.
        seed: the run's seed.

    Raises:
        RecipeError: `max_history` is negative.
    """

    def __init__(self, interactions: Interactions, max_history: int, *, seed: int) -> None:
        if max_history < 0:
            raise RecipeError(f"max_history = {max_history}: expected at least 0")
        train = interactions.train
        self._indptr = train.indptr
        self._max_history = max_history
        self._seed = seed
        # Shuffled once for each user, so that consecutive ones are a sample.
        user_keys = hash_ids(stream_key(seed, Stream.HISTORY), train.users)
        keys = hash_ids(0, user_keys ^ train.items.astype(np.uint64))
        self._items = train.items[np.lexsort((keys, train.users))]

    def sample(
        self, users: IntArray, draws: npt.NDArray[np.uint64], excluded: IntArray | None = None
    ) -> tuple[IntArray, IntArray]:
        """Draw a history for each row.

        A user's items stand in a circle, in a seeded order; a history is at most `max_history` consecutive ones.

        Args:
            users: [n] the user of each row.
            draws: [n] random numbers that say where to begin.
            excluded: [n] an item to leave out of each history, such as the one to be predicted; None for nothing.

        Returns:
            Item ids of all rows and [n] the length of each. Cost: proportional to the items returned.
        """
        counts = self._indptr[users + 1] - self._indptr[users]
        lengths = np.minimum(counts, self._max_history)
        starts = (draws % np.maximum(counts, 1).astype(np.uint64)).astype(np.int64)
        rows = np.repeat(np.arange(len(users)), lengths)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        items = self._items[self._indptr[users[rows]] + (starts[rows] + within) % counts[rows]]
        if excluded is None:
            return items, lengths
        kept = items != excluded[rows]
        return items[kept], np.bincount(rows[kept], minlength=len(users)).astype(np.int64)


class InteractionReader:
    """The minibatches of one rank. A pure function of (epoch, step); only the last epoch's order is kept.

    The training pairs are shuffled anew in each epoch and cut into global minibatches, of which each rank takes a
    near-equal part in rank order: neither minibatches nor histories nor negatives depend on the number of ranks.

    Args:
        interactions: the same on every rank.
        rank: whose rows to give.
        size: number of ranks.
        batch_size: positives in a step, over all ranks, at least 1.
        negatives: draws those of each step; the same on every rank.
        histories: gives the users' histories; the same on every rank.
        seed: the run's seed.

    Raises:
        RecipeError: the batch size is out of range.
    """

    def __init__(
        self,
        interactions: Interactions,
        *,
        rank: int,
        size: int,
        batch_size: int,
        negatives: NegativeSampler,
        histories: HistorySampler,
        seed: int,
    ) -> None:
        if batch_size < 1:
            raise RecipeError(f"batch_size = {batch_size}: expected at least 1")
        self._users, self._items = interactions.train.users, interactions.train.items
        self._rank = rank
        self._size = size
        self._negatives = negatives
        self._histories = histories
        self._seed = seed
        self._steps = -(-len(self._items) // batch_size)
        self._bounds = near_equal_split(len(self._items), self._steps)
        self._last: tuple[int, IntArray] | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Steps in an epoch, the same on every rank."""
        return self._steps

    @property
    def samples_per_epoch(self) -> int:
        """Positives in an epoch, over all ranks: every training pair once."""
        return len(self._items)

    def global_batch_size(self, epoch: int, step: int) -> int:
        """Positives of one step over all ranks: what a sum of losses over ranks is divided by; at least 1."""
        del epoch
        return self._bounds[step + 1] - self._bounds[step]

    def batches(
        self, epoch: int, first_step: int = 0
    ) -> AbstractContextManager[Generator[Batch, None, None]]:
        """This rank's minibatches of an epoch, made in a thread of their own two steps ahead.

        Args:
            epoch: from 0.
            first_step: where to begin.

        Returns:
            A context that ends the thread when it is left.
        """
        steps = range(first_step, self._steps)
        ahead = prefetch(self.read(epoch, step) for step in steps)
        return closing(cast("Generator[Batch, None, None]", ahead))

    def read(self, epoch: int, step: int) -> Batch:
        """This rank's part of one step.

        Args:
            epoch: from 0.
            step: of the epoch, 0 <= step < steps_per_epoch.

        Returns:
            B positives and M negatives; B may be 0. labels are [B] ones, dense is [B + M, 0], row_ids are [B]
            numbers of training pairs. Cost: a sort of all pairs at the first call of an epoch, then proportional to
            the ids in the minibatch.
        """
        assert 0 <= step < self._steps, f"step {step} of an epoch of {self._steps}"
        if self._last is None or self._last[0] != epoch:
            self._last = (epoch, self._shuffle(epoch))
        start, stop = self._bounds[step], self._bounds[step + 1]
        shares = near_equal_split(stop - start, self._size)
        pairs = self._last[1][start + shares[self._rank] : start + shares[self._rank + 1]]
        users, positives = self._users[pairs], self._items[pairs]
        draws = hash_ids(stream_key(self._seed, Stream.HISTORY, epoch), pairs)
        history, history_lengths = self._histories.sample(users, draws, excluded=positives)
        items = np.concatenate([positives, self._negatives.sample(epoch, step)])
        return Batch(
            dense=torch.empty(len(items), 0),
            sparse=make_features(users, history, history_lengths, items),
            labels=torch.ones(len(pairs)),
            row_ids=torch.from_numpy(pairs),
        )

    def _shuffle(self, epoch: int) -> IntArray:
        # Hashing with one key is one-to-one, so there are no ties.
        key = stream_key(self._seed, Stream.SHUFFLE, epoch)
        return np.argsort(hash_ids(key, np.arange(len(self._items))))


def make_features(
    users: IntArray, history: IntArray, history_lengths: IntArray, items: IntArray
) -> "KeyedJaggedTensor":
    """Put rows of users, then rows of items alone, into one container.

    Args:
        users: [B] user ids.
        history: item ids of the B histories, one after the other.
        history_lengths: [B].
        items: [rows], at least B; or [0] where rows have users only.

    Returns:
        Features "user", "history" and "item" with ``max(B, len(items))`` rows.
    """
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

    rows = max(len(users), len(items))
    lengths = np.zeros((len(FEATURES), rows), dtype=np.int64)
    lengths[0, : len(users)] = 1
    lengths[1, : len(users)] = history_lengths
    lengths[2, : len(items)] = 1
    return KeyedJaggedTensor(
        keys=list(FEATURES),
        values=torch.from_numpy(np.concatenate([users, history, items])),
        lengths=torch.from_numpy(lengths.ravel()),
        stride=rows,
    )
