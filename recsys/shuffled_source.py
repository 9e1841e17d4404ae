"""Samples in an order that is drawn anew in each epoch, cut into minibatches that ranks share."""

from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import AbstractContextManager, closing
from typing import cast

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import RecipeError
from windrow.comm.splits import near_equal_split
from windrow.recsys.batch import Batch
from windrow.recsys.prefetch import prefetch

__all__ = ["ShuffledSource"]

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

    Raises:
        RecipeError: the batch size is out of range.
    """

    def __init__(self, num_samples: int, *, rank: int, size: int, batch_size: int) -> None:
        if batch_size < 1:
            raise RecipeError(f"batch_size = {batch_size}: expected at least 1")
        self._num_samples = num_samples
        self._rank = rank
        self._size = size
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

    @abstractmethod
    def read(self, epoch: int, step: int) -> Batch:
        """This rank's part of one step.

        Args:
            epoch: from 0.
            step: of the epoch, 0 <= step < steps_per_epoch.
        """

    @abstractmethod
    def shuffle(self, epoch: int) -> IntArray:
        """[samples_per_epoch] the numbers of all samples, in the order of an epoch."""

    def samples_of(self, epoch: int, step: int) -> IntArray:
        """Numbers of this rank's samples in a step, in their order. Cost: `shuffle`, at the first call of an epoch."""
        assert 0 <= step < self._steps, f"step {step} of an epoch of {self._steps}"
        if self._last is None or self._last[0] != epoch:
            self._last = (epoch, self.shuffle(epoch))
        start, stop = self._bounds[step], self._bounds[step + 1]
        shares = near_equal_split(stop - start, self._size)
        return self._last[1][start + shares[self._rank] : start + shares[self._rank + 1]]
