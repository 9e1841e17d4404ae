"""The stages of one lookup, which a pipeline starts one by one."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from windrow.recsys.sharded.input_distribution import InputDistribution
from windrow.recsys.sharded.unpacking import LookupInput

__all__ = ["ExchangedLookup", "InFlightLookup"]

Result = TypeVar("Result")


class InFlightLookup(ABC, Generic[Result]):
    """A minibatch on its way through a collection; made by `start_counts` of the collection.

    Every stage is collective: every rank starts the stages of all its minibatches in the same order. A stage that was
    not started is started by the next one, so that ``collection.start_counts(batch).finish()`` is a whole lookup.
    A loop that keeps three minibatches in flight, where values are exact because no row is read before the update of
    the minibatch before::

        step   minibatch n                  minibatch n + 1      minibatch n + 2
                                            start_ids
                                                                 start_counts
               start_lookup
               (bottom part of the model)
               finish
               forward, backward

    In training mode every rank runs one backward pass through each result, also where it has no samples, and in the
    order of the lookups.
    """

    @abstractmethod
    def start_ids(self) -> None:
        """Wait for the counts and send the ids. Collective.

        Raises:
            DeadlineError: a rank did not come in time.
        """

    @abstractmethod
    def start_lookup(self) -> None:
        """Wait for the ids of all ranks, look them up, and send what was found. Collective.

        Raises:
            DeadlineError: a rank did not come in time.
        """

    @abstractmethod
    def finish(self) -> Result:
        """Wait for what was found for this rank's samples. Collective; once.

        Raises:
            DeadlineError: a rank did not come in time.
        """


class ExchangedLookup(InFlightLookup[Result]):
    """The stages where ranks have to talk; what travels back is left to those who inherit.

    Args:
        distribution: the ids, whose counts are on their way.
    """

    def __init__(self, distribution: InputDistribution) -> None:
        self._distribution = distribution
        self._ids_started = False
        self._lookup_started = False

    def start_ids(self) -> None:
        """See `InFlightLookup.start_ids`."""
        if not self._ids_started:
            self._ids_started = True
            self._distribution.start_ids()

    def start_lookup(self) -> None:
        """See `InFlightLookup.start_lookup`."""
        if not self._lookup_started:
            self.start_ids()
            self._lookup_started = True
            self._start_vectors(self._distribution.wait())

    def finish(self) -> Result:
        """See `InFlightLookup.finish`."""
        self.start_lookup()
        return self._finish_vectors()

    @abstractmethod
    def _start_vectors(self, wanted: Sequence[LookupInput]) -> None:
        """Look up what all ranks want of this one, and send it."""

    @abstractmethod
    def _finish_vectors(self) -> Result:
        """Wait for the vectors and put them together."""
