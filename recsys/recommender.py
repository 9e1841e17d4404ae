"""A whole recommendation model: embedding tables spread over the ranks, and a dense model that every rank holds."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from torch import Tensor, nn

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.meter import Stopwatch
from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.jagged import Deduplicated, Windows
from windrow.recsys.embeddings import Embeddings, PooledRows
from windrow.recsys.models.click_models import ClickModel
from windrow.recsys.models.retrieval import RetrievalModel
from windrow.recsys.sharded.collection import InFlightLookup, ShardedTables
from windrow.training.dropout import DropoutContext, takes_dropout

if TYPE_CHECKING:
    from windrow.recsys.sharded.pooled import EmbeddingBagCollection
    from windrow.recsys.sharded.sequences import EmbeddingCollection
    from windrow.recsys.tables.table import TableBatch

__all__ = [
    "BatchSource",
    "Lookups",
    "PrefetchedModel",
    "Recommender",
    "RecommenderLookup",
    "Started",
    "collections_of",
    "pipelined",
    "prefetched",
]


LookupT = TypeVar("LookupT", bound="Lookups")


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
    """The lookups of one batch on their way; stages as in `windrow.recsys.task`, every one collective.

    Args:
        lookups: in each of the model's collections.
        stopwatch: measures the stages.
    """

    def __init__(self, lookups: "Sequence[InFlightLookup[Any]]", stopwatch: Stopwatch) -> None:
        self.stopwatch = stopwatch
        self._lookups = lookups

    def start_ids(self) -> None:
        """Wait for the counts and send the ids."""
        with self.stopwatch.measure("ids"):
            for lookup in self._lookups:
                lookup.start_ids()

    def start_lookup(self) -> None:
        """Wait for the ids, look them up and send back what was found."""
        with self.stopwatch.measure("lookup"):
            for lookup in self._lookups:
                lookup.start_lookup()


class RecommenderLookup(Lookups):
    """Those of `Recommender.start`."""

    def __init__(
        self,
        bags: "InFlightLookup[list[PooledRows]] | None",
        order: Sequence[str],
        sequences: "InFlightLookup[dict[str, Deduplicated[Tensor]]] | None",
        stopwatch: Stopwatch,
        windows: Mapping[str, Windows[Tensor]],
    ) -> None:
        super().__init__([lookup for lookup in (bags, sequences) if lookup is not None], stopwatch)
        self._bags = bags
        self._order = tuple(order)
        self._sequences = sequences
        self._windows = windows

    def finish(self) -> Embeddings:
        """Wait for what was looked up.

        Returns:
            Pooled vectors, and the sequences by feature, each once for every distinct row. In training every rank
            must run the backward pass of what it makes of them exactly once, also where it has no samples.
        """
        with self.stopwatch.measure("pooled"):
            pooled = [] if self._bags is None else self._bags.finish()
            sequences = {} if self._sequences is None else self._sequences.finish()
            for name, lists in self._windows.items():
                sequences[name] = Deduplicated(lists.expand(sequences[name].jagged.values))
            return Embeddings(pooled, self._order, sequences)


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
        self,
        bags: "EmbeddingBagCollection | None",
        sequences: "EmbeddingCollection | None",
        model: ClickModel | RetrievalModel,
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

    def start(self, batch: Batch, stopwatch: Stopwatch | None = None) -> RecommenderLookup:
        """Send the counts of a batch. Collective.

        Args:
            batch: on the model's device. Where the tables were not made for deduplicated groups, lists that it holds
                once are given to each sample here.
            stopwatch: measures the stages of the lookup.

        Raises:
            DataError: ids, lengths, inverses or windows are not valid.
        """
        stopwatch = stopwatch or Stopwatch()
        with stopwatch.measure("ids"):
            unpooled = [] if self.sequences is None else self.sequences.embedding_names
            pooled = () if self.bags is None else self.bags.layout.features
            for name in batch.windows:
                if name not in unpooled or name in pooled:
                    raise DataError(
                        f"{name!r} is packed into windows, which unpooled features alone can be: of these there are "
                        f"{', '.join(unpooled) or 'none'}, and pooled ones must not be among them"
                    )
            if not self.collections()[0].groups:
                batch = batch.expanded()
            given = (batch.sparse, batch.deduplicated)
            return RecommenderLookup(
                None if self.bags is None else self.bags.start_counts(*given),
                () if self.bags is None else self.bags.embedding_names,
                None if self.sequences is None else self.sequences.start_counts(*given),
                stopwatch,
                batch.windows,
            )

    def finish(self, batch: Batch, lookup: Lookups, context: DropoutContext | None = None) -> Any:
        """Compute the output of a batch whose lookup was started. Collective.

        Args:
            batch: on the model's device.
            lookup: of this batch, after `start_lookup`.
            context: what dropout is keyed by; None in evaluation.

        Returns:
            What the model gives: logits [B] of a click model, `RetrievalVectors` of two towers and of the next item.
        """
        assert isinstance(lookup, RecommenderLookup)
        with lookup.stopwatch.measure("forward"):
            begun = self.model.begin(batch.dense)  # While pooled vectors are on the wire.
        embeddings = lookup.finish()
        with lookup.stopwatch.measure("forward"):
            return self.model.finish(begun, embeddings, context)

    def forward(self, batch: Batch, dropout: DropoutContext | None = None) -> Any:
        """All stages, one after another. Collective."""
        lookup = self.start(batch)
        lookup.start_ids()
        lookup.start_lookup()
        return self.finish(batch, lookup, dropout)

    def local_tables(self) -> "list[TableBatch]":
        """What this rank stores of all tables, in batches."""
        return [table for collection in self.collections() for table in collection.local_tables()]

    def collections(self) -> "tuple[EmbeddingBagCollection | EmbeddingCollection, ...]":
        """All that holds tables."""
        return tuple(part for part in (self.bags, self.sequences) if part is not None)


class PrefetchedModel:
    """Any module that holds collections of tables, run with lookups that were started before.

    Args:
        module: called as ``module(batch)``, or with a second argument ``dropout``, where `forward` has it: a
            `DropoutContext`, None in evaluation. It calls each of its collections once with ``batch.sparse``, and with
            ``batch.deduplicated`` where that was made for groups.

    Raises:
        RecipeError: it holds no tables.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._collections = collections_of(module)
        self._takes_dropout = takes_dropout(module)

    def start(self, batch: Batch, stopwatch: Stopwatch | None = None) -> Lookups:
        """Send the counts of a batch. Collective."""
        stopwatch = stopwatch or Stopwatch()
        with stopwatch.measure("ids"):
            given = (batch.sparse, batch.deduplicated)
            return Lookups([collection.prefetch(*given) for collection in self._collections], stopwatch)

    def finish(self, batch: Batch, lookup: Lookups, context: DropoutContext | None = None) -> Any:
        """Run the module. Collective.

        Raises:
            RecipeError: it did not look the batch up.
        """
        with lookup.stopwatch.measure("forward"):
            output = self.module(batch, context) if self._takes_dropout else self.module(batch)
        if any(collection.has_prefetched(batch.sparse) for collection in self._collections):
            raise RecipeError(
                f"{type(self.module).__name__} did not call all of its collections of tables with batch.sparse: look "
                "each of them up once in forward, with that very object"
            )
        return output

    def eval(self) -> None:
        """Evaluation mode."""
        self.module.eval()


Started: TypeAlias = tuple[Batch, Lookups]
"""A batch, and its lookups under way."""


def prefetched(model: nn.Module) -> Recommender | PrefetchedModel:
    """What starts the lookups of a model ahead of its forward pass."""
    return model if isinstance(model, Recommender) else PrefetchedModel(model)


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


def pipelined(batches: Iterable[Batch], start: Callable[[Batch], LookupT]) -> Iterator[tuple[Batch, LookupT]]:
    """Run through batches with the two that come next already on their way. Collective.

    Args:
        batches: as many on every rank.
        start: ``start(batch)`` begins the lookup of a batch by sending its counts, and gives its `Lookups`.

    Yields:
        Each batch and its lookup, whose `start_lookup` has been called. The caller finishes it, and updates the
        weights, before it asks for the next.
    """
    counted = ((batch, start(batch)) for batch in batches)

    def send_ids(item: tuple[Batch, LookupT] | None) -> tuple[Batch, LookupT] | None:
        if item is not None:
            item[1].start_ids()
        return item

    ids_sent = send_ids(next(counted, None))
    counts_sent = next(counted, None)
    while ids_sent is not None:
        current = ids_sent
        current[1].start_lookup()
        ids_sent = send_ids(counts_sent)
        counts_sent = next(counted, None)
        yield current
