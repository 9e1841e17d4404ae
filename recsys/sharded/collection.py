"""What pooled and unpooled collections share: a rank's pieces of tables, how they learn, and a minibatch on its way.

A lookup has four stages: counts, ids, lookup at the owners, vectors home (`InFlightLookup`).

An id names one row in each shard of its table that holds it, so one row in every table that is not cut by columns.
A row that several ids name counts as often, since bags are looked up without a search for duplicates; a list that
several samples of a deduplicated group have counts once.
"""

from abc import ABC, abstractmethod
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
from windrow.partition.tables.plan import Plan, Replica, Shard, TableSpec, check_plan
from windrow.partition.tables.planners import plan_with_planner
from windrow.recsys.sharded.layout import Lookup, OwnerLayout, make_layout
from windrow.recsys.sharded.packing import LookupInput, Message, MessageFormat, Samples, pack, read_samples, unpack
from windrow.recsys.sharded.rank_tables import RankTables
from windrow.recsys.sharded.robe_tables import TablesOfRanks
from windrow.recsys.sharded.whole_tables import WholeTables, gather_table, without_values, write_table
from windrow.recsys.tables.compressed import CompressedTables, LookupThroughForm, shared_bytes
from windrow.recsys.tables.make import first_values, initialise
from windrow.recsys.tables.options import (
    TableConfig,
    TableOptions,
    check_configs,
    check_names,
    embedding_names,
    features_of,
    init_fn_of,
)
from windrow.recsys.tables.table import TableBatch
from windrow.training.shard_files import StateTensor

if TYPE_CHECKING:
    from windrow.comm.transfer import Pending
    from windrow.comm.world import World
    from windrow.recsys.batches.deduplication.ikjt import InverseKeyedJaggedTensor
    from windrow.recsys.tables.forms import Form
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

__all__ = ["InFlightLookup", "ShardedTables", "rows_of_whole_tables", "table_specs"]

Result = TypeVar("Result")


class InFlightLookup(Generic[Result]):
    """A minibatch on its way through a collection; made by `start_counts` of the collection.

    Every stage is collective: every rank starts the stages of all its minibatches in the same order. A stage that was
    not started is started by the next one, so that ``collection.start_counts(batch).finish()`` is a whole lookup.
    A loop that keeps three minibatches in flight, where values are exact because no row is read before the update of
    the minibatch before::

        step   minibatch n                  minibatch n + 1      minibatch n + 2
                                            start_ids
                                                                 start_counts
               start_lookup
               (bottom part of the model)
               finish
               forward, backward

    In training mode every rank runs one backward pass through each result, also where it has no samples. Gradients
    travel while what was computed between `start_lookup` and `finish` is differentiated.

    Args:
        tables: the collection.
        samples: each group of this rank.

    Raises:
        DeadlineError: of every stage: a rank did not come in time.
    """

    def __init__(self, tables: "ShardedTables[Result]", samples: Sequence[Samples]) -> None:
        self._tables = tables
        self._samples = samples
        layout, world = tables.layout, tables.world
        self._owner = layout.owners[world.rank]
        self._asked = pack(samples, layout.owners, layout.index, tables.form)
        length = layout.num_groups + len(self._owner.requests)
        self._headers = [torch.empty(length, dtype=torch.int64) for _ in range(world.size)]
        self._pending: Pending[None] = world.start_exchange(
            [torch.from_numpy(message.header) for message in self._asked],
            self._headers,
            stage=f"{tables.stage}: counts",
        )
        self._received: Sequence[Message] = ()
        self._transfer: Transfer | None = None
        self._replicated: list[Tensor] = []

    def start_ids(self) -> None:
        """Wait for the counts and send the ids. Collective."""
        if self._received:
            return
        self._pending.wait()
        rank = self._tables.world.rank
        self._received = [
            self._asked[rank]
            if peer == rank
            else Message(self._tables.form, header.numpy(), self._owner.request_groups)
            for peer, header in enumerate(self._headers)
        ]
        self._pending = self._tables.world.start_exchange(
            [message.buffer for message in self._asked],
            [message.buffer for message in self._received],
            stage=f"{self._tables.stage}: ids",
        )

    def start_lookup(self) -> None:
        """Wait for the ids of all ranks, look them up, and send what was found. Collective."""
        if self._transfer is not None:
            return
        self.start_ids()
        self._pending.wait()
        wanted = unpack(self._received, self._owner, self._tables.form)
        self._transfer = self._tables.send(wanted, self._received, self._asked, self._samples)
        self._tables.count_rows(self._samples, self._asked)
        # While the vectors travel:
        self._replicated = self._tables.look_up_replicated(self._samples)

    def finish(self) -> Result:
        """Wait for what was found for this rank's samples. Collective; once."""
        self.start_lookup()
        assert self._transfer is not None
        return self._tables.receive(self._transfer, self._replicated, self._samples)


class ShardedTables(nn.Module, ABC, Generic[Result]):
    """Embedding tables spread over the ranks of a world by a plan.

    A step, on every rank::

        reducer.start()                  # GradientReducer(world, [*tables.replicated_parameters(), *model's])
        loss(tables(batch)).backward()   # sharded tables learn here
        reducer.finish()
        tables.step()                    # replicated tables, and those whose optimiser is not fused, learn here

    The loss is divided by the samples of all ranks: gradients are summed over ranks.

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
    ) -> None:
        super().__init__()
        check_configs(tables, pooled=pooled)
        self.configs = list(tables)
        self.embedding_names = [name for names in embedding_names(tables) for name in names]
        """Keys of the result: ``feature``, or ``feature@table`` where several tables share it."""
        _check_groups(groups)
        self.world = Loopback.single() if world is None else world
        self.options = options or TableOptions()
        self.device = device or torch.get_default_device()
        self.specs = table_specs(tables, self.options)
        """Of what ranks hold."""
        self.plan = (
            plan if isinstance(plan, Plan) else plan_with_planner(plan or "round_robin", self.specs, self.world.size)
        )
        check_plan(self.plan, self.specs, self.world.size)
        self.groups = tuple(tuple(group) for group in groups)
        """Features whose lists come deduplicated."""
        self.held = TablesOfRanks(tables, self.options, groups)
        """Tables, options and groups as ranks have them."""
        forms, arrays = self.held.forms, self.held.arrays
        form_of = {table.name: number for number, form in enumerate(forms) for table in form.tables}
        kinds = [
            (self.held.options.of_one_batch(table.name), form_of.get(table.name), table.name in arrays)
            for table in self.held.tables
        ]
        numbers = [kinds.index(kind) for kind in kinds]
        self.layout = make_layout(
            self.held.tables, self.plan, self.world.size, self.held.groups, numbers, pooled=pooled
        )
        self.layout_of_batches = self.held.layout_of_batches(self.layout)
        self.has_weights = is_weighted
        """Whether ids of batches do; messages have signs of blocks as well."""
        self.form = MessageFormat(
            np.int64 if self.layout.wide_ids else np.int32, weighted=is_weighted or bool(arrays), with_lengths=pooled
        )
        self.stage = stage
        self._seed = seed
        self.forms = wire or WireOptions()
        self.wire = Wire(
            self.world,
            stage=stage,
            codec=make_codec(self.forms.vectors, columns=self._columns_of(gradients=False)),
            gradient_codec=make_codec(
                self.forms.gradients, rank=self.world.rank, columns=self._columns_of(gradients=True)
            ),
            device=self.device,
            rows_stage="vectors",
            shared_memory=True,
        )
        self._steps = 0
        self.round_anew(0)
        self._ahead: list[tuple[KeyedJaggedTensor, InFlightLookup[Result]]] = []
        rows = {table.name: table.num_embeddings for table in self.held.tables}
        self._forms = [(form, CompressedTables.rank_of(form, self.plan)) for form in forms]
        self._compressed = [
            CompressedTables(
                form, self.options, replicated=rank is None and self.world.size > 1, device=self.device, seed=seed
            )
            for form, rank in self._forms
            if not self.is_meta and rank in {None, self.world.rank}
        ]
        through = {table.name: found for found in self._compressed for table in found.form.tables}
        self._sharded, self._replicated = (
            RankTables(
                owner,
                through,
                self.held.options,
                rows=rows,
                pooled=pooled,
                device=self.device,
                replicated=replicated,
                fixed=arrays,
                seed=seed,
            )
            for owner, replicated in ((self.layout.owners[self.world.rank], False), (self.layout.replicated, True))
        )
        for number, parameter in enumerate(chain.from_iterable(batch.parameters() for batch in self.local_tables())):
            self.register_parameter(f"piece_{number}", parameter)
        self._rows = rows
        self._left_out = False
        self._call_init_fns()

    def reset_parameters(self) -> None:
        """Write the first values again; what optimisers keep becomes zero."""
        for batch in self.local_tables():
            for found in batch.state():
                found.tensor.zero_()
        for batch in self._dense_batches():
            initialise(batch, self.held.options, self._rows, seed=self._seed)
        for compressed in self._compressed:
            compressed.initialise(seed=self._seed)
        self._call_init_fns()

    def _call_init_fns(self) -> None:
        weights = {} if self.is_meta else self._weights()
        for table in self.configs:
            init_fn = init_fn_of(table)
            if init_fn is not None and (pieces := weights.get(table.name)):
                shape = (table.num_embeddings, table.embedding_dim)
                write_table(pieces, first_values(init_fn, table.name, shape, seed=self._seed))

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
        return self.lookup_of_samples(features, samples)

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

    def send(
        self,
        wanted: Sequence[LookupInput],
        received: Sequence[Message],
        asked: Sequence[Message],
        samples: Sequence[Samples],
    ) -> Transfer:
        """Look up what all ranks want of this one, and send it to them; a stage of `start_counts`. Collective."""
        found = self._sharded.look_up([of_batch.to(self.device) for of_batch in wanted])
        return self.route(wanted, received, asked, samples).start(found, differentiable=True)

    @abstractmethod
    def route(
        self,
        wanted: Sequence[LookupInput],
        received: Sequence[Message],
        asked: Sequence[Message],
        samples: Sequence[Samples],
    ) -> Route:
        """The way home of what is found for a minibatch.

        Args:
            wanted: input of this rank's tables.
            received: what each rank asks this one for.
            asked: what this rank asks each owner for.
            samples: likewise, group by group.
        """

    def look_up_replicated(self, samples: Sequence[Samples]) -> list[Tensor]:
        """Look up what this rank wants of the tables that every rank holds."""
        if not self._replicated.batches:
            return []
        messages = pack(samples, [self.layout.replicated], self.layout.replicated_index, self.form)
        wanted = unpack(messages, self.layout.replicated, self.form)
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
        """What this rank stores, compressed tables last; checkpoints and export read and write their state."""
        return [*self._dense_batches(), *(compressed.batch for compressed in self._compressed)]

    def _dense_batches(self) -> list[TableBatch]:
        found = (*self._sharded.batches, *self._replicated.batches)
        return [batch for batch in found if not isinstance(batch, LookupThroughForm)]

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
        """Tables as this rank stores them, where it stores them whole."""
        return WholeTables(self.stored_specs(), self._weights())

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
        return gather_table(self.world, self._stored_plan(), spec, self._weights()[name], stage=stage)

    def table_forms(self) -> "list[Form]":
        """How compressed tables are computed from what is stored, also where that is not stored. Collective."""
        stage = f"{self.stage}: forms"
        for form, rank in self._forms:
            if rank is None or self.world.size == 1:
                continue
            # Which rows are hot, say: only the rank that learns knows.
            parts = form.state(replicated=False) if rank == self.world.rank else []
            parts = self.world.broadcast_object(parts, root=rank, stage=stage)
            if rank != self.world.rank:
                for part in parts:
                    form.load(part)
        return [*(form for form, _ in self._forms), *self.held.arrays.values()]

    def _form_keys(self, prefix: str) -> dict[str, tuple["Form", StateTensor]]:
        """What forms know that lookups need."""
        return {
            f"{prefix}{self.tables_attribute}.{part.piece.name}.{part.name}": (form, part)
            for form, _ in self._forms
            for part in form.state(replicated=False)
            if part.is_value
        }

    def _weights(self) -> dict[str, list[StateTensor]]:
        """What this rank stores of each table's values."""
        if self.is_meta:
            return {spec.name: [without_values(spec)] for spec in self.stored_specs()}
        found: dict[str, list[StateTensor]] = {spec.name: [] for spec in self.stored_specs()}
        for batch in self.local_tables():
            for part in batch.state():
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
        weights, plan, stage = self._weights(), self._stored_plan(), f"{self.stage}: state_dict, which every rank calls"
        if not self.is_meta:
            self.table_forms()
        destination.update({key: part.tensor.clone() for key, (_, part) in self._form_keys(prefix).items()})
        for key, spec in self._keys(prefix).items():
            pieces = weights[spec.name]
            destination[key] = (
                pieces[0].tensor if self.is_meta else gather_table(self.world, plan, spec, pieces, stage=stage)
            )

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
                write_table(weights[spec.name], given)
            else:
                error_msgs.append(f"size mismatch for {key}: {list(given.shape)} is given for {[spec.rows, spec.dim]}")
        of_forms = self._form_keys(prefix)
        for key, (form, part) in of_forms.items():
            if key in state_dict:
                form.load(replace(part, tensor=state_dict[key]))
            else:
                missing_keys.append(key)
        if strict:
            known = keys.keys() | of_forms.keys()
            unexpected_keys += [key for key in state_dict if key.startswith(prefix) and key not in known]

    def step(self) -> None:
        """Learn where the backward pass did not: replicated tables, and all under adam."""
        for batch in self._dense_batches():
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
        found = [
            [[lookup.dim for lookup in lookups] for lookups in self.blocks_of(owner)] for owner in self.layout.owners
        ]

        def columns(peer: int, sent: bool) -> Sequence[Sequence[int]]:  # noqa: FBT001  # the type has it so
            return found[self.world.rank if sent != gradients else peer]

        return columns

    @abstractmethod
    def blocks_of(self, owner: OwnerLayout) -> "Sequence[Sequence[Lookup]]":
        """The lookups of each block of what an owner sends home."""

    def set_learning_rate(self, learning_rate: float) -> None:
        """Learn at this rate from the next lookup on; call it before that lookup starts. Must agree.

        Args:
            learning_rate: takes the place of the options'; a table with a rate of its own keeps its ratio to it.
        """
        for part in (self._sharded, self._replicated):
            part.set_learning_rate(learning_rate)
        for compressed in self._compressed:
            factor = compressed.options.learning_rate / self.options.learning_rate
            compressed.batch.set_learning_rate(learning_rate * factor)

    def count_rows(self, samples: Sequence[Samples], messages: Sequence[Message]) -> None:
        """Count where the rows of a minibatch are, when it is looked up.

        Not earlier: a run that goes on from a checkpoint sends minibatches again that were only on their way. Cost: one
        addition for each lookup of each owner; a pass over the ids of tables of which every rank holds some rows.

        Args:
            samples: each group of this rank.
            messages: what it asks each owner for, itself included.
        """
        if self.world.meter is None:
            return
        asked = []
        for owner, message in zip(self.layout.owners, messages, strict=True):
            counts: list[int] = message.counts.tolist()
            asked.append(sum(counts[lookup.request] for lookup in owner.lookups))
        mine = asked[self.world.rank]
        copies = rows_of_whole_tables(self.layout.replicated, samples)
        self.world.meter.record_found(f"{self.stage}: rows", local=mine + copies, remote=sum(asked) - mine)


def table_specs(tables: Sequence[TableConfig], options: TableOptions) -> list[TableSpec]:
    """What planners have to know of some tables.

    Args:
        tables: configurations, ours or TorchRec's.
        options: how they are stored and learn.

    Returns:
        One for each that ranks hold, with one lookup per sample and feature. Of tables with ``robe_sharded`` that is
        their array, with each feature as often as a vector has blocks.

    Raises:
        RecipeError: options say something of a table that is not there.
    """
    check_names("tables", options.per_table, [table.name for table in tables])
    held = TablesOfRanks(tables, options)
    specs = []
    compressed: dict[str, int] = {}
    for form in held.forms:
        compressed |= shared_bytes(form, options)
    for table in held.tables:
        own = held.options.of(table.name)
        blocks = [held.blocks[name].feature for name in features_of(table) if name in held.blocks]
        features = tuple(blocks or features_of(table))
        specs.append(
            TableSpec(
                name=table.name,
                rows=table.num_embeddings,
                dim=table.embedding_dim,
                features=features,
                bytes_per_value=own.dtype.itemsize,
                optimizer_bytes_per_row=own.optimizer_bytes_per_row(table.embedding_dim),
                lookups_per_sample=float(len(features)),
                compressed_bytes=compressed.get(table.name),
                by_rows=table.name in held.arrays,
            )
        )
    return specs


def _check_groups(groups: Sequence[Sequence[str]]) -> None:
    if any(isinstance(group, str) for group in groups):
        raise RecipeError(f"groups = {list(groups)}: each is a sequence of names, such as [['cart', 'sellers']]")
    features = [feature for group in groups for feature in group]
    twice = sorted({feature for feature in features if features.count(feature) > 1})
    if twice:
        raise RecipeError(f"groups name {twice[0]!r} twice: a feature is in one group")


def rows_of_whole_tables(owner: OwnerLayout, samples: Sequence[Samples]) -> int:
    """Count the rows that samples, group by group, need of what one owner holds, without a message to it."""
    found = [
        samples[owner.request_groups[lookup.request]].requested(owner.requests[lookup.request])
        for lookup in owner.lookups
    ]
    return sum(ids.stop if isinstance(ids, slice) else len(ids) for ids in found)
