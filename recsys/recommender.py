"""A whole recommendation model: embedding tables spread over the ranks, and a dense model that every rank holds."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.meter import Stopwatch
from windrow.partition.tables.plan import Plan, check_plan
from windrow.partition.tables.planners import plan_with_planner
from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.jagged import Deduplicated
from windrow.recsys.embeddings import Embeddings
from windrow.recsys.models.click_models import DenseModel
from windrow.recsys.sharded.collection import ShardedTables
from windrow.recsys.sharded.in_flight import look_up_together
from windrow.training.dropout import DropoutContext, run_model

if TYPE_CHECKING:
    from windrow.recsys.sharded.in_flight import InFlightLookup
    from windrow.recsys.sharded.pooled import EmbeddingBagCollection
    from windrow.recsys.sharded.sequences import EmbeddingCollection
    from windrow.recsys.tables.table import TableBatch

__all__ = ["BatchSource", "Lookups", "PrefetchedModel", "Recommender", "collections_of", "pipelined"]


class BatchSource(Protocol):
    """Where minibatches come from: the same number on every rank, and any position can be started at."""

    @property
    def steps_per_epoch(self) -> int:
        """Steps in an epoch, the same on every rank."""

    @property
    def samples_per_epoch(self) -> int:
        """Samples in an epoch, over all ranks."""

    def global_batch_size(self, epoch: int, step: int) -> int:
        """Samples of a step, over all ranks."""

    def batches(self, epoch: int, first_step: int = 0) -> AbstractContextManager[Iterator[Batch]]:
        """This rank's batches of an epoch; leaving the context ends what reads ahead."""


class Lookups:
    """The lookups of one batch in all collections of a model, on their way; stages as in `windrow.recsys.task`.

    Every stage is collective, and measured by the stopwatch.
    """

    def __init__(self, batch: Batch, lookups: "Sequence[InFlightLookup[Any]]", stopwatch: Stopwatch) -> None:
        self.batch = batch
        self.stopwatch = stopwatch
        self.lookups = lookups

    def start_ids(self) -> None:
        """Wait for the counts and send the ids."""
        with self.stopwatch.measure("ids"):
            for lookup in self.lookups:
                lookup.start_ids()

    def look_ahead(self, following: "Lookups") -> None:
        """Have vectors of the next batch travel while this one is learnt from: see `InFlightLookup.look_ahead`."""
        for lookup, after in zip(self.lookups, following.lookups, strict=True):
            lookup.look_ahead(after)

    def start_lookup(self) -> None:
        """Wait for the ids, look them up and send back what was found."""
        with self.stopwatch.measure("lookup"):
            for lookup in self.lookups:
                lookup.start_lookup()


class Recommender(nn.Module):
    """Tables and dense model as one module.

    Args:
        bags: looks up and pools every feature that is no sequence; None where there are none.
        sequences: looks up the features whose order or single items matter; None where there are none.
        model: what is computed from dense values and embeddings; equal weights on all ranks.

    Raises:
        RecipeError: there is nothing to look up, or the two were made for different groups.
    """

    def __init__(
        self, bags: "EmbeddingBagCollection | None", sequences: "EmbeddingCollection | None", model: DenseModel
    ) -> None:
        super().__init__()
        if bags is None and sequences is None:
            raise RecipeError("a recommender without tables: give it a collection of pooled or unpooled features")
        if bags is not None and sequences is not None and bags.groups != sequences.groups:
            raise RecipeError(
                f"pooled features were made for the groups {list(bags.groups)}, unpooled ones for "
                f"{list(sequences.groups)}: give both the same, each of which may name features of the other"
            )
        self.bags = bags
        self.sequences = sequences
        self.model = model
        self._order = () if bags is None else tuple(bags.embedding_names)
        self._pooled = () if bags is None else bags.layout_of_batches.features
        self._unpooled = [] if sequences is None else sequences.embedding_names
        self._has_groups = any(collection.groups for collection in self.collections())

    def checked(self, batch: Batch) -> Batch:
        """The batch as its tables want it: without groups where they were made for none; windows are checked."""
        for name in batch.windows:
            if name not in self._unpooled or name in self._pooled:
                raise DataError(
                    f"{name!r} is packed into windows, which unpooled features alone can be: of these there are "
                    f"{', '.join(self._unpooled) or 'none'}, and pooled ones must not be among them"
                )
        return batch if self._has_groups else batch.expanded()

    def forward(self, batch: Batch, dropout: DropoutContext | None = None, stopwatch: Stopwatch | None = None) -> Any:
        """Look a batch up, and run the model. Collective.

        In training every rank must run the backward pass of the output exactly once, also where it has no samples.

        Args:
            batch: on the model's device. Where the tables were not made for deduplicated groups, lists that it holds
                once are given to each sample here.
            dropout: what dropout is keyed by; None in evaluation.
            stopwatch: measures the stages "pooled", the wait for embeddings, and "forward".

        Returns:
            What the model gives: logits [B] of a click model, `RetrievalVectors` of two towers and of the next item.

        Raises:
            DataError: ids, lengths, inverses or windows are not valid.
        """
        stopwatch = stopwatch or Stopwatch()
        batch = self.checked(batch)
        given = (batch.sparse, batch.deduplicated)
        bags = None if self.bags is None else self.bags.lookup_of(*given)
        rows = None if self.sequences is None else self.sequences.lookup_of(*given)
        with stopwatch.measure("forward"):
            begun = self.model.begin(batch.dense)  # While pooled vectors are on the wire.
        with stopwatch.measure("pooled"):
            pooled = [] if bags is None else bags.finish()
            sequences = {} if rows is None else rows.finish()
            for name, lists in batch.windows.items():
                sequences[name] = Deduplicated(lists.expand(sequences[name].jagged.values))
        with stopwatch.measure("forward"):
            return self.model.finish(begun, Embeddings(pooled, self._order, sequences), dropout)

    def local_tables(self) -> "list[TableBatch]":
        """What this rank stores of all tables, in batches."""
        return [table for collection in self.collections() for table in collection.local_tables()]

    def move_to(self, plan: Plan | str) -> None:
        """Store all tables as another plan has it, in the middle of a run: see `ShardedTables.move_to`. Collective.

        Args:
            plan: of the tables of all collections, or the name of a planner; must agree.

        Raises:
            PlanError: the plan does not fit the tables or the world.
            RecipeError: see there; a collection is then under its old plan or its new one.
        """
        collections = self.collections()
        first, specs = collections[0], [spec for found in collections for spec in found.specs]
        if not isinstance(plan, Plan):
            plan = plan_with_planner(plan, specs, first.world.size, replica_groups=first.plan.replica_groups)
        check_plan(plan, specs, first.world.size)
        for collection in collections:
            collection.move_to(plan.only([spec.name for spec in collection.specs]))

    def collections(self) -> "tuple[EmbeddingBagCollection | EmbeddingCollection, ...]":
        """All that holds tables."""
        return tuple(part for part in (self.bags, self.sequences) if part is not None)


class PrefetchedModel:
    """Any module that holds collections of tables, run with lookups that were started before.

    Args:
        module: called as ``module(batch)``, or with an argument ``dropout``, where `forward` has it: a
            `DropoutContext`, None in evaluation. It calls each of its collections once with ``batch.sparse``, and with
            ``batch.deduplicated`` where that was made for groups.

    Raises:
        RecipeError: it holds no tables.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._collections = collections_of(module)

    def start(self, batch: Batch, stopwatch: Stopwatch | None = None) -> Lookups:
        """Send the counts of a batch, which is on the model's device. Collective.

        Raises:
            DataError: ids, lengths, inverses or windows are not valid.
        """
        stopwatch = stopwatch or Stopwatch()
        with stopwatch.measure("ids"):
            if isinstance(self.module, Recommender):
                batch = self.module.checked(batch)
            given = (batch.sparse, batch.deduplicated)
            return Lookups(batch, [collection.prefetch(*given) for collection in self._collections], stopwatch)

    def outputs(self, source: BatchSource, device: torch.device) -> Iterator[tuple[Batch, Tensor]]:
        """Run the module on an epoch's batches, in evaluation mode: them and its outputs on the CPU. Collective."""
        self.module.eval()
        with source.batches(0) as batches:
            for lookup in pipelined((batch.to(device) for batch in batches), self.start):
                yield lookup.batch, self.finish(lookup).float().cpu()

    def check_lookahead(self) -> None:
        """Refuse tables of which no vector can travel before the minibatch before is learnt from: RecipeError."""
        if not any(tables.lookahead.is_possible or tables.group.size == 1 for tables in self._collections):
            raise RecipeError(
                "training.lookahead = true, but a step may change every row of every table: they are compressed, held "
                "by several groups of ranks, or learnt by adam or with weight decay. Leave lookahead out"
            )

    def forget(self) -> None:
        """Let go of lookups that nobody will finish, where a loop has ended early."""
        for collection in self._collections:
            collection.forget_prefetched()

    def finish(self, lookup: Lookups, context: DropoutContext | None = None) -> Any:
        """Run the module on the batch of a lookup. Collective.

        Raises:
            RecipeError: it did not look the batch up.
        """
        batch = lookup.batch
        if isinstance(self.module, Recommender):
            return self.module(batch, context, lookup.stopwatch)
        with lookup.stopwatch.measure("forward"):
            output = run_model(self.module, batch, dropout=None if context is None else lambda: context)
        if any(collection.has_prefetched(batch.sparse) for collection in self._collections):
            raise RecipeError(
                f"{type(self.module).__name__} did not call all of its collections of tables with batch.sparse: look "
                "each of them up once in forward, with that very object"
            )
        return output


def collections_of(model: nn.Module) -> list[ShardedTables[Any]]:
    """All collections of tables in a model.

    Raises:
        RecipeError: there are none.
    """
    found = [module for module in model.modules() if isinstance(module, ShardedTables)]
    if not found:
        raise RecipeError(
            f"{type(model).__name__} holds no embedding tables: make an EmbeddingBagCollection or EmbeddingCollection "
            "an attribute of it"
        )
    return found


def pipelined(
    batches: Iterable[Any],
    start: Callable[[Any], Lookups],
    *,
    together: int = 1,
    first: int = 0,
    lookahead: bool = False,
) -> Iterator[Lookups]:
    """Run through batches with those that come next already on their way. Collective.

    Args:
        batches: as many on every rank.
        start: ``start(batch)`` begins the lookup of a batch by sending its counts, and gives its `Lookups`.
        together: how many are looked up, and learnt from, at once (`look_up_together`); must agree.
        first: number of the first batch; those of a multiple of `together` begin anew.
        lookahead: whether vectors of a batch travel while the one before is learnt from (`Lookups.look_ahead`), its ids
            one batch earlier; `together` is 1 then. Must agree.

    Yields:
        The lookup of each batch, whose `start_lookup` has been called. The caller finishes it, and, if it is the last
        that was looked up at once, updates the weights, before it asks for the next.
    """
    counted = map(start, batches)
    # At the head of the loop as many as are looked up at once, unless there are no more.
    ids_sent = deque[Lookups]()

    def send_ids(lookups: Iterable[Lookups]) -> None:
        for lookup in lookups:
            lookup.start_ids()
            ids_sent.append(lookup)

    # Those that are looked up with the first, or ahead, and one more: its counts.
    send_ids(islice(counted, together + lookahead))
    counts_sent = list(islice(counted, 1))
    for number in count(first):
        if not ids_sent:
            return
        if number == first or number % together == 0:
            joined = list(islice(ids_sent, together - number % together))
            for lookups in zip(*(lookup.lookups for lookup in joined), strict=True) if len(joined) > 1 else ():
                look_up_together(lookups)
        current = ids_sent.popleft()
        if lookahead and ids_sent:
            current.look_ahead(ids_sent[0])
        current.start_lookup()
        send_ids(counts_sent)
        counts_sent = list(islice(counted, 1))
        yield current
