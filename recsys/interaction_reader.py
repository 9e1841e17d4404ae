"""Minibatches of implicit feedback: positives and shared negatives, with their neighbourhoods, in one container.

A rank with B positives and M negatives gets B + M rows of four features, of `windrow.recsys.neighbourhoods`::

    row              user    audience    history    item
    0 .. B - 1       [u]     [u, ...]    [i, ...]   [positive]
    B .. B + M - 1   []      [u, ...]    []         [negative]       the same M negatives on every rank
"""

import numpy as np
import numpy.typing as npt
import torch

from windrow.comm.random import Stream, hash_ids, stream_key
from windrow.recsys.batch import Batch
from windrow.recsys.interactions import Interactions
from windrow.recsys.negative_sampling import NegativeSampler
from windrow.recsys.neighbourhoods import Neighbourhoods
from windrow.recsys.shuffled_source import ShuffledSource

__all__ = ["InteractionReader"]

IntArray = npt.NDArray[np.int64]


class InteractionReader(ShuffledSource):
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
        super().__init__(len(interactions.train.items), rank=rank, size=size, batch_size=batch_size)
        self._users, self._items = interactions.train.users, interactions.train.items
        self._negatives = negatives
        self._neighbourhoods = neighbourhoods
        self._seed = seed

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
        pairs = self.samples_of(epoch, step)
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

    def shuffle(self, epoch: int) -> IntArray:
        """The numbers of all pairs in the order of an epoch."""
        # Hashing with one key is one-to-one, so there are no ties.
        key = stream_key(self._seed, Stream.SHUFFLE, epoch)
        return np.argsort(hash_ids(key, np.arange(len(self._items))))
