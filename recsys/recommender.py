"""A whole recommendation model: embedding tables spread over the ranks, and a dense model that every rank holds."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.meter import Stopwatch
from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.jagged import Deduplicated, Windows
from windrow.recsys.embeddings import Embeddings, PooledRows
from windrow.recsys.models.click_models import ClickModel
from windrow.recsys.models.retrieval import RetrievalModel
from windrow.training.dropout import DropoutContext

if TYPE_CHECKING:
    from windrow.recsys.sharded.collection import InFlightLookup
    from windrow.recsys.sharded.pooled import EmbeddingBagCollection
    from windrow.recsys.sharded.sequences import EmbeddingCollection
    from windrow.recsys.tables.table import TableBatch

__all__ = ["Recommender", "RecommenderLookup"]


class RecommenderLookup:
    """The lookups of one batch on their way, made by `Recommender.start`.

    Stages as in `windrow.recsys.trainer`; every one is collective.
    """

    def __init__(
        self,
        bags: "InFlightLookup[list[PooledRows]] | None",
        order: Sequence[str],
        sequences: "InFlightLookup[dict[str, Deduplicated[Tensor]]] | None",
        stopwatch: Stopwatch,
        windows: Mapping[str, Windows[Tensor]],
    ) -> None:
        self._bags = bags
        self._order = tuple(order)
        self._sequences = sequences
        self._lookups = [lookup for lookup in (bags, sequences) if lookup is not None]
        self._stopwatch = stopwatch
        self._windows = windows

    def start_ids(self) -> None:
        """Wait for the counts and send the ids."""
        with self._stopwatch.measure("ids"):
            for lookup in self._lookups:
                lookup.start_ids()

    def start_lookup(self) -> None:
        """Wait for the ids, look them up and send back what was found."""
        with self._stopwatch.measure("lookup"):
            for lookup in self._lookups:
                lookup.start_lookup()

    def finish(self) -> Embeddings:
        """Wait for what was looked up.

        Returns:
            Pooled vectors, and the sequences by feature, each once for every distinct row. In training every rank
            must run the backward pass of what it makes of them exactly once, also where it has no samples.
        """
        with self._stopwatch.measure("pooled"):
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
            DataError: ids, lengths, inverses or windows are not lawful.
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

    def finish(self, batch: Batch, lookup: RecommenderLookup, context: DropoutContext | None = None) -> Any:
        """Compute the output of a batch whose lookup was started. Collective.

        Args:
            batch: on the model's device.
            lookup: of this batch, after `start_lookup`.
            context: what dropout is keyed by; None in evaluation.

        Returns:
            What the model gives: logits [B] of a click model, `RetrievalVectors` of two towers and of the next item.
        """
        begun = self.model.begin(batch.dense)  # While pooled vectors are on the wire.
        return self.model.finish(begun, lookup.finish(), context)

    def forward(self, batch: Batch, context: DropoutContext | None = None) -> Any:
        """All stages, one after another. Collective."""
        lookup = self.start(batch)
        lookup.start_ids()
        lookup.start_lookup()
        return self.finish(batch, lookup, context)

    def reduced_parameters(self) -> Iterator[nn.Parameter]:
        """What every rank holds a copy of, so that its gradients must be summed: replicated tables, dense model.

        Their gradients come in the reverse order, in which `GradientReducer` sends them.
        """
        for collection in self.collections():
            yield from collection.replicated_parameters()
        yield from self.model.parameters()

    def step_tables(self) -> None:
        """Update the tables that the backward pass has not updated yet; after their gradients were summed."""
        for collection in self.collections():
            collection.step()

    def set_table_learning_rate(self, learning_rate: float) -> None:
        """Change the step size of all tables, see `ShardedTables.set_learning_rate`."""
        for collection in self.collections():
            collection.set_learning_rate(learning_rate)

    def local_tables(self) -> "list[TableBatch]":
        """What this rank stores of all tables, in batches."""
        return [table for collection in self.collections() for table in collection.local_tables()]

    def collections(self) -> "tuple[EmbeddingBagCollection | EmbeddingCollection, ...]":
        """All that holds tables."""
        return tuple(part for part in (self.bags, self.sequences) if part is not None)
