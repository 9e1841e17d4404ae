"""Compressed tables of one rank: lookups through a form, into stored tables that learn as any others.

    tables           item 10,000,000 x 64    user 3,000,000 x 64     what ids, plans and models know
    form             robe, tensor_train, ...                         a function of ids and stored numbers
    stored tables    [200,000 x 32]                                  what is learnt, summed and saved

A plan says who looks a table's rows up, in whatever pieces. Every rank that does needs all of the stored tables: where
one rank looks all up, it alone has them, else every rank does, and gradients are summed over ranks.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.partition.tables.plan import Plan
from windrow.recsys.tables.dense_gradient import DenseGradientTableBatch, segment_bounds
from windrow.recsys.tables.forms import Form, Hashed, Narrow, QuotientRemainder, Segment, whole_table
from windrow.recsys.tables.hot import WithHotRows
from windrow.recsys.tables.import_export import load_pretrained
from windrow.recsys.tables.options import TableConfig, TableOptions, init_fn_of
from windrow.recsys.tables.table import TableBatch
from windrow.training.shard_files import LocalTable, StateTensor

if TYPE_CHECKING:
    from windrow.comm.world import World

__all__ = ["CompressedTables", "LookupThroughForm", "make_form", "make_forms", "share_forms", "shared_bytes"]


def make_forms(tables: Sequence[TableConfig], options: TableOptions) -> list[Form]:
    """The forms of those tables that are compressed: one for each table, but one for all robe tables of one kind.

    Args:
        tables: configurations of a collection, in its order; must agree.
        options: how they are stored.

    Raises:
        RecipeError: a table cannot be stored smaller in this form; it has first values of its own, which no
            form can take; or two tables would be stored under one name.
    """
    groups: list[tuple[TableOptions, list[LocalTable]]] = []
    for config in tables:
        kind = options.of_one_batch(config.name)
        if kind.form == "dense":
            continue
        if init_fn_of(config) is not None:
            raise RecipeError(
                f'table {config.name!r}: form = "{kind.form}" cannot start from the values of init_fn: leave it out, '
                'write them to a file for tables.pretrained, or take form = "dense"'
            )
        table = whole_table(config.name, config.num_embeddings, config.embedding_dim)
        together = next((of_kind for found, of_kind in groups if found == kind and kind.form == "robe"), None)
        if together is None:
            groups.append((kind, [table]))
        else:
            together.append(table)
    forms = [make_form(of_group, [options.of(table.name) for table in of_group]) for _, of_group in groups]
    for form in forms:
        given = [table.name for table in form.tables if table.name in options.pretrained]
        if given and options.of(given[0]).form == "robe" and options.of(given[0]).robe_sharded:
            raise RecipeError(
                f"tables.pretrained has rows of {given[0]!r}, whose array is cut over ranks: leave them out, or set "
                "robe_sharded = false"
            )
        if given and len(given) < len(form.tables):
            sharing = ", ".join(table.name for table in form.tables)
            raise RecipeError(
                f"tables.pretrained has rows of {given[0]!r}, but not of all tables that share its array, {sharing}: "
                "give rows of all of them"
            )
    names = [config.name for config in tables] + [stored.name for form in forms for stored in form.stored]
    for name in names:
        if names.count(name) > 1:
            raise RecipeError(f"two tables would be stored as {name!r}: give tables other names")
    return forms


def make_form(tables: Sequence[LocalTable], options: Sequence[TableOptions]) -> Form:
    """The form of some tables that are stored together: several for robe, else one.

    Args:
        tables: whole tables.
        options: of each; they differ in how many rows are hot at most.

    Raises:
        RecipeError: it would not be smaller.
    """
    from windrow.recsys.tables.codes import Codes
    from windrow.recsys.tables.quantised import QuantisedRows
    from windrow.recsys.tables.robe import Robe, RobeTable
    from windrow.recsys.tables.tensor_train import TensorTrain

    kinds: dict[str, Callable[[LocalTable, TableOptions], Form]] = {
        "hashed": Hashed,
        "quotient_remainder": QuotientRemainder,
        "narrow": Narrow,
        "tensor_train": TensorTrain,
        "codes": Codes,
        "int8": QuantisedRows,
        "int4": QuantisedRows,
    }
    own = options[0]
    robe = RobeTable if own.robe_sharded else Robe
    form = robe(tables, own) if own.form == "robe" else kinds[own.form](tables[0], own)
    return WithHotRows(form, options) if any(of_table.keeps_hot_rows for of_table in options) else form


def shared_bytes(form: Form, options: TableOptions) -> dict[str, int]:
    """Memory of what is stored of each table, on each rank that has it: weights and what the optimiser keeps of them.

    What several tables have in common is shared out by their sizes, rounded up.
    """

    def size(stored: Sequence[LocalTable]) -> int:
        own = options.of(form.tables[0].name)
        return sum(
            table.num_rows * (table.dim * torch.float32.itemsize + own.optimizer_bytes_per_row(table.dim))
            for table in stored
        )

    common, numbers = form.index_bytes() + size(form.stored), sum(table.num_rows * table.dim for table in form.tables)
    hot = dict.fromkeys((table.name for table in form.tables), 0)
    if isinstance(form, WithHotRows):
        common = form.index_bytes() + size(form.cold.stored)
        hot = {table.name: size([rows]) for table, rows in zip(form.tables, form.hot, strict=True)}
    return {table.name: hot[table.name] - (-common * table.num_rows * table.dim // numbers) for table in form.tables}


class CompressedTables:
    """The stored tables of one form on this rank.

    Args:
        form: of which tables.
        options: of the collection.
        replicated: whether every rank has them: their gradients must then be summed over ranks.
        device: of the stored tables.
        seed: of their first values; None: they are zero, for what is about to be loaded.
    """

    def __init__(
        self, form: Form, options: TableOptions, *, replicated: bool, device: torch.device | None, seed: int | None
    ) -> None:
        self.form = form
        self.options = options.of(form.tables[0].name)
        self.batch = _StoredTables(form, self.options, replicated=replicated, device=device)
        """The stored tables, their optimiser, and their state."""
        on_cpu = next(self.batch.parameters()).device.type == "cpu"
        form.learns_alone = form.needs_to_learn_alone or (
            form.can_learn_alone and on_cpu and not (replicated or self.options.moves_every_row)
        )
        if seed is None:
            # So that it knows the device.
            form.start(tuple(self.batch.parameters()))
        else:
            self.initialise(seed=seed)

    @staticmethod
    def rank_of(form: Form, plan: Plan) -> int | None:
        """The one rank that looks up all tables of a form; None: several do."""
        ranks = {shard.rank for table in form.tables for shard in plan.shards_of(table.name)}
        copied = any(plan.replicas_of(table.name) for table in form.tables)
        return None if copied or len(ranks) != 1 else ranks.pop()

    def initialise(self, *, seed: int) -> None:
        """Write first values, which depend on seed, names and pretrained rows alone.

        Raises:
            DataError: a file of pretrained rows does not fit its table.
        """
        given = self.form.first_values(seed)
        stored = tuple(self.batch.parameters())
        if given is None:
            self.batch.initialise(seed=seed, scales=self.form.scales)
        else:
            with torch.no_grad():
                for parameter, values in zip(stored, given, strict=True):
                    parameter.copy_(values)
        self.form.start(stored)
        if self.form.tables[0].name in self.options.pretrained:
            self._start_from_dense(stored)

    def _start_from_dense(self, stored: Sequence[Tensor]) -> None:
        """Take what comes nearest to rows that were trained elsewhere; every rank that has the form reads them."""
        dense = [
            load_pretrained(
                self.options.pretrained[table.name],
                table.name,
                table.rows,
                table.columns,
                shape=(table.num_rows, table.dim),
            )
            for table in self.form.tables
        ]
        with torch.no_grad():
            for parameter, values in zip(stored, self.form.nearest(dense), strict=True):
                parameter.copy_(values)

    def step(self, world: "World", *, stage: str) -> None:
        """Learn, then let the form change. Collective over the ranks of the world, where they are replicated."""
        if self.batch.replicated:
            self.batch.sum_row_gradients(world, stage=f"{stage}: hot rows")
        if self.form.learns_alone:
            if self.batch.replicated:
                self.form.gather(world, stage=f"{stage}: rows")
            self.batch.learn_alone()
        self.batch.step()
        for member, rows in self.form.step(tuple(self.batch.parameters()), world if self.batch.replicated else None):
            self.batch.renew(member, rows, range(self.batch.num_cold))
            if self.batch.replicated:
                self.batch.share_rows(world, member, rows, stage=f"{stage}: renewed rows")


def share_forms(world: "World", forms: Sequence[tuple[Form, int | None]], *, stage: str) -> None:
    """Tell all ranks what forms know that one rank alone learns: which rows are hot, say. Collective."""
    for form, rank in forms:
        if rank is None:
            continue
        parts = form.state(replicated=False) if rank == world.rank else []
        for part in world.broadcast_object(parts, root=rank, stage=stage):
            if rank != world.rank:
                form.load(part)


class _StoredTables(DenseGradientTableBatch):
    """The stored tables of a form, and what else it has to save."""

    def __init__(self, form: Form, options: TableOptions, *, replicated: bool, device: torch.device | None) -> None:
        lookups = tuple(range(len(form.stored)))
        num_cold = len(form.cold.stored if isinstance(form, WithHotRows) else form.stored)
        elsewhere = range(num_cold) if form.needs_to_learn_alone else ()
        super().__init__(
            form.stored, lookups, options, replicated=replicated, by_row=form.by_row, elsewhere=elsewhere, device=device
        )
        self._form, self._eps = form, options.eps
        self.num_cold = num_cold
        """Those that are not of hot rows, the first."""

    def learn_alone(self) -> None:
        """Have the form change what it can."""
        states = [list(self._stored(member).values()) for member in range(len(self.members))]
        values, kept = [state[0].detach() for state in states], [state[1] for state in states if len(state) > 1]
        self._form.learn(values, kept, self.learning_rate, self._eps)

    def has_gradients(self) -> bool:
        """See `TableBatch.has_gradients`; the form may keep some."""
        return bool(self._form.waiting) or super().has_gradients()

    def state(self) -> list[StateTensor]:
        """See `TableBatch.state`."""
        parts = super().state() + self._form.state(replicated=self.replicated)
        return [replace(part, fixed=True) for part in parts]

    def load_state(self, tensors: Iterable[StateTensor]) -> None:
        """See `TableBatch.load_state`."""
        super().load_state(given for given in tensors if not self._form.load(given))


class LookupThroughForm(TableBatch):
    """Pieces of compressed tables that are looked up by one call. What is learnt is in `CompressedTables`.

    Args:
        members, lookups, pooled: see `TableBatch`; the members are pieces of the form's tables.
        tables: where their values come from.
        row_ids: as `TableBatch.row_ids`, of rows that are not pooled, where the stored tables are.
    """

    def __init__(
        self,
        members: tuple[LocalTable, ...],
        lookups: tuple[int, ...],
        tables: CompressedTables,
        *,
        pooled: bool,
        row_ids: Tensor | None = None,
    ) -> None:
        super().__init__(members, lookups, pooled=pooled)
        # In a tuple, since the stored tables are modules of someone else.
        self._through = (tables,)
        names = [table.name for table in tables.form.tables]
        pieces = [Segment(names.index(piece.name), piece.rows[0], piece.columns) for piece in members]
        self._segments = [pieces[member] for member in lookups]
        self.row_ids = None if row_ids is None else row_ids.to(next(tables.batch.parameters()).device)

    def forward(self, values: Tensor, offsets: Tensor, per_sample_weights: Tensor | None = None) -> Tensor:
        """See `TableBatch.forward`."""
        (tables,) = self._through
        stored = tuple(tables.batch.parameters())
        return tables.form.pool(self._segments, values, offsets, per_sample_weights, stored)

    def rows(self, values: Tensor, offsets: Tensor) -> Tensor:
        """See `TableBatch.rows`."""
        (tables,) = self._through
        stored = tuple(tables.batch.parameters())
        bounds = segment_bounds(offsets, len(self._segments))
        found = []
        for segment, start, stop in zip(self._segments, bounds, bounds[1:], strict=False):
            each, ids, looked_up = torch.arange(stop - start + 1, device=values.device), values[start:stop], segment
            if self.row_ids is not None:
                ids = self.row_ids[segment.first_row + ids.long()]
                looked_up = segment._replace(first_row=0)
            found.append(tables.form.pool([looked_up], ids, each, None, stored))
        return torch.cat(found)

    def step(self) -> None:
        """Nothing: the stored tables do."""

    def set_learning_rate(self, learning_rate: float) -> None:
        """Nothing: see `step`."""

    def _stored(self, member: int) -> dict[str, Tensor]:
        del member
        return {}
