"""A minibatch on its way through a collection of tables, and several that are looked up at once."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.recsys.sharded.copies import renumbered
from windrow.recsys.sharded.packing import LookupInput, Message, Samples, header_length, pack, unpack

if TYPE_CHECKING:
    from windrow.comm.route import Transfer
    from windrow.comm.transfer import Pending
    from windrow.recsys.sharded.collection import ShardedTables
    from windrow.recsys.sharded.lookahead import EarlyVectors

__all__ = ["InFlightLookup", "drop_early", "look_up_together"]

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
        self._given = samples
        self.together = _Together([self])
        """The lookups whose rows are read at once."""
        self._following: InFlightLookup[Result] | None = None
        self._early: EarlyVectors | None = None
        self.restart()

    def restart(self) -> None:
        """Send the counts, or send them anew to where the tables are now; nothing must have been read. Collective."""
        tables = self._tables
        self._samples = samples = renumbered(self._given, tables.copied_features)
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
        self.transfer: Transfer | None = None
        """Of what was found."""
        self._replicated: list[Tensor] = []

    @property
    def has_read(self) -> bool:
        """Whether rows were looked up, so that a backward pass may wait for them."""
        return self.transfer is not None or self.together.have_read

    @property
    def looks_ahead(self) -> bool:
        """Whether vectors of the next minibatch, or of this one, go ahead."""
        return self._following is not None or self._early is not None

    def settle(self) -> None:
        """Have nothing under way that the next stage waits for, and nothing that has gone ahead. Collective."""
        self.start_ids()
        self._pending.wait()
        self.drop_early()

    def drop_early(self) -> None:
        """Look up anew what has gone ahead, since rows change in between. Collective."""
        if self._early is not None:
            self._early.drop()
            self._early = None

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

    def look_ahead(self, following: "InFlightLookup[Result]") -> None:
        """Have vectors of the minibatch after this one travel while this one is learnt from. Collective.

        See `windrow.recsys.sharded.lookahead`. Must be called before `start_lookup`, and on every rank; the update of
        this minibatch must be over before `start_lookup` of the one after it.

        Args:
            following: of the same collection, which has sent its ids.

        Raises:
            RecipeError: one of the two is looked up at once with others (`look_up_together`).
        """
        if len(self.together.lookups) > 1 or len(following.together.lookups) > 1:
            raise RecipeError(
                "a minibatch that is looked up at once with others has no lookahead: choose look_up_together, or "
                "look_ahead"
            )
        if self._tables.lookahead.is_possible:
            self._following = following

    def received(self) -> Sequence[Message]:
        """What each rank asks this one for. Collective: waits for it."""
        self.start_ids()
        self._pending.wait()
        return self._received

    def start_lookup(self) -> None:
        """Wait for the ids of all ranks, look them up, and send what was found. Collective."""
        self._check_place()
        if self.transfer is not None:
            return
        together = self.together
        wanted, found = together.look_up(self._tables, None if self._early is None else self._early.wanted)
        asked, number = (*self._asked, self._asked_here), together.lookups.index(self)
        if self._early is None:
            route = self._tables.route(wanted, self._received, asked, self._samples, number * len(self._received))
        else:
            route = self._early.route
        self.transfer = route.start(
            found,
            differentiable=True,
            after=together.lookups[number - 1].transfer if number else None,
            is_last=number + 1 == len(together.lookups),
            early=None if self._early is None else self._early.gone_ahead(),
        )
        self._early = None
        if self._following is not None:
            self._following.choose_early(wanted)
        self._tables.count_rows(asked)
        # While the vectors travel:
        self._replicated = self._tables.look_up_replicated(self._asked_here)

    def finish(self) -> Result:
        """Wait for what was found for this rank's samples. Collective; once."""
        self.start_lookup()
        assert self.transfer is not None
        found = self._tables.receive(self.transfer, self._replicated, self._samples)
        following = self.together.lookups[self.together.lookups.index(self) + 1 :]
        if following:
            # Its vectors travel while this minibatch is computed, by whatever the model runs in.
            with torch.set_grad_enabled(self.transfer.token is not None):
                following[0].start_lookup()
        else:
            self.together.release()
        if self._following is not None:
            self._following.start_early()
            self._following = None
        return found

    def choose_early(self, before: Sequence[LookupInput]) -> None:
        """Find out which vectors the update of the minibatch before, which looks these rows up, cannot change."""
        from windrow.recsys.sharded.lookahead import EarlyVectors

        received = self.received()
        asked = (*self._asked, self._asked_here)
        self._early = EarlyVectors(self._tables, before, received, asked, self._samples)

    def start_early(self) -> None:
        """Look these up and send them."""
        if self._early is not None:
            self._early.start()

    def as_exchange(self) -> "InFlightLookup[Result]":
        """This lookup as one that exchanges messages, which can be joined with others. Collective."""
        return self

    def _check_place(self) -> None:
        if self._layout is not self._tables.layout:
            raise RecipeError(
                "the tables have moved to another plan since this lookup was started: finish lookups, and run their "
                "backward passes, before move_to, or start them by prefetch, which are started anew"
            )


class _Together:
    """Lookups of minibatches that are learnt from at once: rows are read once, for all of them."""

    def __init__(self, lookups: "Sequence[InFlightLookup[Any]]") -> None:
        self.lookups = lookups
        self._found: tuple[Sequence[LookupInput], Sequence[Tensor]] | None = None

    @property
    def have_read(self) -> bool:
        """Whether rows were read, and not all of them have landed."""
        return self._found is not None

    def look_up(
        self, tables: "ShardedTables[Any]", wanted: Sequence[LookupInput] | None
    ) -> tuple[Sequence[LookupInput], Sequence[Tensor]]:
        """What tables of this rank were asked for, minibatch by minibatch, and what they found. Collective.

        `wanted` is the former, where that is known.
        """
        if self._found is None:
            if wanted is None:
                received = [message for lookup in self.lookups for message in lookup.received()]
                wanted = unpack(received, tables.layout.owners[tables.group.rank], tables.form)
            self._found = wanted, tables.look_up(wanted)
        return self._found

    def release(self) -> None:
        """Let go of what was found, and of each other, once all of it has landed."""
        self.lookups, self._found = (), None


def drop_early(lookups: "Iterable[InFlightLookup[Any]]") -> None:
    """Look up anew what has gone ahead of some minibatches, since their rows are about to change. Collective."""
    for lookup in lookups:
        lookup.drop_early()


def look_up_together(lookups: "Sequence[InFlightLookup[Any]]") -> None:
    """Have minibatches of one collection looked up at once, when the first of them is. Collective.

    Rows are read for all of them, so that vectors of one travel while the one before it is computed, and gradients of
    one while the next is; tables learn from all of them in the backward pass of the last, as from one minibatch. Each
    is finished, and its backward pass run, in their order.

    The data-interleaving of PICASSO (Zhang et al., ICDE 2022), for tables that are spread over ranks.

    Cost: memory for the vectors of all of them where rows are, until the last backward pass.

    Args:
        lookups: none of which has read rows.

    Raises:
        RecipeError: one of them has a lookahead.
    """
    joined = [lookup.as_exchange() for lookup in lookups]
    if any(lookup.looks_ahead for lookup in joined):
        raise RecipeError("minibatches with a lookahead cannot be looked up at once: choose one of the two")
    together = _Together(joined)
    for lookup in joined:
        lookup.together = together
