"""Who gets which ids, and where the vectors that come back belong: arithmetic on tables, plan and number of ranks.

Two tables of 8 columns, `user` whole on rank 0, `item` cut by rows; feature u looks into `user`, i and j into `item`::

                 members                  requests                       lookups, side by side
    rank 0       user                     u, all ids                     u -> columns 0-7
                 item rows 0-499          i, ids below 500               i -> columns 8-15, a part
                                          j, ids below 500               j -> columns 16-23, a part
    rank 1       item rows 500-999        i, ids from 500 on             i -> columns 8-15, a part
                                          j, ids from 500 on             j -> columns 16-23, a part

A request is what every rank sends to an owner for one feature; two pieces of a table with the same rows on one rank
share it. A lookup is one segment of the owner's batch of tables, and one block of columns of what it returns.

Features come in groups. Those of group 0 have a row for each sample; those of any other are deduplicated together and
have a row for each distinct one, so that groups differ in their number of rows. Of a table that is cut by rows an
owner gets those bags alone that have ids of its rows, and sends back a vector for each. Kernels want one number of bags
for all lookups of a batch of tables: tables whose features are of the same groups make one batch, as far as they are
stored and learn alike, and tables that are cut by rows make batches of their own, one for each width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.partition.tables.plan import Plan, Range, Shard
from windrow.recsys.tables.options import TableConfig, features_of
from windrow.training.shard_files import LocalTable

__all__ = ["Band", "IndexMap", "Layout", "Lookup", "OwnerLayout", "Request", "make_layout"]

Ints: TypeAlias = npt.NDArray[np.int64]
_INT32_ROWS = 1 << 31


@dataclass(frozen=True, slots=True)
class Request:
    """Ids of one feature that an owner gets from every rank, less the first row: row numbers of its pieces."""

    feature: int
    """Place in `Layout.features`."""
    rows: Range
    """First row that the owner holds, and the row after the last."""
    whole: bool
    """Whether these are all rows of the table, so that ids need not be sorted out, and bags without ids count."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """One segment of an owner's input, and one block of columns of its output."""

    request: int
    """Place in `OwnerLayout.requests`."""
    member: int
    """Place in `OwnerLayout.members`."""
    columns: Range
    """Columns of its batch's output."""
    output: int
    """Place in `Layout.outputs`."""
    part: Range
    """Columns of that output that these are."""

    @property
    def dim(self) -> int:
        """Columns."""
        return self.columns[1] - self.columns[0]


@dataclass(frozen=True, slots=True)
class Band:
    """Neighbouring columns of one batch's output that go home together, as one block of a message.

    Those of tables whose features are of one group, with a row for each of its rows. What is added are vectors, lookup
    after lookup, no two of which belong to the same place: of tables that are cut by rows one for each list that has
    ids there, all of one width; of further rows on every rank one for each list of one lookup.
    """

    batch: int
    """Place in `OwnerLayout.batches`."""
    group: int
    """Of the features."""
    added: bool
    """Whether its vectors are added to what other bands have for the same columns, or it is copied."""
    lookups: Range
    """First lookup, and the one after the last."""
    columns: Range
    """Columns of the batch's output."""


@dataclass(frozen=True, slots=True)
class OwnerLayout:
    """What one rank holds and is asked for."""

    members: tuple[LocalTable, ...]
    """Batch by batch."""
    requests: tuple[Request, ...]
    """Group by group."""
    request_groups: tuple[int, ...]
    """Group of each request."""
    cut: tuple[int, ...]
    """Requests for some rows of a table to another rank, if pooled: of these bags without ids are left out."""
    lookups: tuple[Lookup, ...]
    """Batch by batch."""
    batches: tuple[Range, ...]
    """Of each batch of tables the first lookup, and the one after the last. Pooled, lookups that have fewer bags than
    others of the batch get empty ones at their end; unpooled, rows of a batch have one length."""
    bands: tuple[Band, ...]
    """Batch by batch; they cover all lookups."""


@dataclass(frozen=True, slots=True, eq=False)
class IndexMap:
    """For each id of the features of one group: which requests ask for its row, and which row it is there.

    The rows of a feature's cut tables fall into pieces between all cuts. Rows 0-3 are on rank 0, rows 4-9 on rank 1,
    but for columns 4-7, whose rows 4-9 are on rank 2::

        piece        0       1             requests (of this feature)   0: rank 0, rows 0-3
        bounds       0       4             1: rank 1, rows 4-9          2: rank 2, rows 4-9
        first_asked  0       1      3
        asked        0       1  2          id 7 is in piece 1: row 7 - 4 of the requests 1 and 2
    """

    bounds_of_owners: Ints
    """[owners + 1] where the requests to each begin."""
    requests: Ints
    """[r, 4] feature, first row, number among the requests of cut tables or -1 for all ids, and whether bags without
    ids are left out; owner after owner."""
    features: Ints
    """[cut features, 3] feature, its first piece, and the one after the last."""
    bounds: Ints
    """[pieces] first row of each."""
    first_asked: Ints
    """[pieces + 1] where the requests for each begin in `asked`."""
    asked: Ints
    """Rows of `requests`."""

    def of_owner(self, number: int) -> slice:
        """The requests to one owner."""
        return slice(*self.bounds_of_owners[number : number + 2].tolist())


@dataclass(frozen=True, slots=True)
class Layout:
    """Who gets which ids, and where the vectors that come back belong; the same on every rank."""

    features: tuple[str, ...]
    """All features, each once, in order of the tables."""
    groups: tuple[int, ...]
    """Group of each feature; 0 for those with a row for each sample."""
    num_groups: int
    """Groups, with group 0; some may have no features."""
    rows: tuple[int, ...]
    """Ids of a feature must be below this: rows of the smallest table that it looks into."""
    outputs: tuple[tuple[int, int, Range], ...]
    """(table, feature, columns where the outputs of its group stand side by side), in order of the tables."""
    owners: tuple[OwnerLayout, ...]
    """One for each rank."""
    replicated: OwnerLayout
    """What every rank holds and looks up by itself."""
    wide_ids: bool
    """Whether a piece has more rows than int32 can count."""
    index: tuple[IndexMap, ...]
    """For each group: ids to `owners`, and to `replicated` at the end."""

    @property
    def is_direct(self) -> bool:
        """Whether one owner holds every table whole and nothing is deduplicated: its output is the collection's."""
        if len(self.owners) > 1 or self.replicated.lookups or any(self.groups) or len(self.owners[0].batches) > 1:
            return False
        lookups, requests = self.owners[0].lookups, self.owners[0].requests
        return [lookup.output for lookup in lookups] == [*range(len(self.outputs))] and all(
            requests[lookup.request].whole and lookup.columns == self.outputs[lookup.output][2] for lookup in lookups
        )


def make_layout(
    tables: Sequence[TableConfig],
    plan: Plan,
    size: int,
    groups: Sequence[Sequence[str]] = (),
    kinds: Sequence[int] | None = None,
    *,
    pooled: bool = True,
    owned_rows: Mapping[str, int] | None = None,
) -> Layout:
    """Lay a plan out.

    Args:
        tables: configurations, in the order of the result.
        plan: covers these tables on `size` ranks, as `check_plan` has it.
        size: number of ranks.
        groups: features that are deduplicated together; may name others, too.
        kinds: for each table a number that tables share which are stored and learn alike; None: all do.
        pooled: whether rows are summed, so that all lookups of a batch have one number of bags; or rows of a batch have
            one length.
        owned_rows: of tables in which copies of some rows come after them: these make batches of their own.

    Returns:
        The layout. On one rank replicated rows are like any others.
    """
    features = tuple(dict.fromkeys(feature for table in tables for feature in features_of(table)))
    copies = [
        Shard(table.name, 0, replica.rows, (0, table.embedding_dim))
        for table in tables
        for replica in plan.replicas_of(table.name)
    ]
    group_of = {feature: number for number, names in enumerate(groups, 1) for feature in names}
    feature_groups = tuple(group_of.get(feature, 0) for feature in features)
    outputs: list[tuple[int, int, Range]] = []
    widths = [0] * (1 + len(groups))
    for number, table in enumerate(tables):
        for name in features_of(table):
            group, start = group_of.get(name, 0), widths[group_of.get(name, 0)]
            widths[group] += table.embedding_dim
            outputs.append((number, features.index(name), (start, widths[group])))
    alone = size == 1
    shards = [list(plan.shards_on(rank)) + (copies if alone else []) for rank in range(size)]
    kinds = kinds or [0] * len(tables)
    lay_out = partial(
        _lay_out,
        tables,
        outputs=outputs,
        feature_groups=feature_groups,
        kinds=kinds,
        pooled=pooled,
        owned_rows=owned_rows or {},
    )
    owners = tuple(lay_out(held) for held in shards)
    replicated = lay_out([] if alone else copies, everywhere=True)
    rows = tuple(min(table.num_embeddings for table in tables if feature in features_of(table)) for feature in features)
    most = max(member.num_rows for owner in (*owners, replicated) for member in owner.members)
    return Layout(
        features,
        feature_groups,
        1 + len(groups),
        rows,
        tuple(outputs),
        owners,
        replicated,
        most >= _INT32_ROWS,
        tuple(_index((*owners, replicated), group) for group in range(1 + len(groups))),
    )


def _index(owners: Sequence[OwnerLayout], group: int) -> IndexMap:
    """Cut the rows of the group's features wherever a request begins or ends."""
    rows: list[tuple[int, int, int, bool]] = []
    bounds_of_owners = [0]
    cut: dict[int, list[tuple[int, Range]]] = {}
    for owner in owners:
        for place, (request, of_group) in enumerate(zip(owner.requests, owner.request_groups, strict=True)):
            if of_group == group:
                number = -1 if request.whole else sum(len(found) for found in cut.values())
                if not request.whole:
                    cut.setdefault(request.feature, []).append((len(rows), request.rows))
                rows.append((request.feature, request.rows[0], number, place in owner.cut))
        bounds_of_owners.append(len(rows))
    features: list[tuple[int, int, int]] = []
    bounds: list[int] = []
    first_asked, asked = [0], list[int]()
    for feature, ranges in cut.items():
        # Where the last one ends no piece begins: ids are below.
        *begins, _ = sorted({0, *(bound for _, of_request in ranges for bound in of_request)})
        features.append((feature, len(bounds), len(bounds) + len(begins)))
        for begin in begins:
            asked += [number for number, (start, stop) in ranges if start <= begin < stop]
            first_asked.append(len(asked))
        bounds += begins
    return IndexMap(
        np.array(bounds_of_owners, np.int64),
        np.array(rows, np.int64).reshape(-1, 4),
        np.array(features, np.int64).reshape(-1, 3),
        *(np.array(found, np.int64) for found in (bounds, first_asked, asked)),
    )


def _lay_out(
    tables: Sequence[TableConfig],
    held: Sequence[Shard],
    *,
    outputs: Sequence[tuple[int, int, Range]],
    feature_groups: Sequence[int],
    kinds: Sequence[int],
    pooled: bool,
    owned_rows: Mapping[str, int],
    everywhere: bool = False,
) -> OwnerLayout:
    """Lay one owner out, or what is everywhere: every bag counts there, since nothing travels."""
    order = {table.name: number for number, table in enumerate(tables)}
    groups_of_table = [
        tuple(sorted({feature_groups[feature] for number, feature, _ in outputs if number == table}))
        for table in range(len(tables))
    ]

    def batch_of(shard: Shard) -> tuple[bool, bool, int, tuple[int, ...], int]:
        """Equal for shards that one batch can look up, first whether they are cut."""
        number, width = order[shard.table], shard.columns[1] - shard.columns[0]
        are_copies = shard.rows[0] >= owned_rows.get(shard.table, shard.rows[1])
        if not pooled:
            return False, are_copies, width, (), kinds[number]
        is_cut = not everywhere and shard.rows != (0, tables[number].num_embeddings)
        return is_cut, are_copies, width if is_cut else 0, groups_of_table[number], kinds[number]

    shards = sorted(held, key=lambda shard: (batch_of(shard), order[shard.table], shard.rows, shard.columns))
    members = tuple(LocalTable(name=shard.table, rows=shard.rows, columns=shard.columns) for shard in shards)
    # Of each member, which of the row ranges that are held of its table: vectors of two of them may be of one list.
    ranges, numbers = list[int](), dict[str, dict[Range, int]]()
    for shard in shards:
        of_table = numbers.setdefault(shard.table, {})
        ranges.append(of_table.setdefault(shard.rows, len(of_table)))
    # Members ascend, as batches of tables want them, and within a member the outputs.
    blocks = [
        (member, output, Request(feature, shard.rows, shard.rows == (0, tables[table].num_embeddings)))
        for member, shard in enumerate(shards)
        for output, (table, feature, _) in enumerate(outputs)
        if table == order[shard.table]
    ]
    requests = tuple(
        sorted(dict.fromkeys(request for _, _, request in blocks), key=lambda request: feature_groups[request.feature])
    )
    lookups: list[Lookup] = []
    batches: list[Range] = []
    bands: list[Band] = []
    for (is_cut, *_), of_batch in groupby(blocks, key=lambda block: batch_of(shards[block[0]])):
        first, column = len(lookups), 0

        def band_of(block: tuple[int, int, Request], *, is_cut: bool = is_cut) -> tuple[int, bool, tuple[int, ...]]:
            """Equal for blocks of one band, which begins with their group, and whether they are added."""
            member, output, request = block
            is_more = everywhere and ranges[member] > 0
            number = (ranges[member],) if is_cut else (member, output) if is_more else ()
            return feature_groups[request.feature], is_cut or is_more, number

        for (group, added, _), of_band in groupby(of_batch, key=band_of):
            start = len(lookups), column
            for member, output, request in of_band:
                columns = (column, column + members[member].dim)
                lookups.append(Lookup(requests.index(request), member, columns, output, members[member].columns))
                column = columns[1]
            bands.append(Band(len(batches), group, added, (start[0], len(lookups)), (start[1], column)))
        batches.append((first, len(lookups)))
    request_groups = tuple(feature_groups[request.feature] for request in requests)
    some = tuple(n for n, request in enumerate(requests) if pooled and not everywhere and not request.whole)
    return OwnerLayout(members, requests, request_groups, some, tuple(lookups), tuple(batches), tuple(bands))
