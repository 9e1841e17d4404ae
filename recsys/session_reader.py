"""Minibatches of sessions: histories, what came next, and the negatives that all of a minibatch share."""

from collections.abc import Generator
from contextlib import AbstractContextManager, closing
from typing import Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.random import Stream, hash_ids, stream_key
from windrow.comm.splits import near_equal_split
from windrow.recsys.batch import Batch
from windrow.recsys.negative_sampling import NegativeSampler
from windrow.recsys.prefetch import prefetch
from windrow.recsys.session_batch import make_session_batch
from windrow.recsys.sessions import Sessions, places_in_lists

__all__ = ["SampleOrder", "SessionReader"]

IntArray = npt.NDArray[np.int64]

SampleOrder = Literal["samples", "sessions"]


class SessionReader:
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
        if batch_size < 1:
            raise RecipeError(f"batch_size = {batch_size}: expected at least 1")
        if order not in get_args(SampleOrder):
            raise RecipeError(f'order = "{order}": expected one of {", ".join(get_args(SampleOrder))}')
        if not sessions.num_samples:
            raise DataError("no session has two clicks, so there is no next item to learn from")
        self._sessions = sessions
        self._rank = rank
        self._size = size
        self._negatives = negatives
        self._seed = seed
        self._order: SampleOrder = order
        self._deduplicated = deduplicated
        self._steps = -(-sessions.num_samples // batch_size)
        self._bounds = near_equal_split(sessions.num_samples, self._steps)
        self._last: tuple[int, IntArray] | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Steps in an epoch, the same on every rank."""
        return self._steps

    @property
    def samples_per_epoch(self) -> int:
        """Samples in an epoch, over all ranks: every click but the first of each session."""
        return self._sessions.num_samples

    def global_batch_size(self, epoch: int, step: int) -> int:
        """Samples of one step over all ranks: what a sum of losses over ranks is divided by; at least 1."""
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
            B samples and M negatives; B may be 0. row_ids are numbers of samples. Cost: a sort of all samples, or
            sessions, at the first call of an epoch, then proportional to the ids in the minibatch.
        """
        assert 0 <= step < self._steps, f"step {step} of an epoch of {self._steps}"
        if self._last is None or self._last[0] != epoch:
            self._last = (epoch, self._shuffle(epoch))
        start, stop = self._bounds[step], self._bounds[step + 1]
        shares = near_equal_split(stop - start, self._size)
        numbers = self._last[1][start + shares[self._rank] : start + shares[self._rank + 1]]
        samples = self._sessions.samples(numbers)
        items = np.concatenate([samples.targets, self._negatives.sample(epoch, step)])
        return make_session_batch(samples.histories, items, numbers, deduplicated=self._deduplicated)

    def _shuffle(self, epoch: int) -> IntArray:
        # Hashing with one key is one-to-one, so there are no ties.
        key = stream_key(self._seed, Stream.SHUFFLE, epoch)
        if self._order == "samples":
            return np.argsort(hash_ids(key, np.arange(self.samples_per_epoch)))
        offsets = self._sessions.sample_offsets
        sessions = np.argsort(hash_ids(key, np.arange(len(offsets) - 1)))
        return places_in_lists(offsets[sessions], np.diff(offsets)[sessions])
