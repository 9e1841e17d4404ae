"""A minibatch on its way through a collection of tables."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.recsys.sharded.packing import Message, Samples, header_length, pack, unpack

if TYPE_CHECKING:
    from windrow.comm.route import Transfer
    from windrow.comm.transfer import Pending
    from windrow.recsys.sharded.collection import ShardedTables

__all__ = ["InFlightLookup"]

Result = TypeVar("Result")


class InFlightLookup(Generic[Result]):
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

    Raises:
        DeadlineError: of every stage: a rank did not come in time.
        RecipeError: of every stage: the tables have moved since the lookup was started, and it was no prefetched one.
    """

    def __init__(self, tables: "ShardedTables[Result]", samples: Sequence[Samples]) -> None:
        self._tables = tables
        self._samples = samples
        self.restart()

    def restart(self) -> None:
        """Send the counts, or send them anew to where the tables are now; nothing must have been read. Collective."""
        tables, samples = self._tables, self._samples
        self._layout = layout = tables.layout
        world = tables.group
        self._owner = layout.owners[world.rank]
        *self._asked, self._asked_here = pack(samples, (*layout.owners, layout.replicated), layout.index, tables.form)
        length = header_length(self._owner, layout.num_groups)
        self._headers = [torch.empty(length, dtype=torch.int64) for _ in range(world.size)]
        self._pending: Pending[None] = world.start_exchange(
            [torch.from_numpy(message.header) for message in self._asked],
            self._headers,
            stage=f"{tables.stage}: counts",
        )
        self._received: Sequence[Message] = ()
        self._transfer: Transfer | None = None
        self._replicated: list[Tensor] = []

    @property
    def has_read(self) -> bool:
        """Whether rows were looked up, so that a backward pass may wait for them."""
        return self._transfer is not None

    def settle(self) -> None:
        """Have nothing under way that the next stage waits for. Collective."""
        self.start_ids()
        self._pending.wait()

    def start_ids(self) -> None:
        """Wait for the counts and send the ids. Collective."""
        self._check_place()
        if self._received:
            return
        self._pending.wait()
        rank = self._tables.group.rank
        self._received = [
            self._asked[rank] if peer == rank else Message(self._tables.form, header.numpy(), self._owner)
            for peer, header in enumerate(self._headers)
        ]
        self._pending = self._tables.group.start_exchange(
            [message.buffer for message in self._asked],
            [message.buffer for message in self._received],
            stage=f"{self._tables.stage}: ids",
        )

    def start_lookup(self) -> None:
        """Wait for the ids of all ranks, look them up, and send what was found. Collective."""
        self._check_place()
        if self._transfer is not None:
            return
        self.start_ids()
        self._pending.wait()
        wanted = unpack(self._received, self._owner, self._tables.form)
        asked = (*self._asked, self._asked_here)
        self._transfer = self._tables.send(wanted, self._received, asked, self._samples)
        self._tables.count_rows(asked)
        # While the vectors travel:
        self._replicated = self._tables.look_up_replicated(self._asked_here)

    def finish(self) -> Result:
        """Wait for what was found for this rank's samples. Collective; once."""
        self.start_lookup()
        assert self._transfer is not None
        return self._tables.receive(self._transfer, self._replicated, self._samples)

    def _check_place(self) -> None:
        if self._layout is not self._tables.layout:
            raise RecipeError(
                "the tables have moved to another plan since this lookup was started: finish lookups, and run their "
                "backward passes, before move_to, or start them by prefetch, which are started anew"
            )
