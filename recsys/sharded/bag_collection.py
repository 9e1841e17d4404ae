"""TorchRec's EmbeddingBagCollection, spread over the ranks of a world."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.partition.tables.plan import Plan, Range
from windrow.recsys.embedding_configs import TableConfig, embedding_names, features_of, pooling_of
from windrow.recsys.sharded.collection import ShardedTables
from windrow.recsys.sharded.in_flight import ExchangedLookup, InFlightLookup
from windrow.recsys.sharded.packing import pack
from windrow.recsys.sharded.pooled_exchange import PooledExchange, PooledTransfer
from windrow.recsys.sharded.rows_needed import rows_of_whole_tables
from windrow.recsys.sharded.samples import Samples, read_samples
from windrow.recsys.sharded.unpacking import LookupInput, unpack
from windrow.recsys.tables.options import TableOptions

if TYPE_CHECKING:
    from windrow.comm.world import World
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor, KeyedTensor

__all__ = ["EmbeddingBagCollection"]

NO_COUNTS = np.empty((0, 0), np.int64)


class EmbeddingBagCollection(ShardedTables):
    """Pooled embeddings: one vector for each sample and feature. Names and results are TorchRec's.

    Collective where it says so; otherwise see `ShardedTables`. Gradients reach the tables, not the weights of ids.

    Args:
        tables: `EmbeddingBagConfig`, ours or TorchRec's; must agree.
        is_weighted: rows are multiplied by the weights of their ids; not with mean pooling.
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
        is_weighted: bool = False,  # noqa: FBT001, FBT002  # TorchRec's signature
        device: torch.device | None = None,
        *,
        world: "World | None" = None,
        plan: Plan | None = None,
        optimizer: TableOptions | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            tables,
            pooled=True,
            is_weighted=is_weighted,
            device=device,
            world=world,
            plan=plan,
            options=optimizer,
            seed=seed,
            stage="embedding bags",
        )
        self._tables = list(tables)
        self._is_weighted = is_weighted
        self.embedding_names = [name for names in embedding_names(tables) for name in names]
        """Keys of the result: ``feature``, or ``feature@table`` where several tables share it."""
        self.embedding_dims = [table.embedding_dim for table in tables for _ in features_of(table)]
        """Columns of each key."""
        averaged = [pooling_of(table) == "MEAN" for table in tables]
        if is_weighted and any(averaged):
            table = tables[averaged.index(True)]
            raise RecipeError(f"table {table.name!r}: weights of ids go with pooling SUM, not with MEAN")
        self._averaged = [(feature, columns) for n, feature, columns in self.layout.outputs if averaged[n]]
        self._exchange = PooledExchange(self.world, self.layout, device=self.device, stage="embedding bags")

    def forward(self, features: "KeyedJaggedTensor") -> "KeyedTensor":
        """Look a minibatch up. Collective: every rank calls it, if with no samples.

        Args:
            features: ids of this rank's samples, [features, samples, any number]; may hold more features.

        Returns:
            [samples, sum of dims] float32, keys `embedding_names`; zeros for a sample without ids. Where gradients
            are recorded every rank runs one backward pass through it.

        Raises:
            DataError: ids, lengths or weights are not lawful.
            DeadlineError: a rank did not come in time.
        """
        return self.start_counts(features).finish()

    def start_counts(self, features: "KeyedJaggedTensor") -> "InFlightLookup[KeyedTensor]":
        """Start a lookup; see `InFlightLookup` for its stages. Collective.

        Args:
            features: as in `forward`; must stay untouched until the lookup is finished.

        Raises:
            DataError: ids, lengths or weights are not lawful.
        """
        samples = read_samples(features, self.layout, is_weighted=self._is_weighted)
        if self.layout.is_direct:
            return _DirectBags(self, features, samples)
        return _ExchangedBags(self, samples)

    def embedding_bag_configs(self) -> list[TableConfig]:
        """The tables."""
        return self._tables

    def is_weighted(self) -> bool:
        """Whether ids have weights."""
        return self._is_weighted

    def start_pooled(self, wanted: LookupInput) -> PooledTransfer:
        """Look up what all ranks want of this one, and send it. Collective; a stage of `start_counts`."""
        return self._exchange.start(self._sharded.pooled(wanted.to(self.device)), wanted.num_samples)

    def look_up_replicated(self, samples: Samples) -> Tensor | None:
        """[samples, columns] of the tables that every rank holds; None where there are none."""
        return self._replicated.pooled(self.replicated_input(samples)) if self._replicated.batches else None

    def look_up_alone(self, features: "KeyedJaggedTensor", samples: Samples) -> Tensor:
        """[samples, sum of dims] where this process holds every table whole."""
        if self.world.meter is not None:
            needed = rows_of_whole_tables(self.layout.owners[0], samples)
            self.world.meter.record_found(f"{self._stage}: rows", local=needed, remote=0)
        wanted = [samples.keys[feature] for _, feature, _ in self.layout.outputs]
        if wanted == list(range(len(samples.starts) - 1)):
            values = features.values()
            weights = features.weights() if self._is_weighted else None
            offsets = features.offsets().to(values.dtype)
            held = LookupInput(values, offsets, weights, (samples.num_samples,), NO_COUNTS)
        else:
            held = unpack(pack(samples, self.layout.owners, self.form), self.layout.owners[0], self.form)
        pooled = self._sharded.pooled(held.to(self.device))
        scales = self.scales(samples)
        if not scales:
            return pooled
        factors = torch.ones_like(pooled)
        for (start, stop), scale in scales:
            factors[:, start:stop] = scale
        return pooled * factors

    def keyed(self, values: Tensor) -> "KeyedTensor":
        """Name the columns of a result."""
        from windrow.recsys.torchrec_adapter import KeyedTensor

        return KeyedTensor(self.embedding_names, self.embedding_dims, values)

    def scales(self, samples: Samples) -> list[tuple[Range, Tensor]]:
        """Columns of tables with mean pooling, and what each sample's sum is multiplied by."""
        found = []
        for feature, columns in self._averaged:
            key = samples.keys[feature]
            if not samples.one_each[key]:
                lengths = torch.from_numpy(samples.lengths[key]).clamp(min=1).to(self.device, torch.float32)
                found.append((columns, lengths.reciprocal().unsqueeze(1)))
        return found


class _DirectBags(InFlightLookup["KeyedTensor"]):
    """Of a process alone that holds every table whole: the batch goes as it is into the kernel."""

    def __init__(
        self, collection: EmbeddingBagCollection, features: "KeyedJaggedTensor", samples: Samples
    ) -> None:
        self._collection = collection
        self._features = features
        self._samples = samples
        self._pooled: Tensor | None = None

    def start_ids(self) -> None:
        """Nothing travels."""

    def start_lookup(self) -> None:
        """Look the batch up."""
        if self._pooled is None:
            self._pooled = self._collection.look_up_alone(self._features, self._samples)

    def finish(self) -> "KeyedTensor":
        """Name the columns."""
        self.start_lookup()
        assert self._pooled is not None
        return self._collection.keyed(self._pooled)


class _ExchangedBags(ExchangedLookup["KeyedTensor"]):
    """Where ranks have to talk."""

    def __init__(self, collection: EmbeddingBagCollection, samples: Samples) -> None:
        super().__init__(collection.distribute(samples))
        self._collection = collection
        self._samples = samples
        self._transfer: PooledTransfer | None = None
        self._replicated: Tensor | None = None

    def _start_vectors(self, wanted: LookupInput) -> None:
        self._transfer = self._collection.start_pooled(wanted)
        self._collection.count_rows(self._samples, self._distribution.messages)
        # While the vectors travel:
        self._replicated = self._collection.look_up_replicated(self._samples)

    def _finish_vectors(self) -> "KeyedTensor":
        assert self._transfer is not None
        scales = self._collection.scales(self._samples)
        return self._collection.keyed(self._transfer.finish(self._replicated, scales))
