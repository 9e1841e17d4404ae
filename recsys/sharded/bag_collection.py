"""TorchRec's EmbeddingBagCollection, spread over the ranks of a world."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.partition.tables.plan import Plan
from windrow.recsys.embeddings import Embeddings, PooledRows
from windrow.recsys.sharded.collection import ShardedTables, rows_of_whole_tables
from windrow.recsys.sharded.input_distribution import ExchangedLookup, InFlightLookup
from windrow.recsys.sharded.packing import LookupInput, pack, unpack
from windrow.recsys.sharded.pooled_exchange import PooledExchange, PooledTransfer, Scale
from windrow.recsys.sharded.samples import Samples, read_samples
from windrow.recsys.tables.options import TableConfig, TableOptions, embedding_names, features_of, pooling_of

if TYPE_CHECKING:
    from windrow.comm.world import World
    from windrow.recsys.batches.deduplication.ikjt import InverseKeyedJaggedTensor
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
        is_weighted: bool = False,  # noqa: FBT001, FBT002  # TorchRec's signature
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
            pooled=True,
            is_weighted=is_weighted,
            device=device,
            world=world,
            plan=plan,
            groups=groups,
            options=optimizer,
            seed=seed,
            stage="embedding bags",
        )
        self._tables = list(tables)
        self._is_weighted = is_weighted
        self._is_direct = self.layout.is_direct
        self.embedding_names = [name for names in embedding_names(tables) for name in names]
        """Keys of the result: ``feature``, or ``feature@table`` where several tables share it."""
        self.embedding_dims = [table.embedding_dim for table in tables for _ in features_of(table)]
        """Columns of each key."""
        averaged = [pooling_of(table) == "MEAN" for table in tables]
        if is_weighted and any(averaged):
            table = tables[averaged.index(True)]
            raise RecipeError(f"table {table.name!r}: weights of ids go with pooling SUM, not with MEAN")
        self._averaged = [
            (feature, columns)
            for (n, feature, _), columns in zip(
                self.layout.outputs, self.layout.columns_in_group(), strict=True
            )
            if averaged[n]
        ]
        self._columns: list[tuple[int, tuple[str, ...], tuple[int, ...]]] = []
        """Each group that has any, and the names and widths of its matrix's columns."""
        for group in range(self.layout.num_groups):
            if outputs := self.layout.outputs_of_group(group):
                names = tuple(self.embedding_names[number] for number in outputs)
                dims = tuple(self.embedding_dims[number] for number in outputs)
                self._columns.append((group, names, dims))
        self._exchange = PooledExchange(self.world, self.layout, device=self.device, stage="embedding bags")

    def forward(
        self, features: "KeyedJaggedTensor", deduplicated: "Sequence[InverseKeyedJaggedTensor]" = ()
    ) -> "KeyedTensor":
        """Look a minibatch up. Collective: every rank calls it, if with no samples.

        Args:
            features: ids of this rank's samples, [features, samples, any number]; may hold more features.
            deduplicated: ids of the groups that the collection was made for, in their order; likewise.

        Returns:
            [samples, sum of dims] float32, keys `embedding_names`; zeros for a sample without ids. Where gradients
            are recorded every rank runs one backward pass through it.

        Raises:
            DataError: ids, lengths, weights or inverses are not lawful.
            DeadlineError: a rank did not come in time.
        """
        from windrow.recsys.torchrec_adapter import KeyedTensor

        rows = self.start_counts(features, deduplicated).finish()
        pooled = Embeddings(rows, tuple(self.embedding_names)).pooled()
        return KeyedTensor(self.embedding_names, self.embedding_dims, pooled)

    def start_counts(
        self, features: "KeyedJaggedTensor", deduplicated: "Sequence[InverseKeyedJaggedTensor]" = ()
    ) -> InFlightLookup[list[PooledRows]]:
        """Start a lookup; see `InFlightLookup` for its stages. Collective.

        Args:
            features: as in `forward`; must stay untouched until the lookup is finished.
            deduplicated: likewise.

        Returns:
            Ends with the rows of each group of features that the collection has, a row for each sample of features
            that are in none, else a row for each distinct one.

        Raises:
            DataError: ids, lengths, weights or inverses are not lawful.
        """
        samples = read_samples(features, deduplicated, self.layout, is_weighted=self._is_weighted)
        if self._is_direct:
            return _DirectBags(self, features, samples)
        return _ExchangedBags(self, samples)

    def embedding_bag_configs(self) -> list[TableConfig]:
        """The tables."""
        return self._tables

    def is_weighted(self) -> bool:
        """Whether ids have weights."""
        return self._is_weighted

    def start_pooled(self, wanted: Sequence[LookupInput], num_rows: npt.NDArray[np.int64]) -> PooledTransfer:
        """Look up what all ranks want of this one, and send it. Collective; a stage of `start_counts`."""
        found = self._sharded.pooled([of_batch.to(self.device) for of_batch in wanted])
        return self._exchange.start(found, num_rows)

    def look_up_replicated(self, samples: Sequence[Samples]) -> list[Tensor]:
        """[rows, columns] of each batch of the tables that every rank holds."""
        return self._replicated.pooled(self.replicated_input(samples)) if self._replicated.batches else []

    def look_up_alone(self, features: "KeyedJaggedTensor", samples: Sequence[Samples]) -> Tensor:
        """[samples, sum of dims] where this process holds every table whole."""
        if self.world.meter is not None:
            needed = rows_of_whole_tables(self.layout.owners[0], samples)
            self.world.meter.record_found(f"{self._stage}: rows", local=needed, remote=0)
        plain = samples[0]  # Other groups have features of other collections only.
        wanted = [plain.keys[feature] for _, feature, _ in self.layout.outputs]
        if wanted == list(range(len(plain.starts) - 1)):
            values = features.values()
            weights = torch.from_numpy(plain.weights) if self._is_weighted else None
            offsets = features.offsets().to(values.dtype)
            held = [LookupInput(values, offsets, weights, (plain.num_rows,), NO_COUNTS)]
        else:
            held = unpack(
                pack(samples, self.layout.owners, self.layout.index, self.form),
                self.layout.owners[0],
                self.form,
            )
        (pooled,) = self._sharded.pooled([of_batch.to(self.device) for of_batch in held])
        scales = self.scales(samples)
        if not scales:
            return pooled
        factors = torch.ones_like(pooled)
        for _, (start, stop), scale in scales:
            factors[:, start:stop] = scale
        return pooled * factors

    def named(self, matrices: Sequence[Tensor], samples: Sequence[Samples]) -> list[PooledRows]:
        """Name the columns of each group's matrix, where it has any."""
        return [
            PooledRows(names, dims, matrices[group], samples[group].inverse_on(self.device))
            for group, names, dims in self._columns
        ]

    def scales(self, samples: Sequence[Samples]) -> list[Scale]:
        """Columns of tables with mean pooling, and what each row's sum is multiplied by."""
        found = []
        for feature, columns in self._averaged:
            number = self.layout.groups[feature]
            group = samples[number]
            key = group.keys[feature]
            if not group.one_each[key]:
                lengths = torch.from_numpy(group.lengths[key]).clamp(min=1).to(self.device, torch.float32)
                found.append((number, columns, lengths.reciprocal().unsqueeze(1)))
        return found


class _DirectBags(InFlightLookup[list[PooledRows]]):
    """Of a process alone that holds every table whole: the batch goes as it is into the kernel."""

    def __init__(
        self, collection: EmbeddingBagCollection, features: "KeyedJaggedTensor", samples: Sequence[Samples]
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

    def finish(self) -> list[PooledRows]:
        """Name the columns."""
        self.start_lookup()
        assert self._pooled is not None
        return self._collection.named([self._pooled], self._samples[:1])


class _ExchangedBags(ExchangedLookup[list[PooledRows]]):
    """Where ranks have to talk."""

    def __init__(self, collection: EmbeddingBagCollection, samples: Sequence[Samples]) -> None:
        super().__init__(collection.distribute(samples))
        self._collection = collection
        self._samples = samples
        self._transfer: PooledTransfer | None = None
        self._replicated: list[Tensor] = []

    def _start_vectors(self, wanted: Sequence[LookupInput]) -> None:
        self._transfer = self._collection.start_pooled(wanted, self._distribution.num_rows)
        self._collection.count_rows(self._samples, self._distribution.messages)
        # While the vectors travel:
        self._replicated = self._collection.look_up_replicated(self._samples)

    def _finish_vectors(self) -> list[PooledRows]:
        assert self._transfer is not None
        scales = self._collection.scales(self._samples)
        return self._collection.named(self._transfer.finish(self._replicated, scales), self._samples)
