"""One minibatch on its way through a collection: counts, ids, lookup at the owners, vectors home."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from windrow.comm.route import Transfer
from windrow.comm.world import World
from windrow.recsys.sharded.layout import Layout
from windrow.recsys.sharded.packing import LookupInput, Message, MessageFormat, pack, unpack
from windrow.recsys.sharded.samples import Samples

if TYPE_CHECKING:
    from windrow.comm.transfer import Pending

__all__ = ["InFlightLookup"]

Result_co = TypeVar("Result_co", covariant=True)


class _Tables(Protocol[Result_co]):
    """What a lookup needs of its collection."""

    world: World
    layout: Layout
    form: MessageFormat
    stage: str

    def send(
        self,
        wanted: Sequence[LookupInput],
        received: Sequence[Message],
        asked: Sequence[Message],
        samples: Sequence[Samples],
    ) -> Transfer:
        """Look up what all ranks want of this one, and send it."""

    def look_up_replicated(self, samples: Sequence[Samples]) -> list[Tensor]:
        """Look up what this rank wants of the tables that every rank holds."""

    def receive(
        self, transfer: Transfer, replicated: Sequence[Tensor], samples: Sequence[Samples]
    ) -> Result_co:
        """Wait for what was found for this rank's samples, and put it together."""


class InFlightLookup(Generic[Result_co]):
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

    In training mode every rank runs one backward pass through each result, also where it has no samples. Gradients
    travel while what was computed between `start_lookup` and `finish` is differentiated.

    Args:
        tables: the collection.
        samples: each group of this rank.
    """

    def __init__(self, tables: _Tables[Result_co], samples: Sequence[Samples]) -> None:
        self._tables = tables
        self._samples = samples
        layout, world = tables.layout, tables.world
        self._owner = layout.owners[world.rank]
        self._asked = pack(samples, layout.owners, layout.index, tables.form)
        length = layout.num_groups + len(self._owner.requests)
        self._headers = [torch.empty(length, dtype=torch.int64) for _ in range(world.size)]
        self._pending: Pending[None] = world.start_exchange(
            [torch.from_numpy(message.header) for message in self._asked],
            self._headers,
            stage=f"{tables.stage}: counts",
        )
        self._received: Sequence[Message] = ()
        self._transfer: Transfer | None = None
        self._replicated: list[Tensor] = []

    def start_ids(self) -> None:
        """Wait for the counts and send the ids. Collective.

        Raises:
            DeadlineError: a rank did not come in time.
        """
        if self._received:
            return
        self._pending.wait()
        rank = self._tables.world.rank
        self._received = [
            self._asked[rank]
            if peer == rank
            else Message(self._tables.form, header.numpy(), self._owner.request_groups)
            for peer, header in enumerate(self._headers)
        ]
        self._pending = self._tables.world.start_exchange(
            [message.buffer for message in self._asked],
            [message.buffer for message in self._received],
            stage=f"{self._tables.stage}: ids",
        )

    def start_lookup(self) -> None:
        """Wait for the ids of all ranks, look them up, and send what was found. Collective.

        Raises:
            DeadlineError: a rank did not come in time.
        """
        if self._transfer is not None:
            return
        self.start_ids()
        self._pending.wait()
        wanted = unpack(self._received, self._owner, self._tables.form)
        self._transfer = self._tables.send(wanted, self._received, self._asked, self._samples)
        # While the vectors travel:
        self._replicated = self._tables.look_up_replicated(self._samples)

    def finish(self) -> Result_co:
        """Wait for what was found for this rank's samples. Collective; once.

        Raises:
            DeadlineError: a rank did not come in time.
        """
        self.start_lookup()
        assert self._transfer is not None
        return self._tables.receive(self._transfer, self._replicated, self._samples)
