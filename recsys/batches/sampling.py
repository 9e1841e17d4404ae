"""Samples in an order that is drawn anew in each epoch, and the negatives that a minibatch is told apart from.

Ranks share a global minibatch. All its positives share one list of negatives, which is a function of (seed, epoch,
step): every rank draws the same list, without a message.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import AbstractContextManager, closing

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import RecipeError
from windrow.comm.random import Stream, hash_ids, stream_key
from windrow.comm.rows import near_equal_split
from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.prefetch import prefetch

__all__ = ["NegativeSampler", "ShuffledSource"]

IntArray = npt.NDArray[np.int64]


class ShuffledSource(ABC):
    """The minibatches of one rank. A pure function of (epoch, step); only the last epoch's order is kept.

    The samples are cut into global minibatches, of which each rank takes a near-equal part in rank order: minibatches
    do not depend on the number of ranks.

    Args:
        num_samples: of an epoch.
        rank: whose rows to give.
        size: number of ranks.
        batch_size: samples in a step, over all ranks, at least 1.
        seed: the run's seed.

    Raises:
        RecipeError: the batch size is out of range.
    """

    def __init__(self, num_samples: int, *, rank: int, size: int, batch_size: int, seed: int) -> None:
        if batch_size < 1:
            raise RecipeError(f"batch_size = {batch_size}: expected at least 1")
        self._num_samples = num_samples
        self._rank = rank
        self._size = size
        self._seed = seed
        self._steps = -(-num_samples // batch_size)
        self._bounds = near_equal_split(num_samples, self._steps)
        self._last: tuple[int, IntArray] | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Steps in an epoch, the same on every rank."""
        return self._steps

    @property
    def samples_per_epoch(self) -> int:
        """Samples in an epoch, over all ranks."""
        return self._num_samples

    def global_batch_size(self, epoch: int, step: int) -> int:
        """Samples of one step over all ranks: what a sum of losses over ranks is divided by; at least 1."""
        del epoch
        return self._bounds[step + 1] - self._bounds[step]

    def batches(self, epoch: int, first_step: int = 0) -> AbstractContextManager[Generator[Batch, None, None]]:
        """This rank's minibatches of an epoch from a step on, made in a thread of their own two steps ahead.

        Returns:
            A context that ends the thread when it is left.
        """
        return closing(prefetch(self.read(epoch, step) for step in range(first_step, self._steps)))

    @abstractmethod
    def read(self, epoch: int, step: int) -> Batch:
        """This rank's part of one step of an epoch, 0 <= step < steps_per_epoch."""

    def shuffle(self, epoch: int) -> IntArray:
        """[samples_per_epoch] the numbers of all samples, in the order of an epoch."""
        return self.shuffled(self._num_samples, epoch)

    def shuffled(self, count: int, epoch: int) -> IntArray:
        """The numbers below `count` in an order that is drawn anew in each epoch. Cost: a sort."""
        # Hashing with one key is one-to-one, so there are no ties.
        return np.argsort(hash_ids(stream_key(self._seed, Stream.SHUFFLE, epoch), np.arange(count)))

    def samples_of(self, epoch: int, step: int) -> IntArray:
        """Numbers of this rank's samples in a step, in their order. Cost: `shuffle`, at the first call of an epoch."""
        assert 0 <= step < self._steps, f"step {step} of an epoch of {self._steps}"
        if self._last is None or self._last[0] != epoch:
            self._last = (epoch, self.shuffle(epoch))
        start, stop = self._bounds[step], self._bounds[step + 1]
        shares = near_equal_split(stop - start, self._size)
        return self._last[1][start + shares[self._rank] : start + shares[self._rank + 1]]


class NegativeSampler:
    """Draws items with replacement, item i with probability q(i) proportional to ``max(count(i), 1) ** exponent``.

    Args:
        item_counts: [items] int64, how often each item occurs in the training split.
        num_negatives: items to draw for a minibatch, at least 1.
        exponent: 0: all items alike; 1: by popularity; word2vec uses 0.75 (Mikolov et al., Distributed
            Representations of Words and Phrases and their Compositionality, 2013).
        seed: the run's seed.

    Raises:
        RecipeError: a number is out of range.
    """

    def __init__(
        self, item_counts: npt.NDArray[np.int64], num_negatives: int, *, exponent: float = 0.0, seed: int
    ) -> None:
        if num_negatives < 1:
            raise RecipeError(f"num_negatives = {num_negatives}: expected at least 1")
        if not exponent >= 0:
            raise RecipeError(f"negative_exponent = {exponent}: expected at least 0")
        self.num_negatives = num_negatives
        self._seed = seed
        weights = np.maximum(item_counts, 1).astype(np.float64) ** exponent
        self._cumulative = np.cumsum(weights / weights.sum())
        self._cumulative[-1] = 1.0  # Every number below 1 must find an item.

    def sample(self, epoch: int, step: int) -> npt.NDArray[np.int64]:
        """Draw the negatives of a step of an epoch.

        Returns:
            [num_negatives] int64 item ids, the same on every rank. Cost: a binary search for each.
        """
        key = stream_key(self._seed, Stream.NEGATIVE, epoch, step)
        bits = hash_ids(key, np.arange(self.num_negatives)) >> np.uint64(11)
        uniform = bits.astype(np.float64) * 2.0**-53  # In [0, 1): the 53 bits that a float64 holds.
        return np.searchsorted(self._cumulative, uniform, side="right").astype(np.int64)

    def log_probabilities(self) -> npt.NDArray[np.float32]:
        """[items] float32 ``log q(i)``: what a logQ correction subtracts (Yi et al., RecSys 2019)."""
        return np.log(np.diff(self._cumulative, prepend=0.0)).astype(np.float32)
