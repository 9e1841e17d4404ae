"""TorchRec's EmbeddingCollection, spread over the ranks of a world."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.partition.tables.plan import Plan
from windrow.recsys.embedding_configs import TableConfig, embedding_names
from windrow.recsys.sharded.collection import ShardedTables
from windrow.recsys.sharded.in_flight import ExchangedLookup, InFlightLookup
from windrow.recsys.sharded.samples import Samples, read_samples
from windrow.recsys.sharded.sequence_exchange import SequenceExchange, SequenceTransfer
from windrow.recsys.sharded.unpacking import LookupInput
from windrow.recsys.tables.options import TableOptions

if TYPE_CHECKING:
    from windrow.comm.world import World
    from windrow.recsys.torchrec_adapter import JaggedTensor, KeyedJaggedTensor

__all__ = ["EmbeddingCollection"]


class EmbeddingCollection(ShardedTables):
    """Unpooled embeddings: one vector for each id. Names and results are TorchRec's.

    Args:
        tables: `EmbeddingConfig`, ours or TorchRec's, all of one dim; must agree.
        device: of the tables; None for the CPU.
        world: None for this process alone.
        plan: None for whole tables, one rank after another; must agree.
        optimizer: how tables are stored and learn; must agree. None: row-wise Adagrad, fp32.
        seed: of the first values; must agree. They do not depend on the plan.

    Raises:
        RecipeError: tables or options are not right.
        PlanError: the plan does not fit the tables or the world.
    """

    def __init__(
        self,
        tables: Sequence[TableConfig],
        device: torch.device | None = None,
        *,
        world: "World | None" = None,
        plan: Plan | None = None,
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

    def forward(self, features: "KeyedJaggedTensor") -> "dict[str, JaggedTensor]":
        """Look a minibatch up. Collective: every rank calls it, if with no samples.

        Args:
            features: ids of this rank's samples, [features, samples, any number]; may hold more features.

        Returns:
            For each key of `embedding_names` [ids of the feature, dim] float32, with the lengths of the batch. Where
            gradients are recorded every rank runs one backward pass through them.

        Raises:
            DataError: ids or lengths are not lawful.
            DeadlineError: a rank did not come in time.
        """
        return self.start_counts(features).finish()

    def start_counts(self, features: "KeyedJaggedTensor") -> "InFlightLookup[dict[str, JaggedTensor]]":
        """Start a lookup; see `InFlightLookup` for its stages. Collective.

        Args:
            features: as in `forward`; must stay untouched until the lookup is finished.

        Raises:
            DataError: ids or lengths are not lawful.
        """
        return _ExchangedRows(self, read_samples(features, self.layout, is_weighted=False))

    def embedding_configs(self) -> list[TableConfig]:
        """The tables."""
        return self._tables

    def start_rows(self, wanted: LookupInput) -> SequenceTransfer:
        """Look up what all ranks want of this one; a stage of `start_counts`."""
        return self._exchange.start(self._sharded.rows(wanted.to(self.device)), wanted.counts)

    def look_up_replicated(self, samples: Samples) -> list[Tensor]:
        """For each lookup of the tables that every rank holds [ids, dim]."""
        return self._replicated.rows(self.replicated_input(samples)) if self._replicated.batches else []

    def jagged(self, outputs: Sequence[Tensor], samples: Samples) -> "dict[str, JaggedTensor]":
        """Name the results."""
        from windrow.recsys.torchrec_adapter import JaggedTensor

        keys = [samples.keys[feature] for _, feature, _ in self.layout.outputs]
        return {
            name: JaggedTensor(rows, lengths=torch.from_numpy(samples.lengths[key]).to(self.device))
            for name, rows, key in zip(self.embedding_names, outputs, keys, strict=True)
        }


class _ExchangedRows(ExchangedLookup["dict[str, JaggedTensor]"]):
    def __init__(self, collection: EmbeddingCollection, samples: Samples) -> None:
        super().__init__(collection.distribute(samples))
        self._collection = collection
        self._samples = samples
        self._transfer: SequenceTransfer | None = None
        self._replicated: list[Tensor] = []

    def _start_vectors(self, wanted: LookupInput) -> None:
        self._transfer = self._collection.start_rows(wanted)
        self._transfer.post(self._distribution.messages, self._samples)
        self._collection.count_rows(self._samples, self._distribution.messages)
        self._replicated = self._collection.look_up_replicated(self._samples)

    def _finish_vectors(self) -> "dict[str, JaggedTensor]":
        assert self._transfer is not None
        return self._collection.jagged(self._transfer.finish(self._replicated), self._samples)
