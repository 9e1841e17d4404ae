"""Minibatches of implicit feedback: positives and shared negatives, with their neighbourhoods, in one container.

A rank with B positives and M negatives gets B + M rows of four features, of `windrow.recsys.neighbourhoods`::

    row              user    audience    history    item
    0 .. B - 1       [u]     [u, ...]    [i, ...]   [positive]
    B .. B + M - 1   []      [u, ...]    []         [negative]       the same M negatives on every rank
"""

from collections.abc import Generator
from contextlib import AbstractContextManager, closing
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from windrow.comm.errors import RecipeError
from windrow.comm.random import Stream, hash_ids, stream_key
from windrow.comm.splits import near_equal_split
from windrow.recsys.batch import Batch
from windrow.recsys.interactions import Interactions
from windrow.recsys.negative_sampling import NegativeSampler
from windrow.recsys.neighbourhoods import Neighbourhoods
from windrow.recsys.prefetch import prefetch

__all__ = ["InteractionReader"]

IntArray = npt.NDArray[np.int64]


class InteractionReader:
    """The minibatches of one rank. A pure function of (epoch, step); only the last epoch's order is kept.

    The training pairs are shuffled anew in each epoch and cut into global minibatches, of which each rank takes a
    near-equal part in rank order: neither minibatches nor neighbourhoods nor negatives depend on the number of ranks.

    Args:
        interactions: the same on every rank.
        rank: whose rows to give.
        size: number of ranks.
        batch_size: positives in a step, over all ranks, at least 1.
        negatives: draws those of each step; the same on every rank.
        neighbourhoods: give histories and audiences; the same on every rank.
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
        neighbourhoods: Neighbourhoods,
        seed: int,
    ) -> None:
        if batch_size < 1:
            raise RecipeError(f"batch_size = {batch_size}: expected at least 1")
        self._users, self._items = interactions.train.users, interactions.train.items
        self._rank = rank
        self._size = size
        self._negatives = negatives
        self._neighbourhoods = neighbourhoods
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
        items = np.concatenate([positives, self._negatives.sample(epoch, step)])
        user_draws = hash_ids(stream_key(self._seed, Stream.HISTORY, epoch), pairs)
        # A pair has one number in an epoch, a negative one in a step.
        numbers = np.concatenate([pairs, len(self._items) + np.arange(len(items) - len(pairs))])
        item_draws = hash_ids(stream_key(self._seed, Stream.AUDIENCE, epoch, step), numbers)
        return Batch(
            dense=torch.empty(len(items), 0),
            sparse=self._neighbourhoods.features(users, items, user_draws, item_draws),
            labels=torch.ones(len(pairs)),
            row_ids=torch.from_numpy(pairs),
        )

    def _shuffle(self, epoch: int) -> IntArray:
        # Hashing with one key is one-to-one, so there are no ties.
        key = stream_key(self._seed, Stream.SHUFFLE, epoch)
        return np.argsort(hash_ids(key, np.arange(len(self._items))))
