"""TorchRec's EmbeddingCollection, spread over the ranks of a world, and the route of its rows.

What an owner found for one rank is one message, lookup after lookup, and in each the rows in the order of the ids that
this rank asked for. Where a table is cut by rows, home knows which of its ids it asked this owner for, and puts the
rows in their places.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.comm.route import Block, Landing, Route, Transfer
from windrow.comm.wire import WireOptions
from windrow.partition.tables.plan import Plan
from windrow.recsys.batches.jagged import Deduplicated, Jagged
from windrow.recsys.sharded.collection import ShardedTables
from windrow.recsys.sharded.in_flight import InFlightLookup
from windrow.recsys.sharded.layout import Lookup, OwnerLayout
from windrow.recsys.sharded.packing import LookupInput, Message, Samples, distinct_ids
from windrow.recsys.sharded.whole_tables import WholeTables
from windrow.recsys.tables.options import TableConfig, TableOptions, embedding_names
from windrow.training.embedding import RowLookup

if TYPE_CHECKING:
    from windrow.comm.world import World
    from windrow.recsys.batches.deduplication.ikjt import InverseKeyedJaggedTensor
    from windrow.recsys.torchrec_adapter import JaggedTensor, KeyedJaggedTensor

__all__ = ["EmbeddingCollection"]


class EmbeddingCollection(ShardedTables[dict[str, Deduplicated[Tensor]]]):
    """Unpooled embeddings: one vector for each id. Names and results are TorchRec's.

    Args:
        tables: `EmbeddingConfig`, ours or TorchRec's, all of one dim; must agree.
        device: of the tables; None for PyTorch's default device. On the meta device there are names and shapes, but no
            rows to look up.
        need_indices: whether results have the ids as their weights.
        use_gather_select, use_gather_select_per_sharding: say which of two kernels TorchRec's sharded classes take, for
            the same results; there is no such choice here.
        world: all its ranks make the collection; None for this process alone.
        plan: or the name of a planner, "greedy" say; None for whole tables, one rank after another. Must agree.
        groups: features whose lists come deduplicated, as `windrow.recsys.batches.deduplication.ikjt` draws it, group
            by group; may name features of other collections, too. Must agree.
        index_dedup: whether an id that a feature has several times in this rank's minibatch travels and is looked up
            once, and its gradients are added up before they travel: TorchRec's ``use_index_dedup``. What comes back is
            copied to the id's places, so it pays where the network is slower than memory and ids repeat. A world of one
            rank does without.
        optimizer: how tables are stored and learn; must agree. None: row-wise Adagrad, fp32.
        wire: in which form vectors and their gradients travel; must agree. None: float32.
        seed: of the first values; must agree. They do not depend on the plan.
        row_ids: int64 [rows] on the CPU, of a collection of one table: the ids of its rows, where they stand in another
            order, such as those of vertices in the order of their parts. Lookups and plans name rows by where they
            stand; first values, compressed forms, files, state dicts and checkpoints by ids, so that a run goes on with
            rows in any order. Must agree. None: ids are the rows' numbers.

    Raises:
        RecipeError: tables, groups or options are not right.
        PlanError: the plan does not fit the tables or the world.
    """

    tables_attribute = "embeddings"

    def __init__(
        self,
        tables: Sequence[TableConfig],
        device: torch.device | None = None,
        need_indices: bool = False,  # noqa: FBT001, FBT002  # TorchRec's signature
        use_gather_select: bool = False,  # noqa: FBT001, FBT002
        use_gather_select_per_sharding: Mapping[str, bool] | None = None,
        *,
        world: "World | None" = None,
        plan: Plan | str | None = None,
        groups: Sequence[Sequence[str]] = (),
        index_dedup: bool = False,
        optimizer: TableOptions | None = None,
        wire: WireOptions | None = None,
        seed: int = 0,
        row_ids: Tensor | None = None,
    ) -> None:
        del use_gather_select, use_gather_select_per_sharding
        super().__init__(
            tables,
            pooled=False,
            is_weighted=False,
            device=device,
            world=world,
            plan=plan,
            groups=groups,
            options=optimizer,
            wire=wire,
            seed=seed,
            stage="embedding rows",
            row_ids=_checked_ids(row_ids, tables),
        )
        dims = {table.embedding_dim for table in tables}
        if len(dims) > 1:
            raise RecipeError(
                f"tables of one EmbeddingCollection have one embedding_dim, got {sorted(dims)}: make one for each"
            )
        self._need_indices = need_indices
        self._index_dedup = index_dedup and self.group.size > 1

    def forward(
        self, features: "KeyedJaggedTensor", deduplicated: "Sequence[InverseKeyedJaggedTensor]" = ()
    ) -> "dict[str, JaggedTensor]":
        """Look a minibatch up. Collective: every rank calls it, if with no samples.

        Args:
            features: ids of this rank's samples, [features, samples, any number]; may hold more features.
            deduplicated: ids of the groups that the collection was made for, in their order; likewise.

        Returns:
            For each key of `embedding_names` [ids of the feature, dim] float32, with the lengths of the batch, and with
            `need_indices` the ids as weights. Where gradients are recorded every rank runs one backward pass through
            them.

        Raises:
            DataError: ids, lengths or inverses are not valid.
            DeadlineError: a rank did not come in time.
            RecipeError: see `check_lookup`.
        """
        from windrow.recsys.torchrec_adapter import JaggedTensor

        found = {name: rows.expand() for name, rows in self.lookup_of(features, deduplicated).finish().items()}
        ids = self._ids(features, deduplicated) if self._need_indices else {}
        return {
            name: JaggedTensor(rows.values, lengths=rows.lengths, weights=ids.get(name)) for name, rows in found.items()
        }

    def _ids(
        self, features: "KeyedJaggedTensor", deduplicated: "Sequence[InverseKeyedJaggedTensor]"
    ) -> dict[str, Tensor]:
        """The ids of each result, sample after sample."""
        layout = self.layout
        parts = [features, *(group.expand() for group in deduplicated)]
        return {
            name: parts[layout.groups[feature]][layout.features[feature]].values()
            for name, (_, feature, _) in zip(self.embedding_names, layout.outputs, strict=True)
        }

    def embedding_configs(self) -> list[TableConfig]:
        """The tables."""
        return self.configs

    def embedding_dim(self) -> int:
        """Columns of every table."""
        return self.configs[0].embedding_dim

    def embedding_names_by_table(self) -> list[list[str]]:
        """Keys of the result, table by table."""
        return embedding_names(self.configs)

    def need_indices(self) -> bool:
        """Whether results have the ids as their weights."""
        return self._need_indices

    @property
    def embeddings(self) -> WholeTables:
        """Tables that this rank stores whole: ``embeddings["item"].weight``."""
        return self.whole_tables()

    def lookup_of_samples(
        self, features: "KeyedJaggedTensor", samples: Sequence[Samples]
    ) -> InFlightLookup[dict[str, Deduplicated[Tensor]]]:
        """The lookup of a batch that was checked. Collective."""
        if self._index_dedup:
            samples = [distinct_ids(group) for group in samples]
        return super().lookup_of_samples(features, samples)

    def start_rows(self, ids: Tensor) -> RowLookup:
        """See `windrow.training.embedding.EmbeddingModule.start_rows`."""
        from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

        if len(self.embedding_names) != 1:
            raise RecipeError(
                f"rows are looked up by the ids of one feature, but this collection has {len(self.embedding_names)}, "
                f"{', '.join(self.embedding_names)}: make one for each"
            )
        lengths = torch.tensor([len(ids)], device=ids.device)
        return _Rows(self, KeyedJaggedTensor(list(self.layout_of_batches.features), ids, lengths=lengths))

    def blocks_of(self, owner: OwnerLayout) -> list[tuple[Lookup, ...]]:
        """A block is a lookup."""
        return [(lookup,) for lookup in owner.lookups]

    def route(
        self,
        wanted: Sequence[LookupInput],
        received: Sequence[Message],
        asked: Sequence[Message],
        samples: Sequence[Samples],
        first: int,
    ) -> Route:
        """From the rows that this owner found for each lookup, and locally the replicated tables', to each output."""
        del received
        layout, size = self.layout, self.group.size
        starts = [
            list(accumulate(of_lookup, initial=0)) for of_batch in wanted for of_lookup in of_batch.counts.T.tolist()
        ]
        outgoing = [
            [Block(lookup, slice(*bounds[peer : peer + 2])) for lookup, bounds in enumerate(starts)]
            for peer in range(first, first + size)
        ]
        arriving = [
            [(int(message.counts[lookup.request]), lookup.dim) for lookup in owner.lookups]
            for owner, message in zip(layout.owners, asked, strict=False)
        ]
        landings = [_landings(owner, samples) for owner in (*layout.owners, layout.replicated)]
        # Ids of replicated tables, whose order is that of the samples, land as they stand.
        outgoing.append([Block(n, slice(0, landing.target.num_rows)) for n, landing in enumerate(landings[-1])])
        return Route(self.wire, outgoing, landings, arriving)

    def receive(
        self, transfer: Transfer, replicated: Sequence[Tensor], samples: Sequence[Samples]
    ) -> dict[str, Deduplicated[Tensor]]:
        """Wait for the rows of this rank's ids, and name them; the end of `start_counts`."""
        layout, found = self.layout, {}
        groups = [samples[layout.groups[feature]] for _, feature, _ in layout.outputs]
        rows = [group.keys[feature] for group, (_, feature, _) in zip(groups, layout.outputs, strict=True)]
        outputs = [
            torch.empty(int(group.starts[row + 1] - group.starts[row]), stop - start, device=self.device)
            for group, row, (_, _, (start, stop)) in zip(groups, rows, layout.outputs, strict=True)
        ]
        items = transfer.finish(outputs, replicated)
        for name, group, row, vectors in zip(self.embedding_names, groups, rows, items, strict=True):
            lengths, of_ids = group.lengths[row], vectors
            if group.repeats is not None:
                lengths, places = group.repeats.lengths[row], group.repeats.places[row].to(self.device)
                each = Jagged(vectors, torch.arange(len(vectors) + 1, device=self.device))
                of_ids = each.select(places).values
            lists = Jagged.of_lengths(of_ids, torch.from_numpy(lengths).to(self.device, torch.int64))
            found[name] = Deduplicated(lists, group.inverse_on(self.device))
        return found


class _Rows(RowLookup):
    """A prefetched lookup of one list of one feature."""

    def __init__(self, tables: EmbeddingCollection, ids: "KeyedJaggedTensor") -> None:
        self._tables, self._ids = tables, ids
        self._lookup = tables.prefetch(ids)

    def start_ids(self) -> None:
        self._lookup.start_ids()

    def finish(self) -> Tensor:
        (rows,) = self._tables.lookup_of(self._ids, ()).finish().values()
        return rows.expand().values

    def drop(self) -> None:
        self._tables.lookup_of(self._ids, ()).settle()


def _checked_ids(row_ids: Tensor | None, tables: Sequence[TableConfig]) -> Tensor | None:
    if row_ids is None:
        return None
    rows = [table.num_embeddings for table in tables]
    is_right = rows == [len(row_ids)] and row_ids.dtype == torch.int64
    if not is_right or not row_ids.sort().values.equal(torch.arange(len(row_ids))):
        raise RecipeError(
            f"row_ids are {len(row_ids):,} numbers of {row_ids.dtype}, {len(row_ids.unique()):,} different ones, for "
            f"tables of so many rows: {', '.join(map(str, rows))}. They name each row of one table once, in int64"
        )
    return row_ids


def _landings(owner: OwnerLayout, samples: Sequence[Samples]) -> list[Landing]:
    rows = {
        number: samples[owner.request_groups[number]].requested(owner.requests[number])
        for number in {lookup.request for lookup in owner.lookups}
    }
    return [
        Landing(block, Block(lookup.output, rows[lookup.request], lookup.part))
        for block, lookup in enumerate(owner.lookups)
    ]
