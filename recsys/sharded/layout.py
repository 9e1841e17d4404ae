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
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from windrow.partition.tables.plan import Plan, Range, Shard
from windrow.recsys.embedding_configs import TableConfig, features_of
from windrow.recsys.tables.table import LocalTable

__all__ = ["Layout", "Lookup", "OwnerLayout", "Piece", "Request", "make_layout", "pieces_of"]

INT32_ROWS = 1 << 31


@dataclass(frozen=True, slots=True)
class Request:
    """Ids of one feature that an owner gets from every rank, less the first row: row numbers of its pieces."""

    feature: int
    """Place in `Layout.features`."""
    rows: Range
    """First row that the owner holds, and the row after the last."""
    whole: bool
    """Whether these are all rows of the table, so that ids need not be sorted out."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """One segment of an owner's input, and one block of columns of its output."""

    request: int
    """Place in `OwnerLayout.requests`."""
    member: int
    """Place in `OwnerLayout.members`."""
    columns: Range
    """Columns of the owner's output."""
    output: Range
    """Columns of the collection's output that these are, or are a part of."""

    @property
    def dim(self) -> int:
        """Columns."""
        return self.columns[1] - self.columns[0]


@dataclass(frozen=True, slots=True)
class OwnerLayout:
    """What one rank holds and is asked for."""

    members: tuple[LocalTable, ...]
    requests: tuple[Request, ...]
    lookups: tuple[Lookup, ...]

    @property
    def width(self) -> int:
        """Columns of the owner's output."""
        return self.lookups[-1].columns[1] if self.lookups else 0


@dataclass(frozen=True, slots=True)
class Layout:
    """Who gets which ids, and where the vectors that come back belong; the same on every rank."""

    features: tuple[str, ...]
    """All features, each once, in order of the tables."""
    rows: tuple[int, ...]
    """Ids of a feature must be below this: rows of the smallest table that it looks into."""
    outputs: tuple[tuple[int, int, Range], ...]
    """(table, feature, columns of the collection's output), in order of the tables."""
    owners: tuple[OwnerLayout, ...]
    """One for each rank."""
    replicated: OwnerLayout
    """What every rank holds and looks up by itself."""
    wide_ids: bool
    """Whether a piece has more rows than int32 can count."""

    @property
    def width(self) -> int:
        """Columns of the collection's output."""
        return self.outputs[-1][2][1]

    @property
    def is_direct(self) -> bool:
        """Whether one owner holds every table whole, so that its output is the collection's."""
        if len(self.owners) > 1 or self.replicated.lookups:
            return False
        lookups, requests = self.owners[0].lookups, self.owners[0].requests
        return all(
            lookup.output == output and requests[lookup.request].whole
            for lookup, (_, _, output) in zip(lookups, self.outputs, strict=False)
        ) and len(lookups) == len(self.outputs)


@dataclass(frozen=True, slots=True)
class Piece:
    """A block of columns on its way from an owner's output to the collection's, and its gradient on the way back."""

    owner: int
    """Place in `Layout.owners`; their number for `Layout.replicated`."""
    columns: Range
    """Columns of the owner's output."""
    output: Range
    """Columns of the collection's output."""
    add: bool
    """Whether an earlier piece filled these columns already, so that this one is added."""


def make_layout(tables: Sequence[TableConfig], plan: Plan, size: int) -> Layout:
    """Lay a plan out.

    Args:
        tables: configurations, in the order of the result.
        plan: covers these tables on `size` ranks, as `check_plan` has it.
        size: number of ranks.

    Returns:
        The layout. On one rank a replicated table is one like any other.
    """
    features = tuple(dict.fromkeys(feature for table in tables for feature in features_of(table)))
    outputs: list[tuple[int, int, Range]] = []
    for number, table in enumerate(tables):
        for feature in features_of(table):
            start = outputs[-1][2][1] if outputs else 0
            outputs.append((number, features.index(feature), (start, start + table.embedding_dim)))
    copies = [
        Shard(table.name, 0, (0, table.num_embeddings), (0, table.embedding_dim))
        for table in tables
        if table.name in plan.replicated
    ]
    alone = size == 1
    shards = [list(plan.shards_on(rank)) + (copies if alone else []) for rank in range(size)]
    owners = tuple(_lay_out(tables, held, outputs) for held in shards)
    replicated = _lay_out(tables, [] if alone else copies, outputs)
    rows = tuple(
        min(table.num_embeddings for table in tables if feature in features_of(table)) for feature in features
    )
    most = max(member.num_rows for owner in (*owners, replicated) for member in owner.members)
    return Layout(features, rows, tuple(outputs), owners, replicated, most >= INT32_ROWS)


def pieces_of(layout: Layout) -> tuple[Piece, ...]:
    """How owners' outputs become the collection's.

    Blocks are cut wherever a piece of the same table begins or ends, so that the first to come to a column can be
    copied and the later ones added, and joined again where neighbours go the same way.

    Args:
        layout: of all owners.

    Returns:
        Pieces in the order in which they must be applied; without ``add`` they fill every column exactly once.
    """
    sources = [
        (number, lookup)
        for number, owner in enumerate((*layout.owners, layout.replicated))
        for lookup in owner.lookups
    ]
    cuts = sorted({column for _, lookup in sources for column in lookup.output})
    filled: set[int] = set()
    pieces: list[Piece] = []
    for owner, lookup in sources:
        inside = [cut for cut in cuts if lookup.output[0] <= cut <= lookup.output[1]]
        for start, stop in pairwise(inside):
            first = lookup.columns[0] + start - lookup.output[0]
            piece = Piece(owner, (first, first + stop - start), (start, stop), add=start in filled)
            filled.add(start)
            if pieces and _continues(pieces[-1], piece):
                last = pieces.pop()
                piece = Piece(
                    owner, (last.columns[0], piece.columns[1]), (last.output[0], stop), add=piece.add
                )
            pieces.append(piece)
    return tuple(pieces)


def _lay_out(
    tables: Sequence[TableConfig], held: Sequence[Shard], outputs: Sequence[tuple[int, int, Range]]
) -> OwnerLayout:
    order = {table.name: number for number, table in enumerate(tables)}
    shards = sorted(held, key=lambda shard: (order[shard.table], shard.rows, shard.columns))
    members = tuple(LocalTable(name=shard.table, rows=shard.rows, columns=shard.columns) for shard in shards)
    blocks: list[tuple[int, int, Request]] = []
    for member, shard in enumerate(shards):
        number = order[shard.table]
        whole = shard.rows == (0, tables[number].num_embeddings)
        for table, feature, (start, _) in outputs:
            if table == number:
                blocks.append((start + shard.columns[0], member, Request(feature, shard.rows, whole)))
    # Members ascend, as batches of tables want them, and within a member the collection's columns.
    blocks.sort(key=lambda block: (block[1], block[0]))
    requests = tuple(dict.fromkeys(request for _, _, request in blocks))
    lookups: list[Lookup] = []
    for output, member, request in blocks:
        start, dim = lookups[-1].columns[1] if lookups else 0, members[member].dim
        lookups.append(Lookup(requests.index(request), member, (start, start + dim), (output, output + dim)))
    return OwnerLayout(members, requests, tuple(lookups))


def _continues(last: Piece, piece: Piece) -> bool:
    return (last.owner, last.columns[1], last.output[1], last.add) == (
        piece.owner,
        piece.columns[0],
        piece.output[0],
        piece.add,
    )
