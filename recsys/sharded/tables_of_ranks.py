"""Tables as ranks hold them, and as planners know them: an array of ROBE that is cut over ranks is one like any other.

    tables     item 10,000,000 x 64, user 3,000,000 x 64          what models and batches know
    array      item.array 26,000 x 32                             what plans, owners and checkpoints know

    id 7 of feature item     ->  block 3991, times -1             columns 0 to 31 of its vector
                                 block  208, times  1             columns 32 to 63

Each feature of such a table becomes one for each block of a vector (`windrow.recsys.tables.robe.RobeTable`). Its ids
are rows of the array, with a sign as their weight, so that pooled blocks stand side by side as the pooled vector. Means
are sums whose weights are divided by the number of ids. All ids of the collection have weights then, 4 bytes each.

Copies of rows stand behind the rows of their table, and every rank holds them (`windrow.recsys.sharded.copies`).
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np

from windrow.comm.errors import RecipeError
from windrow.partition.tables.plan import Copies, Plan, Replica, Shard, TableSpec
from windrow.recsys.sharded.copies import CopyIndex
from windrow.recsys.sharded.layout import Layout, make_layout
from windrow.recsys.sharded.packing import Samples
from windrow.recsys.tables.compressed import make_forms, shared_bytes
from windrow.recsys.tables.options import (
    EmbeddingBagConfig,
    TableConfig,
    TableOptions,
    TableOverrides,
    check_names,
    embedding_names,
    features_of,
    pooling_of,
)
from windrow.recsys.tables.robe import RobeTable

__all__ = ["BlockFeature", "TablesOfRanks", "checked_groups", "table_specs"]


class BlockFeature(NamedTuple):
    """What a feature of an array is made of: one block of the vectors that some feature looks up."""

    form: RobeTable
    table: int
    """Place in the form's tables."""
    feature: str
    """Of the batch."""
    block: int
    """Of a vector."""
    is_mean: bool


class TablesOfRanks:
    """The tables of a collection as ranks hold them: those of one array are one.

    Args:
        tables: configurations of a collection.
        options: how they are stored.
        groups: features that are deduplicated together.
        copies: rows that every rank has copies of.

    Raises:
        RecipeError: see `make_forms`; or vectors of an array are not pooled.
    """

    def __init__(
        self,
        tables: Sequence[TableConfig],
        options: TableOptions,
        groups: Sequence[Sequence[str]] = (),
        copies: Sequence[Copies] = (),
    ) -> None:
        forms = make_forms(tables, options)
        arrays = [form for form in forms if isinstance(form, RobeTable)]
        self.forms = [form for form in forms if not isinstance(form, RobeTable)]
        """Of the tables that are held under their own names."""
        self.arrays = {form.stored[0].name: form for form in arrays}
        """By the array's name."""
        self.blocks: dict[str, BlockFeature] = {}
        """What each feature of an array is made of."""
        self.tables: list[TableConfig] = []
        self.names: list[str] = []
        """Of each output, the key of the collection's result that it is a part of."""
        configs = {table.name: table for table in tables}
        names = dict(zip(configs, embedding_names(tables), strict=True))
        of_table = {table.name: form for form in arrays for table in form.tables}
        per_table = {name: own for name, own in options.per_table.items() if name not in of_table}
        for config in tables:
            form = of_table.get(config.name)
            if form is None:
                self.tables.append(config)
                self.names += names[config.name]
            elif form.tables[0].name == config.name:
                own, array = options.of(config.name), form.stored[0]
                own = replace(own, form="dense", initial_scale=form.scales[0])
                per_table[array.name] = TableOverrides(**{f.name: getattr(own, f.name) for f in fields(TableOverrides)})
                features = self._features(form, configs, names)
                self.tables.append(EmbeddingBagConfig(array.num_rows, array.dim, array.name, feature_names=features))
        self.rows = {table.name: table.num_embeddings for table in self.tables}
        """Of each of `tables`, without copies."""
        self.copied = {rows.table: CopyIndex(rows.ids, self.rows[rows.table]) for rows in copies}
        """Of each table that has copies."""
        for number, table in enumerate(self.tables):
            if table.name in self.copied:
                self.tables[number] = copy(table)
                self.tables[number].num_embeddings += len(self.copied[table.name].ids)
        self.options = replace(options, per_table=per_table)
        """Of `tables`."""
        self.groups = tuple(
            tuple(name for name in group) + tuple(name for name, block in self.blocks.items() if block.feature in group)
            for group in groups
        )
        self._configs, self._given_groups = tables, groups

    def _features(
        self, form: RobeTable, configs: Mapping[str, TableConfig], names: Mapping[str, Sequence[str]]
    ) -> list[str]:
        """The features of an array, block by block of each key of its tables."""
        found = []
        for number, table in enumerate(form.tables):
            config = configs[table.name]
            if not hasattr(config, "pooling"):
                raise RecipeError(
                    f"table {table.name!r}: robe_sharded = true goes with pooled features, and its rows are looked up "
                    f"one by one: set tables.{table.name}.robe_sharded = false"
                )
            for feature, key in zip(features_of(config), names[table.name], strict=True):
                for block in range(table.dim // form.block):
                    name = f"{form.stored[0].name}: block {block} of {key}"
                    self.blocks[name] = BlockFeature(form, number, feature, block, pooling_of(config) == "MEAN")
                    self.names.append(key)
                    found.append(name)
        return found

    def layout(self, plan: Plan, size: int, kinds: Sequence[int] | None = None, *, pooled: bool) -> Layout:
        """Lay the tables out: see `make_layout`. Copies are replicated."""
        copies = [Replica(name, (found.rows, found.rows + len(found.ids))) for name, found in self.copied.items()]
        whole = replace(plan, replicated=(*plan.replicated, *copies))
        return make_layout(self.tables, whole, size, self.groups, kinds, pooled=pooled, owned_rows=self.rows)

    def copied_features(self, layout: Layout) -> dict[int, CopyIndex]:
        """The features of tables with copies, by place in the layout."""
        return {
            layout.features.index(feature): self.copied[table.name]
            for table in self.tables
            if table.name in self.copied
            for feature in features_of(table)
        }

    def layout_of_batches(self, layout: Layout) -> Layout:
        """Features, groups and outputs as batches and results have them; that of `tables` is given."""
        if not (self.arrays or self.copied):
            return layout
        shards = [Shard(table.name, 0, (0, table.num_embeddings), (0, table.embedding_dim)) for table in self._configs]
        return make_layout(self._configs, Plan(tuple(shards)), 1, self._given_groups)

    def samples(self, given: Sequence[Samples], layout_of_batches: Layout, layout: Layout) -> Sequence[Samples]:
        """The features of `tables`, group by group, from those of a batch.

        Cost: one pass over the ids, and two over what comes out.
        """
        if not self.arrays:
            return given
        place = {name: number for number, name in enumerate(layout_of_batches.features)}
        return [self._group(group, number, place, layout) for number, group in enumerate(given)]

    def _group(self, given: Samples, group: int, place: Mapping[str, int], layout: Layout) -> Samples:
        numbers = [number for number, of_group in enumerate(layout.groups) if of_group == group]
        rows, ids, weights = [], [], []
        for name in (layout.features[number] for number in numbers):
            block = self.blocks.get(name)
            row = given.keys[place[name if block is None else block.feature]]
            rows.append(row)
            own = slice(*given.starts[row : row + 2].tolist())
            of_ids = given.weights[own] if len(given.weights) else np.ones(own.stop - own.start, np.float32)
            if block is None:
                ids.append(given.ids[own])
                weights.append(of_ids)
                continue
            if block.block == 0:
                places, signs = block.form.blocks(block.table, given.ids[own])
                if block.is_mean:
                    lengths = given.lengths[row]
                    of_ids = of_ids / np.repeat(lengths, lengths).astype(np.float32)
                signs *= of_ids
            ids.append(places[block.block])
            weights.append(signs[block.block])
        starts = np.cumsum([0, *map(len, ids)])
        empty = np.empty(0, np.int64), np.empty(0, np.float32)
        return Samples(
            dict(zip(numbers, range(len(numbers)), strict=True)),
            given.lengths[rows],
            np.concatenate([empty[0], *ids]),
            np.concatenate([empty[1], *weights]),
            starts,
            given.one_each[rows],
            given.inverse,
        )


def checked_groups(groups: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Names of features that are deduplicated together; RecipeError where one is in two groups."""
    if any(isinstance(group, str) for group in groups):
        raise RecipeError(f"groups = {list(groups)}: each is a sequence of names, such as [['cart', 'sellers']]")
    features = [feature for group in groups for feature in group]
    twice = sorted({feature for feature in features if features.count(feature) > 1})
    if twice:
        raise RecipeError(f"groups name {twice[0]!r} twice: a feature is in one group")
    return tuple(tuple(group) for group in groups)


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
    names = [table.name for table in tables]
    check_names("tables", options.per_table, names)
    check_names("tables.pretrained", options.pretrained, names)
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
                moves_every_row=own.moves_every_row,
                lookups_per_sample=float(len(features)),
                compressed_bytes=compressed.get(table.name),
                pooled=hasattr(table, "pooling"),
                by_rows=table.name in held.arrays,
            )
        )
    return specs
