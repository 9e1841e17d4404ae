"""What pooled and unpooled collections share: a rank's pieces of tables, how they learn, and a minibatch on its way.

A lookup has four stages: counts, ids, lookup at the owners, vectors home (`windrow.recsys.sharded.in_flight`).

An id names one row in each shard of its table that holds it, so one row in every table that is not cut by columns.
A row that several ids name counts as often, since bags are looked up without a search for duplicates; a list that
several samples of a deduplicated group have counts once.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx import Proxy

from windrow.comm.errors import RecipeError
from windrow.comm.loopback import Loopback
from windrow.comm.quantized_codec import Columns, QuantizedCodec
from windrow.comm.random import Stream, stream_key
from windrow.comm.route import Route, Transfer
from windrow.comm.wire import Wire, WireOptions, make_codec
from windrow.partition.tables.access import AccessCounts
from windrow.partition.tables.plan import Plan, Replica, Shard, TableSpec, check_plan
from windrow.partition.tables.planners import plan_with_planner
from windrow.recsys.sharded.copies import read_copies, write_copies
from windrow.recsys.sharded.in_flight import InFlightLookup, drop_early
from windrow.recsys.sharded.layout import Lookup, OwnerLayout
from windrow.recsys.sharded.lookahead import Lookahead
from windrow.recsys.sharded.moving import move_state, share_first_values
from windrow.recsys.sharded.packing import LookupInput, Message, MessageFormat, Samples, read_samples, unpack
from windrow.recsys.sharded.rank_tables import RankTables
from windrow.recsys.sharded.tables_of_ranks import TablesOfRanks, checked_groups, table_specs
from windrow.recsys.sharded.whole_tables import WholeTables, gather_table, without_values, write_table
from windrow.recsys.tables.compressed import CompressedTables, LookupThroughForm, share_forms
from windrow.recsys.tables.import_export import write_pretrained
from windrow.recsys.tables.make import first_values, initialise
from windrow.recsys.tables.options import TableConfig, TableOptions, check_configs, embedding_names, init_fn_of
from windrow.recsys.tables.table import TableBatch
from windrow.training.embedding import EmbeddingModule, RowLookup
from windrow.training.shard_files import ROW_IDS, StateTensor

if TYPE_CHECKING:
    from windrow.comm.world import World
    from windrow.recsys.batches.deduplication.ikjt import InverseKeyedJaggedTensor
    from windrow.recsys.tables.forms import Form
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

__all__ = ["ShardedTables"]

Result = TypeVar("Result")


class ShardedTables(EmbeddingModule, Generic[Result]):
    """Embedding tables spread over the ranks of a world by a plan.

    A step, on every rank::

        reducer.start()                  # GradientReducer(world, [*tables.replicated_parameters(), *model's])
        loss(tables(batch)).backward()   # sharded tables learn here
        reducer.finish()
        tables.step()                    # replicated tables, and those whose optimiser is not fused, learn here

    The loss is divided by the samples of all ranks: gradients are summed over ranks.

    Under a plan of several groups of ranks (`Plan.replica_groups`) each group holds all tables. Lookups stay inside a
    group, and `step` sums the gradients of the rows that were looked up over the ranks that hold them, then every
    group learns the same: two-dimensional sparse parallelism (arXiv 2508.03854), summed in every step before row-wise
    Adagrad squares it, so that nothing has to be scaled.

    `state_dict` and `load_state_dict`, of this module or of one that contains it, know whole tables under TorchRec's
    names, such as ``embedding_bags.NAME.weight`` [rows, dim] float32. Both are collective: every rank calls them, and
    gets, or hands over, every table whole. The dictionary has copies of the values, in the memory of the CPU, and no
    state of optimisers: checkpoints of the trainer have both, and no rank holds a whole table for them. Of a compressed
    table it has what its vectors are computed from, under the names of `stored_specs`.

    Args:
        pooled: bags of rows become one vector, or rows are returned one by one.
        stage: name of the traffic in errors and in the meter; must agree.

    The other arguments are those of `EmbeddingBagCollection` and `EmbeddingCollection`.
    """

    tables_attribute: ClassVar[str]
    """What TorchRec calls the modules of the tables, whose names keys of `state_dict` begin with."""

    def __init__(
        self,
        tables: Sequence[TableConfig],
        *,
        pooled: bool,
        is_weighted: bool,
        device: torch.device | None,
        world: "World | None",
        plan: Plan | str | None,
        groups: Sequence[Sequence[str]],
        options: TableOptions | None,
        wire: WireOptions | None,
        seed: int,
        stage: str,
        row_ids: Tensor | None = None,
    ) -> None:
        super().__init__()
        check_configs(tables, pooled=pooled)
        self.configs = list(tables)
        self.embedding_names = [name for names in embedding_names(tables) for name in names]
        """Keys of the result: ``feature``, or ``feature@table`` where several tables share it."""
        self.world = Loopback.single() if world is None else world
        self.options = options or TableOptions()
        self.device = device or torch.get_default_device()
        self.specs = table_specs(tables, self.options)
        """Of what ranks hold."""
        self.groups = checked_groups(groups)
        """Features whose lists come deduplicated."""
        self.stage = stage
        self._pooled = pooled
        self.has_weights = is_weighted
        """Whether ids of batches do; messages have signs of blocks as well."""
        self._seed = seed
        self.forms = wire or WireOptions()
        self.moves = 0
        """How often `move_to` has changed the plan."""
        self._steps = 0
        self._learning_rate: float | None = None
        self.row_ids = row_ids
        self._ahead: list[tuple[KeyedJaggedTensor, InFlightLookup[Result]]] = []
        self.access: AccessCounts | None = None
        """Counts what is looked up in training, where it is set."""
        self._left_out = False
        self.plan = _plan_of(plan or "round_robin", self.specs, self.world.size, 1)
        self.group, self._peers = _split(self.world, self.plan)
        """Ranks that hold all tables together, among which lookups stay; all, but for `Plan.replica_groups`."""
        self._place(self.plan, seed=seed)
        self._write_given_values()
        self.refresh_copies()

    def _place(self, plan: Plan, *, seed: int | None) -> None:
        """Make the tables where a plan has them, with first values or zeros, and what finds them there."""
        size, own = self.group.size, self.group.rank
        # A process alone owns all rows.
        held = TablesOfRanks(self.configs, self.options, self.groups, plan.copies if size > 1 else ())
        forms = held.forms
        form_of = {table.name: number for number, form in enumerate(forms) for table in form.tables}
        kinds = [
            (held.options.of_one_batch(table.name), form_of.get(table.name), table.name in held.arrays)
            for table in held.tables
        ]
        numbers = [kinds.index(kind) for kind in kinds]
        layout = held.layout(plan, size, numbers, pooled=self._pooled)
        ranks = [CompressedTables.rank_of(form, plan) for form in forms]
        everywhere = {None, 0} if size == 1 else {None}
        for form, rank in zip(forms, ranks, strict=True):
            if self._peers is not None and rank not in everywhere:
                raise RecipeError(
                    f"table {form.tables[0].name!r} is compressed, and the plan has it on rank {rank} alone in each of "
                    f"{plan.replica_groups} groups: have the plan replicate it"
                )
        compressed = [
            CompressedTables(
                form, self.options, replicated=rank in everywhere and self.world.size > 1, device=self.device, seed=seed
            )
            for form, rank in zip(forms, ranks, strict=True)
            if not self.is_meta and rank in {None, self.group.rank}
        ]
        through = {table.name: found for found in compressed for table in found.form.tables}
        sharded, copies = (
            RankTables(
                owner,
                through,
                held.options,
                rows=held.rows,
                pooled=self._pooled,
                device=self.device,
                replicated=replicated,
                peers=None if replicated else self._peers,
                fixed=held.arrays,
                seed=seed,
                row_ids=self.row_ids,
            )
            for owner, replicated in ((layout.owners[self.group.rank], False), (layout.replicated, True))
        )
        # What is refused was refused above: from here on the tables are there.
        self.plan, self.layout = plan, layout
        self.held = held
        """Tables, options and groups as ranks have them."""
        self.layout_of_batches = held.layout_of_batches(layout)
        self.copied_features = held.copied_features(layout)
        """Those of tables with copies, by place in the layout."""
        self._copies = [
            batch
            for batch in copies.batches
            if (first := batch.members[0]).name in held.copied and first.rows[0] >= held.rows[first.name]
        ]
        """Copies of rows."""
        self._forms, self._compressed = list(zip(forms, ranks, strict=True)), compressed
        # A form's numbers stand in no order of rows.
        self._stored_ids = None if forms else self.row_ids
        self._sharded, self._replicated = sharded, copies
        self.form = MessageFormat(
            np.int64 if layout.wide_ids else np.int32,
            weighted=self.has_weights or bool(held.arrays),
            with_lengths=self._pooled,
        )
        self.block_dims = [[[one.dim for one in block] for block in self.blocks_of(owner)] for owner in layout.owners]
        """Of each owner, block by block of what it sends home, the widths of its vectors."""
        self.wire = Wire(
            self.group,
            stage=self.stage,
            codec=make_codec(self.forms.vectors, columns=self._columns_of(gradients=False)),
            gradient_codec=make_codec(self.forms.gradients, rank=own, columns=self._columns_of(gradients=True)),
            device=self.device,
            rows_stage="vectors",
            shared_memory=True,
        )
        self.lookahead = Lookahead(self)
        self.round_anew(self._steps)
        self._parameters.clear()
        stored = [*self._owned(), *self._copies]
        for number, parameter in enumerate(chain.from_iterable(batch.parameters() for batch in stored)):
            self.register_parameter(f"piece_{number}", parameter)

    def move_to(self, plan: Plan | str) -> None:
        """Store the tables as another plan has it, in the middle of a run. Collective.

        Values, optimiser states, and what compressed tables know (hot rows, counts, codes) are the same afterwards as
        if a checkpoint had been read under the new plan, bit for bit: row-wise Adagrad's numbers of pieces that are
        joined side by side are averaged, weighted by width. Lookups that were prefetched, but not looked up, are
        started anew. `replicated_parameters` and `parameters` are others then, which a trainer notices by itself; a
        `GradientReducer` of your own has to be made again.

        Call it after `step`: a backward pass through what was looked up before is refused from then on, and so is what
        was started by `start_counts` alone.

        Cost: see `windrow.recsys.sharded.moving.move_state`; a rank needs memory for its pieces under both plans.

        Args:
            plan: or the name of a planner; must agree. Nothing happens where it is the plan already.

        Raises:
            PlanError: the plan does not fit the tables or the world.
            RecipeError: on all ranks: plans differ; gradients wait for `step`; a prefetched lookup has read rows; or
                the plan replicates tables of half precision. Nothing has changed then.
        """
        stage = f"{self.stage}: move"
        found = _plan_of(plan, self.specs, self.world.size, self.plan.replica_groups)
        lookups = [lookup for _, lookup in self._ahead]
        waits = any(batch.has_gradients() for batch in (*self._owned(), *self._copies))
        everyone = self.world.all_gather_object((found, waits), stage=stage)
        if any(other != found for other, _ in everyone):
            raise RecipeError("ranks move tables to plans that differ: give every rank the same plan")
        if found.replica_groups != self.plan.replica_groups:
            raise RecipeError(
                f"tables that {self.plan.replica_groups} group(s) of ranks hold cannot move to a plan of "
                f"replica_groups = {found.replica_groups}: go on from a checkpoint under it"
            )
        if any(of_rank for _, of_rank in everyone):
            raise RecipeError("tables cannot move while gradients wait for them: call step() before move_to()")
        if any(lookup.has_read for lookup in lookups):
            raise RecipeError(
                "tables cannot move after a prefetched lookup has read rows: finish it, and run its backward pass, "
                "before move_to()"
            )
        if found == self.plan:
            return
        for lookup in lookups:
            lookup.settle()
        before, left = self.local_tables(), (self._sharded, self._replicated)
        self._place(found, seed=None)
        for part in left:
            part.retire()
        move_state(self.group, before, self._owned(), stage=stage)
        self.refresh_copies()
        if self._learning_rate is not None:
            self.set_learning_rate(self._learning_rate)
        self.moves += 1
        for lookup in lookups:
            lookup.restart()

    def reset_parameters(self) -> None:
        """Write the first values again; what optimisers keep becomes zero. Collective."""
        drop_early(lookup for _, lookup in self._ahead)
        for found in chain.from_iterable(batch.state() for batch in self._owned()):
            if found.name != ROW_IDS:
                found.tensor.zero_()
        for batch in self._dense_batches():
            initialise(batch, self.held.options, self.held.rows, seed=self._seed)
        for compressed in self._compressed:
            compressed.initialise(seed=self._seed)
        self._write_given_values()
        self.refresh_copies()

    def _write_given_values(self) -> None:
        """Values of files and of functions in place of random ones; compressed tables have seen to theirs."""
        # Copies have nothing yet that owners should know.
        weights = {} if self.is_meta else self._weights(self._owned())
        for table in self.configs:
            pieces, shape = weights.get(table.name, []), (table.num_embeddings, table.embedding_dim)
            init_fn, path = init_fn_of(table), self.options.pretrained.get(table.name)
            if path is not None:
                write_pretrained(pieces, path, shape, self.row_ids)
            elif init_fn is not None and pieces:
                write_table(pieces, first_values(init_fn, table.name, shape, seed=self._seed), self.row_ids)
        written = {table.name for table in self.configs if init_fn_of(table) is not None}
        if not self.is_meta:
            share_first_values(self.world, self._peers, self._owned(), written, stage=f"{self.stage}: first values")

    @property
    def is_meta(self) -> bool:
        """Whether there are names and shapes only, on the meta device."""
        return self.device.type == "meta"

    def check_lookup(self, features: "KeyedJaggedTensor") -> None:
        """Refuse what cannot be looked up.

        Raises:
            RecipeError: this collection is on the meta device, or torch.fx traces it.
        """
        if self.is_meta:
            raise RecipeError(
                f"this {type(self).__name__} is on the meta device, so it has no rows to look up: make it again on "
                "another device"
            )
        if isinstance(features, Proxy):
            raise RecipeError(
                f"torch.fx cannot trace {type(self).__name__}: how much its ranks exchange depends on the ids. Let the "
                "tracer take it for a leaf (is_leaf_module; leaf_modules of torchrec.fx)"
            )

    def __prepare_scriptable__(self) -> None:
        """Refuse `torch.jit.script`, which asks here first.

        Raises:
            RecipeError: always.
        """
        raise RecipeError(
            f"{type(self).__name__} cannot be scripted, since Python exchanges the messages of its ranks: script the "
            "dense part, or load state_dict() into TorchRec's class, which can be"
        )

    def start_counts(
        self, features: "KeyedJaggedTensor", deduplicated: "Sequence[InverseKeyedJaggedTensor]" = ()
    ) -> InFlightLookup[Result]:
        """Start a lookup; see `InFlightLookup` for its stages. Collective.

        Args:
            features: ids of this rank's samples, as in `forward`; must stay untouched until the lookup is finished.
            deduplicated: likewise, of each group that the collection was made for.

        Returns:
            Ends with pooled rows of each group of features, or lists of rows of each feature: one for each sample, in a
            group one for each distinct list.

        Raises:
            DataError: ids, lengths, weights or inverses are not valid.
            RecipeError: see `check_lookup`.
        """
        self.check_lookup(features)
        given = read_samples(features, deduplicated, self.layout_of_batches, is_weighted=self.has_weights)
        samples = self.held.samples(given, self.layout_of_batches, self.layout)
        if self.access is not None and self.training:
            self._count(samples, self.access)
        return self.lookup_of_samples(features, samples)

    def _count(self, samples: Sequence[Samples], counts: AccessCounts) -> None:
        """Count what a batch looks up."""
        counts.batches += 1
        counts.samples += samples[0].num_rows
        for table, feature, _ in self.layout.outputs:
            group = samples[self.layout.groups[feature]]
            start, stop = group.starts[group.keys[feature] : group.keys[feature] + 2].tolist()
            counts.add(self.held.tables[table].name, group.ids[start:stop], group.num_rows)

    def lookup_of_samples(self, features: "KeyedJaggedTensor", samples: Sequence[Samples]) -> InFlightLookup[Result]:
        """The lookup of a batch that was checked. Collective."""
        del features
        return InFlightLookup(self, samples)

    def prefetch(
        self, features: "KeyedJaggedTensor", deduplicated: "Sequence[InverseKeyedJaggedTensor]" = ()
    ) -> InFlightLookup[Result]:
        """Start a lookup that the next call of this module with the same object `features` finishes. Collective."""
        lookup = self.start_counts(features, deduplicated)
        self._ahead.append((features, lookup))
        return lookup

    def start_rows(self, ids: Tensor) -> RowLookup:
        """See `EmbeddingModule.start_rows`; RecipeError: here rows come in sums only."""
        del ids
        raise RecipeError(
            f"rows do not come one by one from {type(self).__name__}: make an EmbeddingCollection of one table"
        )

    def forget_prefetched(self) -> None:
        """Let go of lookups that nobody will finish, where a loop has ended early."""
        self._ahead.clear()

    def has_prefetched(self, features: "KeyedJaggedTensor") -> bool:
        """Whether a lookup of this object waits to be finished."""
        return any(started is features for started, _ in self._ahead)

    def lookup_of(
        self, features: "KeyedJaggedTensor", deduplicated: "Sequence[InverseKeyedJaggedTensor]"
    ) -> InFlightLookup[Result]:
        """The lookup that was started for this object, or a new one. Collective."""
        for place, (started, lookup) in enumerate(self._ahead):
            if started is features:
                del self._ahead[place]
                return lookup
        return self.start_counts(features, deduplicated)

    def look_up(self, wanted: Sequence[LookupInput]) -> list[Tensor]:
        """Look up what ranks want of this one."""
        return self._sharded.look_up([of_batch.to(self.device) for of_batch in wanted])

    @abstractmethod
    def route(
        self,
        wanted: Sequence[LookupInput],
        received: Sequence[Message],
        asked: Sequence[Message],
        samples: Sequence[Samples],
        first: int,
    ) -> Route:
        """The way home of what is found for a minibatch.

        Args:
            wanted: input of this rank's tables, of this minibatch and maybe others.
            received: what each rank asks this one for.
            asked: what this rank asks each owner for, and at the end what of replicated tables.
            samples: likewise, group by group.
            first: which of the messages behind `wanted` was the first of this minibatch.
        """

    def look_up_replicated(self, asked: Message) -> list[Tensor]:
        """Look up what this rank wants of the tables that every rank holds."""
        if not self._replicated.batches:
            return []
        wanted = unpack([asked], self.layout.replicated, self.form)
        return self._replicated.look_up([of_batch.to(self.device) for of_batch in wanted])

    @abstractmethod
    def receive(self, transfer: Transfer, replicated: Sequence[Tensor], samples: Sequence[Samples]) -> Result:
        """Wait for what was found for this rank's samples, and put it together; the end of `start_counts`."""

    def replicated_parameters(self) -> list[nn.Parameter]:
        """Values of the tables that every rank holds: their gradients must be summed over ranks before `step`.

        Hot rows of compressed tables are not among them: `step` sums the gradients of those that were looked up.
        """
        compressed = [found.batch.dense_parameters for found in self._compressed if found.batch.replicated]
        return list(chain(*(batch.parameters() for batch in self._replicated.batches), *compressed))

    def local_tables(self) -> list[TableBatch]:
        """What this rank stores, compressed tables last; checkpoints and export read and write their state.

        Who writes it calls `refresh_copies` afterwards.
        """
        if self._copies:
            write_copies(self._copies, self._owned(), self.held.copied)
        return self._owned()

    def refresh_copies(self) -> None:
        """See `EmbeddingModule.refresh_copies`."""
        if self.copied_features and not self.is_meta:
            read_copies(self.group, self._copies, self._owned(), self.held.copied, stage=f"{self.stage}: copies")

    def _owned(self) -> list[TableBatch]:
        """What this rank stores, without copies."""
        return [*self._dense_batches(), *(compressed.batch for compressed in self._compressed)]

    def _dense_batches(self) -> list[TableBatch]:
        found = (*self._sharded.batches, *self._replicated.batches)
        return [batch for batch in found if not (isinstance(batch, LookupThroughForm) or batch in self._copies)]

    def stored_specs(self) -> list[TableSpec]:
        """The tables that ranks store: those that are not compressed, and what the others are computed from."""
        compressed = {table.name for form, _ in self._forms for table in form.tables}
        return [
            *(spec for spec in self.specs if spec.name not in compressed),
            *(
                TableSpec(name=stored.name, rows=stored.num_rows, dim=stored.dim, features=())
                for form, _ in self._forms
                for stored in form.stored
            ),
        ]

    def _stored_plan(self) -> Plan:
        """Where `stored_specs` are."""
        shards, copies = list(self.plan.shards), list(self.plan.replicated)
        for form, rank in self._forms:
            for stored in form.stored:
                if rank is None:
                    copies.append(Replica(stored.name, stored.rows))
                else:
                    shards.append(Shard(stored.name, rank, stored.rows, stored.columns))
        return Plan(tuple(shards), tuple(copies))

    def whole_tables(self) -> "WholeTables":
        """Tables as this rank stores them, where it stores them whole, and nobody has copies of rows."""
        scattered = self.held.copied if self._stored_ids is None else [spec.name for spec in self.specs]
        weights = {name: [] if name in scattered else found for name, found in self._weights().items()}
        return WholeTables(self.stored_specs(), weights)

    def whole_table(self, name: str) -> Tensor:
        """Bring one table together: [rows, dim] float32 on the CPU of every rank. Collective.

        Raises:
            KeyError: there is no such table.
        """
        for form in self.table_forms():
            if name in [table.name for table in form.tables]:
                return form.whole_table(name, [self.stored_table(stored.name) for stored in form.stored])
        return self.stored_table(name)

    def stored_table(self, name: str) -> Tensor:
        """Bring one of `stored_specs` together: [rows, dim] float32 on the CPU of every rank. Collective.

        Raises:
            KeyError: there is no such table.
        """
        spec = {spec.name: spec for spec in self.stored_specs()}[name]
        stage = f"{self.stage}: whole tables"
        return gather_table(
            self.group, self._stored_plan(), spec, self._weights()[name], row_ids=self._stored_ids, stage=stage
        )

    def table_forms(self) -> "list[Form]":
        """How compressed tables are computed from what is stored, also where that is not stored. Collective."""
        if self.group.size > 1:
            share_forms(self.group, self._forms, stage=f"{self.stage}: forms")
        return [*(form for form, _ in self._forms), *self.held.arrays.values()]

    def _form_keys(self, prefix: str) -> dict[str, tuple["Form", StateTensor]]:
        """What forms know that lookups need."""
        return {
            f"{prefix}{self.tables_attribute}.{part.piece.name}.{part.name}": (form, part)
            for form, _ in self._forms
            for part in form.state(replicated=False)
            if part.is_value
        }

    def _weights(self, batches: Sequence[TableBatch] | None = None) -> dict[str, list[StateTensor]]:
        """What this rank stores of each table's values; None: as it is now."""
        if self.is_meta:
            return {spec.name: [without_values(spec)] for spec in self.stored_specs()}
        found: dict[str, list[StateTensor]] = {spec.name: [] for spec in self.stored_specs()}
        for part in chain.from_iterable(one.state() for one in (self.local_tables() if batches is None else batches)):
            if part.name == "weight":
                found[part.piece.name].append(part)
        return found

    def _keys(self, prefix: str) -> dict[str, TableSpec]:
        return {f"{prefix}{self.tables_attribute}.{spec.name}.weight": spec for spec in self.stored_specs()}

    @contextmanager
    def left_out_of_state_dict(self) -> Iterator[None]:
        """While the ``with`` block runs, `state_dict` has none of these tables, and is not collective."""
        self._left_out = True
        try:
            yield
        finally:
            self._left_out = False

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:  # noqa: FBT001
        del keep_vars
        if self._left_out:
            return
        weights, plan, ids = self._weights(), self._stored_plan(), self._stored_ids
        stage = f"{self.stage}: state_dict, which every rank calls"
        if not self.is_meta:
            self.table_forms()
        destination.update({key: part.tensor.clone() for key, (_, part) in self._form_keys(prefix).items()})
        for key, spec in self._keys(prefix).items():
            destination[key] = gather_table(self.group, plan, spec, weights[spec.name], row_ids=ids, stage=stage)

    def _load_from_state_dict(  # noqa: PLR0917  # PyTorch's signature
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,  # noqa: FBT001
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        for hook in self._load_state_dict_pre_hooks.values():
            hook(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        if self.is_meta:
            error_msgs.append(f"{type(self).__name__} is on the meta device, which holds no values: make it on another")
            return
        keys, weights = self._keys(prefix), self._weights()
        for key, spec in keys.items():
            if key not in state_dict:
                missing_keys.append(key)
                continue
            given: Tensor = state_dict[key]
            if tuple(given.shape) == (spec.rows, spec.dim):
                write_table(weights[spec.name], given, self._stored_ids)
            else:
                error_msgs.append(f"size mismatch for {key}: {list(given.shape)} is given for {[spec.rows, spec.dim]}")
        of_forms = self._form_keys(prefix)
        for key, (form, part) in of_forms.items():
            if key in state_dict:
                form.load(replace(part, tensor=state_dict[key]))
            else:
                missing_keys.append(key)
        drop_early(lookup for _, lookup in self._ahead)
        self.refresh_copies()
        if strict:
            known = keys.keys() | of_forms.keys()
            unexpected_keys += [key for key in state_dict if key.startswith(prefix) and key not in known]

    def step(self) -> None:
        """Learn where the backward pass did not: replicated tables, all under adam, and all of several groups.

        Collective, where there are several groups or replicated compressed tables.
        """
        self._sharded.sum_between_groups(stage=f"{self.stage}: rows between groups")
        for batch in (*self._dense_batches(), *self._copies):
            batch.step()
        for compressed in self._compressed:
            compressed.step(self.world, stage=self.stage)
        self._steps += 1
        self.round_anew(self._steps)

    def round_anew(self, *counters: int) -> None:
        """From now on gradients that travel in few bits are rounded by other random numbers, those of some counters.

        `step` does so by itself; who can go on with a run says which step of it this is.
        """
        if isinstance(self.wire.gradient_codec, QuantizedCodec):
            self.wire.gradient_codec.key = stream_key(self._seed, Stream.QUANTISE, *counters)

    def _columns_of(self, *, gradients: bool) -> "Columns":
        """The vectors that rows of messages consist of, each of one lookup: an owner's, who gets gradients."""

        def columns(peer: int, sent: bool) -> Sequence[Sequence[int]]:  # noqa: FBT001  # the type has it so
            return self.block_dims[self.group.rank if sent != gradients else peer]

        return columns

    @abstractmethod
    def blocks_of(self, owner: OwnerLayout) -> "Sequence[Sequence[Lookup]]":
        """The lookups of each block of what an owner sends home."""

    def scale_learning_rate(self, factor: float) -> None:
        """See `EmbeddingModule.scale_learning_rate`."""
        self.set_learning_rate(self.options.learning_rate * factor)

    def set_learning_rate(self, learning_rate: float) -> None:
        """Learn at this rate from the next lookup on; call it before that lookup starts. Must agree.

        Args:
            learning_rate: takes the place of the options'; a table with a rate of its own keeps its ratio to it.
        """
        self._learning_rate = learning_rate
        for part in (self._sharded, self._replicated):
            part.set_learning_rate(learning_rate)
        for compressed in self._compressed:
            factor = compressed.options.learning_rate / self.options.learning_rate
            compressed.batch.set_learning_rate(learning_rate * factor)

    def count_rows(self, asked: Sequence[Message]) -> None:
        """Count where the rows of a minibatch are, when it is looked up.

        Not earlier: a run that goes on from a checkpoint sends minibatches again that were only on their way. Cost: one
        addition for each lookup of each owner.

        Args:
            asked: what this rank asks each owner for, itself included, and at the end what of replicated tables.
        """
        if self.world.meter is None:
            return
        rows = []
        for owner, message in zip((*self.layout.owners, self.layout.replicated), asked, strict=True):
            counts: list[int] = message.counts.tolist()
            rows.append(sum(counts[lookup.request] for lookup in owner.lookups))
        here = rows[self.group.rank] + rows[-1]
        self.world.meter.record_found(f"{self.stage}: rows", local=here, remote=sum(rows) - here)


def _plan_of(plan: Plan | str, specs: Sequence[TableSpec], world_size: int, replica_groups: int) -> Plan:
    """A plan that fits, or that of a planner."""
    if not isinstance(plan, Plan):
        plan = plan_with_planner(plan, specs, world_size, replica_groups=replica_groups)
    check_plan(plan, specs, world_size)
    return plan


def _split(world: "World", plan: Plan) -> "tuple[World, World | None]":
    """The ranks of this one's group, and those that hold what this one does, where there are several groups."""
    if plan.replica_groups == 1:
        return world, None
    ranks = np.arange(world.size).reshape(plan.replica_groups, -1)
    return world.split(ranks.tolist()), world.split(ranks.T.tolist())
