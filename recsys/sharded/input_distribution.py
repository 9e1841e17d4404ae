"""Ids on their way to the ranks that hold the rows, and the stages of one lookup, which a pipeline starts one by one.

Ids take two exchanges, one of headers and one of messages.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from windrow.comm.world import World
from windrow.recsys.sharded.layout import Layout
from windrow.recsys.sharded.packing import LookupInput, Message, MessageFormat, pack, unpack
from windrow.recsys.sharded.samples import Samples

if TYPE_CHECKING:
    from windrow.comm.transfer import Pending

__all__ = ["ExchangedLookup", "InFlightLookup", "InputDistribution"]


class InputDistribution:
    """One minibatch's ids in flight. Creating it is collective, and so is `start_ids`.

    Headers leave when it is created, and while they travel the messages are packed.

    Args:
        world: all its ranks distribute a minibatch, if with no samples.
        layout: the same on every rank.
        samples: each group of this rank.
        form: of the messages; must agree.
        stage: name of the traffic in errors and in the meter; must agree.
    """

    def __init__(
        self, world: World, layout: Layout, samples: Sequence[Samples], form: MessageFormat, *, stage: str
    ) -> None:
        self._world = world
        self._owner = layout.owners[world.rank]
        self._form = form
        self._stage = stage
        self.messages = pack(samples, layout.owners, layout.index, form)
        """What this rank asks each owner for."""
        length = layout.num_groups + len(self._owner.requests)
        self._headers = [torch.empty(length, dtype=torch.int64) for _ in range(world.size)]
        self._counting = world.start_exchange(
            [torch.from_numpy(message.header) for message in self.messages],
            self._headers,
            stage=f"{stage}: counts",
        )
        self._moving: Pending[None] | None = None
        self._received: Sequence[Message] = ()

    def start_ids(self) -> None:
        """Wait for the headers, and send the messages. Collective.

        Raises:
            DeadlineError: a rank did not come in time.
        """
        self._counting.wait()
        headers: list[np.ndarray] = [header.numpy() for header in self._headers]
        rank = self._world.rank
        self._received = [
            self.messages[rank] if peer == rank else Message(self._form, header, self._owner.request_groups)
            for peer, header in enumerate(headers)
        ]
        self._moving = self._world.start_exchange(
            [message.buffer for message in self.messages],
            [message.buffer for message in self._received],
            stage=f"{self._stage}: ids",
        )

    def wait(self) -> list[LookupInput]:
        """Wait for the messages of all ranks.

        Returns:
            The input of this rank's tables, see `unpack`.

        Raises:
            DeadlineError: a rank did not come in time.
        """
        assert self._moving is not None, "start_ids() comes first"
        self._moving.wait()
        return unpack(self._received, self._owner, self._form)

    @property
    def num_rows(self) -> npt.NDArray[np.int64]:
        """[ranks, groups] rows of each rank; after `start_ids`."""
        return np.stack([message.num_rows for message in self._received])


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
