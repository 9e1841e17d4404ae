"""Minibatches of sessions: histories, what came next, and the negatives that all of a minibatch share."""

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.random import Stream, hash_ids, stream_key
from windrow.recsys.batch import Batch
from windrow.recsys.negative_sampling import NegativeSampler
from windrow.recsys.session_batch import make_session_batch
from windrow.recsys.sessions import Sessions, places_in_lists
from windrow.recsys.shuffled_source import ShuffledSource

__all__ = ["SampleOrder", "SessionReader"]

IntArray = npt.NDArray[np.int64]

SampleOrder = Literal["samples", "sessions"]


class SessionReader(ShuffledSource):
    """The minibatches of one rank, laid out as `windrow.recsys.session_batch` says; a pure function of (epoch, step).

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

    def shuffle(self, epoch: int) -> IntArray:
        """The numbers of all samples in the order of an epoch; see the class."""
        # Hashing with one key is one-to-one, so there are no ties.
        key = stream_key(self._seed, Stream.SHUFFLE, epoch)
        if self._order == "samples":
            return np.argsort(hash_ids(key, np.arange(self.samples_per_epoch)))
        offsets = self._sessions.sample_offsets
        sessions = np.argsort(hash_ids(key, np.arange(len(offsets) - 1)))
        return places_in_lists(offsets[sessions], np.diff(offsets)[sessions])
