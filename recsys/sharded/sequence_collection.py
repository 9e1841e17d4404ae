"""TorchRec's EmbeddingCollection, spread over the ranks of a world."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.partition.tables.plan import Plan
from windrow.recsys.batches.jagged import Deduplicated, Jagged
from windrow.recsys.sharded.collection import ShardedTables
from windrow.recsys.sharded.input_distribution import ExchangedLookup, InFlightLookup
from windrow.recsys.sharded.packing import LookupInput, Message
from windrow.recsys.sharded.samples import Samples, read_samples
from windrow.recsys.sharded.sequence_exchange import SequenceExchange, SequenceTransfer
from windrow.recsys.tables.options import TableConfig, TableOptions, embedding_names

if TYPE_CHECKING:
    from windrow.comm.world import World
    from windrow.recsys.batches.deduplication.ikjt import InverseKeyedJaggedTensor
    from windrow.recsys.torchrec_adapter import JaggedTensor, KeyedJaggedTensor

__all__ = ["EmbeddingCollection"]


class EmbeddingCollection(ShardedTables):
    """Unpooled embeddings: one vector for each id. Names and results are TorchRec's.

    Args:
        tables: `EmbeddingConfig`, ours or TorchRec's, all of one dim; must agree.
        device: of the tables; None for the CPU.
        world: None for this process alone.
        plan: None for whole tables, one rank after another; must agree.
        groups: features whose lists come deduplicated, as `windrow.recsys.batches.deduplication.ikjt` draws it, group
        by group; may name
            features of other collections, too. Must agree.
        optimizer: how tables are stored and learn; must agree. None: row-wise Adagrad, fp32.
        seed: of the first values; must agree. They do not depend on the plan.

    Raises:
        RecipeError: tables, groups or options are not right.
        PlanError: the plan does not fit the tables or the world.
    """

    def __init__(
        self,
        tables: Sequence[TableConfig],
        device: torch.device | None = None,
        *,
        world: "World | None" = None,
        plan: Plan | None = None,
        groups: Sequence[Sequence[str]] = (),
        optimizer: TableOptions | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            tables,
            pooled=False,
            is_weighted=False,
            device=device,
            world=world,
            plan=plan,
            groups=groups,
            options=optimizer,
            seed=seed,
            stage="embedding rows",
        )
        dims = {table.embedding_dim for table in tables}
        if len(dims) > 1:
            raise RecipeError(
                f"tables of one EmbeddingCollection have one embedding_dim, got {sorted(dims)}: make one for each"
            )
        self._tables = list(tables)
        self.embedding_names = [name for names in embedding_names(tables) for name in names]
        """Keys of the result: ``feature``, or ``feature@table`` where several tables share it."""
        self._exchange = SequenceExchange(self.world, self.layout, device=self.device, stage="embedding rows")

    def forward(
        self, features: "KeyedJaggedTensor", deduplicated: "Sequence[InverseKeyedJaggedTensor]" = ()
    ) -> "dict[str, JaggedTensor]":
        """Look a minibatch up. Collective: every rank calls it, if with no samples.

        Args:
            features: ids of this rank's samples, [features, samples, any number]; may hold more features.
            deduplicated: ids of the groups that the collection was made for, in their order; likewise.

        Returns:
            For each key of `embedding_names` [ids of the feature, dim] float32, with the lengths of the batch. Where
            gradients are recorded every rank runs one backward pass through them.

        Raises:
            DataError: ids, lengths or inverses are not lawful.
            DeadlineError: a rank did not come in time.
        """
        from windrow.recsys.torchrec_adapter import JaggedTensor

        found = {
            name: rows.expand() for name, rows in self.start_counts(features, deduplicated).finish().items()
        }
        return {name: JaggedTensor(rows.values, lengths=rows.lengths) for name, rows in found.items()}

    def start_counts(
        self, features: "KeyedJaggedTensor", deduplicated: "Sequence[InverseKeyedJaggedTensor]" = ()
    ) -> InFlightLookup[dict[str, Deduplicated[Tensor]]]:
        """Start a lookup; see `InFlightLookup` for its stages. Collective.

        Args:
            features: as in `forward`; must stay untouched until the lookup is finished.
            deduplicated: likewise.

        Returns:
            Ends with the rows of each feature, a list for each sample, or in a group for each distinct one.

        Raises:
            DataError: ids, lengths or inverses are not lawful.
        """
        return _ExchangedRows(self, read_samples(features, deduplicated, self.layout, is_weighted=False))

    def embedding_configs(self) -> list[TableConfig]:
        """The tables."""
        return self._tables

    def start_rows(
        self, wanted: Sequence[LookupInput], messages: Sequence[Message], samples: Sequence[Samples]
    ) -> SequenceTransfer:
        """Look up what all ranks want of this one, and send it to them; a stage of `start_counts`."""
        (everything,) = wanted
        rows = self._sharded.rows(everything.to(self.device))
        return self._exchange.start(rows, everything.counts, messages, samples)

    def look_up_replicated(self, samples: Sequence[Samples]) -> list[Tensor]:
        """For each lookup of the tables that every rank holds [ids, dim]."""
        if not self._replicated.batches:
            return []
        (everything,) = self.replicated_input(samples)
        return self._replicated.rows(everything)

    def named(self, outputs: Sequence[Tensor], samples: Sequence[Samples]) -> dict[str, Deduplicated[Tensor]]:
        """Name the results."""
        found = {}
        for name, (_, feature, _), items in zip(
            self.embedding_names, self.layout.outputs, outputs, strict=True
        ):
            group = samples[self.layout.groups[feature]]
            lengths = torch.from_numpy(group.lengths[group.keys[feature]]).to(self.device, torch.int64)
            found[name] = Deduplicated(Jagged.of_lengths(items, lengths), group.inverse_on(self.device))
        return found


class _ExchangedRows(ExchangedLookup[dict[str, Deduplicated[Tensor]]]):
    def __init__(self, collection: EmbeddingCollection, samples: Sequence[Samples]) -> None:
        super().__init__(collection.distribute(samples))
        self._collection = collection
        self._samples = samples
        self._transfer: SequenceTransfer | None = None
        self._replicated: list[Tensor] = []

    def _start_vectors(self, wanted: Sequence[LookupInput]) -> None:
        messages = self._distribution.messages
        self._transfer = self._collection.start_rows(wanted, messages, self._samples)
        self._collection.count_rows(self._samples, messages)
        self._replicated = self._collection.look_up_replicated(self._samples)

    def _finish_vectors(self) -> dict[str, Deduplicated[Tensor]]:
        assert self._transfer is not None
        return self._collection.named(self._transfer.finish(self._replicated), self._samples)
