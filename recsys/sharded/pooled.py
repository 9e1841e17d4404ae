"""TorchRec's EmbeddingBagCollection, spread over the ranks of a world, and the route of its pooled vectors.

An owner looks the bags of all ranks up at once; rows of one rank lie together, so that where nothing is deduplicated,
nor cut by rows, nothing is copied to send them::

    owner 0's output [rows of all ranks, its columns]           home (rank 1)
        rank 0's rows                                           a matrix for each group [its rows, all columns]
        rank 1's rows      ------------------------------------>  columns of owner 0 copied, or added where a table
                                                                  is cut by rows
                           <------------------------------------  the same columns of the gradient

A row is a sample, or in a deduplicated group a distinct one. Of tables that are cut by rows an owner sends a vector for
each bag that has ids there, all of one width in one block, and home adds them to what comes from other ranks. Where an
owner has columns of several groups, each group has rows of its own number, and a message is one band after the other
(`windrow.recsys.sharded.layout.Band`)::

    owner's output   columns of group 0   columns of group 1            message to rank 1
      rank 0         3 rows               2 rows
      rank 1         4 rows        ->     1 row, 3 of padding     ->    4 rows of the one, then 1 of the other
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.comm.route import Block, Landing, Route, Transfer
from windrow.comm.rows import Runs, join_runs, numbers_in_ranges
from windrow.comm.wire import Shape, WireOptions
from windrow.partition.tables.plan import Plan, Range
from windrow.recsys.embeddings import Embeddings, PooledRows
from windrow.recsys.sharded.collection import ShardedTables
from windrow.recsys.sharded.in_flight import InFlightLookup
from windrow.recsys.sharded.layout import Band, Layout, Lookup, OwnerLayout
from windrow.recsys.sharded.packing import LookupInput, Message, Samples
from windrow.recsys.sharded.whole_tables import WholeTables
from windrow.recsys.tables.options import TableConfig, TableOptions, features_of, pooling_of

if TYPE_CHECKING:
    from windrow.comm.world import World
    from windrow.recsys.batches.deduplication.ikjt import InverseKeyedJaggedTensor
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor, KeyedTensor

__all__ = ["EmbeddingBagCollection", "band_runs", "rows_of_whole_tables"]

NO_COUNTS = np.empty((0, 0), np.int64)

Scale: TypeAlias = tuple[int, Range, Tensor]
"""Group, columns of its matrix to multiply, and [rows, 1] what by."""


class EmbeddingBagCollection(ShardedTables[list[PooledRows]]):
    """Pooled embeddings: one vector for each sample and feature. Names and results are TorchRec's.

    Collective where it says so; otherwise see `ShardedTables`. Gradients reach the tables, not the weights of ids.

    Args:
        tables: `EmbeddingBagConfig`, ours or TorchRec's; must agree.
        is_weighted: rows are multiplied by the weights of their ids; not with mean pooling.
        device: of the tables; None for PyTorch's default device. On the meta device there are names and shapes, but no
            rows to look up.
        world: all its ranks make the collection; None for this process alone.
        plan: or the name of a planner, "greedy" say; None for whole tables, one rank after another. Must agree.
        groups: features whose lists come deduplicated, as `windrow.recsys.batches.deduplication.ikjt` draws it, group
            by group; may name features of other collections, too. Must agree.
        optimizer: how tables are stored and learn; must agree. None: row-wise Adagrad, fp32.
        wire: in which form vectors and their gradients travel; must agree. None: float32.
        seed: of the first values; must agree. They do not depend on the plan.

    Raises:
        RecipeError: tables, groups or options are not right.
        PlanError: the plan does not fit the tables or the world.
    """

    tables_attribute = "embedding_bags"

    def __init__(
        self,
        tables: Sequence[TableConfig],
        is_weighted: bool = False,  # noqa: FBT001, FBT002  # TorchRec's signature
        device: torch.device | None = None,
        *,
        world: "World | None" = None,
        plan: Plan | str | None = None,
        groups: Sequence[Sequence[str]] = (),
        optimizer: TableOptions | None = None,
        wire: WireOptions | None = None,
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
            wire=wire,
            seed=seed,
            stage="embedding bags",
        )
        self.embedding_dims = [table.embedding_dim for table in tables for _ in features_of(table)]
        """Columns of each key."""
        averaged = [table.name for table in tables if pooling_of(table) == "MEAN"]
        if is_weighted and averaged:
            raise RecipeError(f"table {averaged[0]!r}: weights of ids go with pooling SUM, not with MEAN")
        outputs, held = self.layout.outputs, self.held.tables
        self._averaged = [(feature, columns) for table, feature, columns in outputs if held[table].name in averaged]
        self._columns: list[tuple[int, tuple[str, ...], tuple[int, ...]]] = []
        """Each group that has any, and the names and widths of its matrix's columns."""
        for group in range(self.layout.num_groups):
            own = [n for n, (_, feature, _) in enumerate(outputs) if self.layout.groups[feature] == group]
            widths: dict[str, int] = {}
            for n in own:
                start, stop = outputs[n][2]
                widths[self.held.names[n]] = widths.get(self.held.names[n], 0) + stop - start
            if own:
                self._columns.append((group, tuple(widths), tuple(widths.values())))
        self._widths = dict.fromkeys(range(self.layout.num_groups), 0) | {g: sum(dims) for g, _, dims in self._columns}
        """Columns of each group's matrix."""

    def _place(self, plan: Plan, *, seed: int | None) -> None:
        super()._place(plan, seed=seed)
        self.is_direct = self.layout.is_direct and not self.held.arrays
        """Whether a batch may go as it is into the kernel."""
        self._runs = band_runs(self.layout)
        self._summed = _summed_columns(self.layout)

    def forward(
        self, features: "KeyedJaggedTensor", deduplicated: "Sequence[InverseKeyedJaggedTensor]" = ()
    ) -> "KeyedTensor":
        """Look a minibatch up. Collective: every rank calls it, if with no samples.

        Args:
            features: ids of this rank's samples, [features, samples, any number]; may hold more features.
            deduplicated: ids of the groups that the collection was made for, in their order; likewise.

        Returns:
            [samples, sum of dims] float32, keys `embedding_names`; zeros for a sample without ids. Where gradients
            are recorded every rank runs one backward pass through it. On the meta device only its shape is right.

        Raises:
            DataError: ids, lengths, weights or inverses are not valid.
            DeadlineError: a rank did not come in time.
            RecipeError: torch.fx traces it.
        """
        from windrow.recsys.torchrec_adapter import KeyedTensor

        if self.is_meta:
            pooled = torch.empty(features.stride(), sum(self.embedding_dims), device=self.device)
        else:
            rows = self.lookup_of(features, deduplicated).finish()
            pooled = Embeddings(rows, tuple(self.embedding_names)).pooled()
        return KeyedTensor(self.embedding_names, self.embedding_dims, pooled)

    def lookup_of_samples(
        self, features: "KeyedJaggedTensor", samples: Sequence[Samples]
    ) -> InFlightLookup[list[PooledRows]]:
        """The lookup of a batch that was checked. Collective."""
        looked_up = [samples[0].keys.get(feature) for _, feature, _ in self.layout.outputs]
        in_order = self.is_direct and looked_up == list(range(len(samples[0].lengths)))
        return _DirectBags(self, features, samples) if in_order else InFlightLookup(self, samples)

    def embedding_bag_configs(self) -> list[TableConfig]:
        """The tables."""
        return self.configs

    @property
    def embedding_bags(self) -> WholeTables:
        """Tables that this rank stores whole: ``embedding_bags["item"].weight``."""
        return self.whole_tables()

    def is_weighted(self) -> bool:
        """Whether ids have weights."""
        return self.has_weights

    def blocks_of(self, owner: OwnerLayout) -> list[tuple[Lookup, ...]]:
        """A block is a band; what is added goes vector by vector."""
        return [owner.lookups[slice(*band.lookups)][: 1 if band.added else None] for band in owner.bands]

    def route(
        self,
        wanted: Sequence[LookupInput],
        received: Sequence[Message],
        asked: Sequence[Message],
        samples: Sequence[Samples],
        first: int,
    ) -> Route:
        """From the outputs of this owner's batches, and locally the replicated tables', to a matrix for each group.

        Rows that pad a batch go nowhere: their bags are empty.
        """
        del samples
        layout, rank = self.layout, self.group.rank
        owner, owners = layout.owners[rank], (*layout.owners, layout.replicated)
        starts = [list(accumulate(of_batch.num_bags, initial=0)) for of_batch in wanted]
        outgoing = [
            _bands(owner, [of_batch[first + peer] for of_batch in starts], message)
            for peer, message in enumerate(received)
        ]
        outgoing.append(_bands(layout.replicated, [0] * len(layout.replicated.batches), asked[-1]))
        num_rows = received[rank].num_rows.tolist()
        landings, arriving = [], list[list[Shape]]()
        for other, of_owner, message in zip(owners, self._runs, asked, strict=True):
            landings.append(list[Landing]())
            arriving.append([])
            for number, (band, runs) in enumerate(zip(other.bands, of_owner, strict=True)):
                if band.added:
                    target = Block(band.group, _places(message, other, band, runs, self._widths[band.group]))
                    arriving[-1].append((target.num_rows, int(runs[0, 2])))
                    landings[-1].append(Landing(number, target, add=True))
                else:
                    target = Block(band.group, slice(0, num_rows[band.group]))
                    arriving[-1].append((target.num_rows, band.columns[1] - band.columns[0]))
                    landings[-1].append(Landing(number, target, runs))
        return Route(self.wire, outgoing, landings, arriving[:-1])

    def receive(self, transfer: Transfer, replicated: Sequence[Tensor], samples: Sequence[Samples]) -> list[PooledRows]:
        """Wait for the vectors of this rank's rows, and name their columns; the end of `start_counts`."""
        matrices = [
            torch.empty(group.num_rows if width else 0, width, device=self.device)
            for group, width in zip(samples, self._widths.values(), strict=True)
        ]
        for group, (start, stop) in self._summed:
            matrices[group][:, start:stop] = 0
        return self.named(self._averages(transfer.finish(matrices, replicated), samples), samples)

    def look_up_alone(self, features: "KeyedJaggedTensor", samples: Sequence[Samples]) -> list[PooledRows]:
        """Where this process holds every table whole, of a batch that has their features alone, in order."""
        if self.world.meter is not None:
            needed = rows_of_whole_tables(self.layout.owners[0], samples)
            self.world.meter.record_found(f"{self.stage}: rows", local=needed, remote=0)
        values = features.values()
        weights = torch.from_numpy(samples[0].weights) if self.form.weighted else None
        offsets = features.offsets().to(values.dtype)
        held = LookupInput(values, offsets, weights, (samples[0].num_rows,), NO_COUNTS)
        pooled = self._sharded.look_up([held.to(self.device)])
        return self.named(self._averages(pooled, samples), samples)

    def named(self, matrices: Sequence[Tensor], samples: Sequence[Samples]) -> list[PooledRows]:
        """Name the columns of each group's matrix, where it has any."""
        return [
            PooledRows(names, dims, matrices[group], samples[group].inverse_on(self.device))
            for group, names, dims in self._columns
        ]

    def _averages(self, matrices: Sequence[Tensor], samples: Sequence[Samples]) -> Sequence[Tensor]:
        """Divide the columns of tables with mean pooling by each row's number of ids."""
        scales: list[Scale] = []
        for feature, columns in self._averaged:
            number = self.layout.groups[feature]
            group = samples[number]
            key = group.keys[feature]
            if not group.one_each[key]:
                lengths = torch.from_numpy(group.lengths[key]).clamp(min=1).to(self.device, torch.float32)
                scales.append((number, columns, lengths.reciprocal().unsqueeze(1)))
        if not scales:
            return matrices
        scaled: tuple[Tensor, ...] = _ScaleColumns.apply(scales, *matrices)  # type: ignore[no-untyped-call]
        return scaled


class _ScaleColumns(torch.autograd.Function):
    """Multiply columns of new matrices in place: [rows, 1] factors for (group, columns)."""

    @staticmethod
    def forward(ctx: Any, scales: Sequence[Scale], *matrices: Tensor) -> tuple[Tensor, ...]:
        ctx.scales = scales
        ctx.mark_dirty(*matrices)
        for group, (start, stop), scale in scales:
            matrices[group][:, start:stop].mul_(scale)
        return matrices

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scaled = list(gradients)
        for group in {group for group, _, _ in ctx.scales}:
            scaled[group] = gradients[group].clone()
        for group, (start, stop), scale in ctx.scales:
            scaled[group][:, start:stop].mul_(scale)
        return None, *scaled


class _DirectBags(InFlightLookup[list[PooledRows]]):
    """Of a process alone that holds every table whole: the batch goes as it is into the kernel."""

    def __init__(
        self, collection: EmbeddingBagCollection, features: "KeyedJaggedTensor", samples: Sequence[Samples]
    ) -> None:
        self._collection, self._features, self._samples = collection, features, samples
        self._found: list[PooledRows] | None = None
        self._other: InFlightLookup[list[PooledRows]] | None = None

    @property
    def has_read(self) -> bool:
        """Whether it was looked up."""
        return self._found is not None or (self._other is not None and self._other.has_read)

    def settle(self) -> None:
        """Have nothing under way."""
        if self._other is not None:
            self._other.settle()

    def restart(self) -> None:
        """Go the way of all others, unless every table is still whole."""
        if self._other is not None:
            self._other.restart()
        elif not self._collection.is_direct:
            self.as_exchange()

    def as_exchange(self) -> InFlightLookup[list[PooledRows]]:
        """The lookup that goes the way of all others instead."""
        self._other = InFlightLookup(self._collection, self._samples)
        return self._other

    def look_ahead(self, following: InFlightLookup[list[PooledRows]]) -> None:
        """Nothing travels."""

    def drop_early(self) -> None:
        """Nothing has gone ahead."""

    def start_ids(self) -> None:
        """Nothing travels."""

    def start_lookup(self) -> None:
        """Look the batch up."""
        if self._found is None:
            alone, other = self._collection.look_up_alone, self._other
            self._found = alone(self._features, self._samples) if other is None else other.finish()

    def finish(self) -> list[PooledRows]:
        """What was found."""
        self.start_lookup()
        assert self._found is not None
        return self._found


def _bands(owner: OwnerLayout, starts: Sequence[int], message: Message) -> list[Block]:
    """One rank's rows in an owner's outputs, which begin there in each batch, band by band."""
    blocks, num_rows = [], message.num_rows.tolist()
    for band in owner.bands:
        start, (first, stop) = starts[band.batch], band.lookups
        if owner.lookups[first].request in owner.cut:
            begin, end = owner.batches[band.batch]
            bags = message.bags[[lookup.request for lookup in owner.lookups[first:stop]]]
            lookup, row = numbers_in_ranges(np.zeros_like(bags), bags)
            vectors = (start + row) * (end - begin) + first - begin + lookup
            blocks.append(Block(band.batch, torch.from_numpy(vectors)))
        else:
            blocks.append(Block(band.batch, slice(start, start + num_rows[band.group]), band.columns))
    return blocks


def _places(message: Message, owner: OwnerLayout, band: Band, runs: Runs, width: int) -> Tensor:
    """Where the vectors of an added band belong in a matrix of so many columns; see `Landing.add`."""
    requests = [lookup.request for lookup in owner.lookups[slice(*band.lookups)]]
    bags = message.bags[requests]
    lookup, row = numbers_in_ranges(np.zeros_like(bags), bags)
    if message.places:
        # Bags without ids do not travel.
        row = np.concatenate([message.places[request] for request in requests])
    return torch.from_numpy(row * width + runs[lookup, 1])


def band_runs(layout: Layout) -> list[list[Runs]]:
    """How owners' bands become one matrix for each group.

    Args:
        layout: of all owners.

    Returns:
        For each owner, the replicated tables last, and each of its bands, the runs from its columns to those of the
        group's matrix (`Layout.outputs`): neighbours that stay neighbours joined, or of what is added one a lookup.
    """
    found: list[list[Runs]] = []
    for owner in (*layout.owners, layout.replicated):
        of_bands: list[Runs] = []
        for band in owner.bands:
            runs = []
            for lookup in owner.lookups[slice(*band.lookups)]:
                target = layout.outputs[lookup.output][2][0] + lookup.part[0]
                runs.append((lookup.columns[0] - band.columns[0], target, lookup.dim))
            of_bands.append(np.array(runs) if band.added else join_runs(runs))
        found.append(of_bands)
    return found


def _summed_columns(layout: Layout) -> list[tuple[int, Range]]:
    """Groups, and columns of their matrices, that bands are added to, and none is copied to."""
    owners = (*layout.owners, layout.replicated)
    everywhere = {lookup.output for lookup in layout.replicated.lookups}
    found = dict.fromkeys(
        (band.group, (layout.outputs[lookup.output][2][0] + lookup.part[0], lookup.dim))
        for owner in owners
        for band in owner.bands
        for lookup in owner.lookups[slice(*band.lookups)]
        if band.added and lookup.output not in everywhere
    )
    return [(group, (start, start + width)) for group, (start, width) in found]


def rows_of_whole_tables(owner: OwnerLayout, samples: Sequence[Samples]) -> int:
    """Count the rows that samples, group by group, need of what one owner holds, without a message to it."""
    found = [
        samples[owner.request_groups[lookup.request]].requested(owner.requests[lookup.request])
        for lookup in owner.lookups
    ]
    return sum(ids.stop if isinstance(ids, slice) else len(ids) for ids in found)
