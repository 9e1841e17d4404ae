"""Draw the items that a minibatch of implicit feedback is told apart from.

All positives of a global minibatch share one list of negatives, which is a function of (seed, epoch, step): every rank
draws the same list, without a message.
"""

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import RecipeError
from windrow.comm.random import Stream, hash_ids, stream_key

__all__ = ["NegativeSampler"]


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
        """Draw the negatives of one step.

        Args:
            epoch: from 0.
            step: of the epoch.

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
