"""Tables go from the ranks that store them to those that are to store them, without a detour by disk.

What a piece of the new plan has in common with one of the old is a part; only parts travel::

    old plan                         new plan                       rank 1 gets
    rank 0   rows 0-499              rank 0   columns 0-7           rows 0-499, columns 8-15, of rank 0
    rank 1   rows 500-999            rank 1   columns 8-15          rows 500-999, columns 8-15, of its own

Every rank gets a bounded number of values in a round, which is one ragged exchange; ranks know each other's pieces, so
that sizes need no message. Parts are put together by the rule of checkpoints that are read under another plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from windrow.recsys.tables.table import TableBatch
from windrow.training.replicas import digest
from windrow.training.shard_files import ROW_IDS, LocalTable, StateTensor, StoredTables, join_parts

if TYPE_CHECKING:
    from windrow.comm.world import World

__all__ = ["Parcel", "move_state", "plan_rounds", "share_first_values"]

VALUES_AT_ONCE = 1 << 22
"""Values that a rank sends, and gets, in a round at most: 16 MB of float32."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """Some rows of a tensor that one rank is to store, and who has their values."""

    place: int
    """Of the tensor among all that the rank is to store."""
    wanted: LocalTable
    """These rows, in all columns of its piece."""
    parts: tuple[tuple[int, int, LocalTable], ...]
    """Rank, place among what that one stores, and what this has of them; by rows and columns."""


def share_first_values(
    world: "World", peers: "World | None", tables: Sequence[TableBatch], written: set[str], *, stage: str
) -> None:
    """Give what several ranks hold the values that the first of them has. Collective.

    Processors of other kinds may round first values otherwise, and find other codes or directions for pretrained rows;
    and what a user's function writes may differ from process to process.

    Args:
        world: the ranks, which all hold replicated tables.
        peers: those that hold the other tables of this rank; None: no others do.
        tables: that this rank stores.
        written: names of tables that a user's function has written.
        stage: name of the traffic; must agree.

    Cost: a hash of their values, and the messages of those that differ; memory for one table beside them.
    """
    _share(world, [batch for batch in tables if batch.replicated], stage)
    if peers is not None:
        own = [batch for batch in tables if not batch.replicated]
        _share(peers, [batch for batch in own if any(member.name in written for member in batch.members)], stage)


def _share(world: "World", tables: Sequence[TableBatch], stage: str) -> None:
    parts = [(batch, part) for batch in tables for part in batch.state() if part.is_value]
    if world.size == 1 or not parts:
        return
    everyone = world.all_gather_object([digest(part.tensor) for _, part in parts], stage=stage)
    for (batch, part), *found in zip(parts, *everyone, strict=True):
        if len(set(found)) > 1:
            pieces = part.tensor.detach().flatten().split(VALUES_AT_ONCE)
            values = torch.cat([world.broadcast_object(piece.cpu(), root=0, stage=stage) for piece in pieces])
            batch.load_state([replace(part, tensor=values.view(part.tensor.shape))])


def move_state(world: "World", before: Sequence[StoredTables], after: Sequence[StoredTables], *, stage: str) -> None:
    """Fill tables with the values and the optimiser states of others, which are cut in another way. Collective.

    Cost: each value travels once to each rank that is to store it and does not yet. Memory beside both: what a rank
    sends and gets in a round (`VALUES_AT_ONCE`), packed and unpacked; and what is never cut once more (codes, hot
    rows' numbers).

    Args:
        world: the ranks.
        before: what this rank stores; on all ranks together all of each table in `after`.
        after: what it is to store; of the same optimisers.
        stage: name of the traffic; must agree.
    """
    held = [part for batch in before for part in batch.state() if part.name != ROW_IDS]
    targets = [(batch, part) for batch in after for part in batch.state() if part.name != ROW_IDS]
    everyone = world.all_gather_object(
        ([_described(part) for part in held], [_described(part) for _, part in targets]), stage=stage
    )
    all_held = [of_rank for of_rank, _ in everyone]
    shapes = {(part.piece.name, part.name): part.tensor.shape for of_rank in all_held for part in of_rank}
    # What is never cut may not have its place yet, such as codes before they are learnt.
    targets = [
        (batch, part if part.axes else replace(part, tensor=part.tensor.new_empty(shapes[part.piece.name, part.name])))
        for batch, part in targets
    ]
    most = max(VALUES_AT_ONCE // world.size, 1)
    rounds = [plan_rounds(all_held, wanted, rank, most) for rank, (_, wanted) in enumerate(everyone)]
    for now in zip_longest(*rounds, fillvalue=[]):
        _move_round(world, held, [part for _, part in targets], now, stage=stage)
    for batch, part in targets:
        if not part.axes:
            batch.load_state([part])


def plan_rounds(
    before: Sequence[Sequence[StateTensor]], after: Sequence[StateTensor], rank: int, most: int
) -> list[list[Parcel]]:
    """What one rank gets from each rank, itself included, round by round.

    Args:
        before: what each rank stores; values do not count.
        after: what the rank is to store; likewise.
        rank: which one.
        most: values in a round, unless a row has more.

    Returns:
        Rounds of one dtype each. What a rank has a copy of comes from itself; what is never cut from one rank.
    """
    holders: dict[tuple[str, str], list[tuple[int, int, LocalTable]]] = {}
    for holder, parts in enumerate(before):
        for place, part in enumerate(parts):
            if holder == rank or not part.replicated:
                holders.setdefault((part.piece.name, part.name), []).append((holder, place, _extent(part)))
    rounds: list[list[Parcel]] = []
    room, dtypes = 0, [part.tensor.dtype for part in after]
    last: torch.dtype | None = None
    for place in sorted(range(len(after)), key=lambda place: str(dtypes[place])):
        part, dtype = after[place], dtypes[place]
        sources, whole = holders[part.piece.name, part.name], part.piece
        if not part.axes:
            sources = [min(sources, key=lambda source: source[0] != rank)]
            whole = sources[0][2]
        rows_at_once = max(most // whole.dim, 1) if whole.dim else 1
        for start in range(*whole.rows, rows_at_once):
            wanted = replace(whole, rows=(start, min(start + rows_at_once, whole.rows[1])))
            found = [(holder, of_holder, wanted.common(extent)) for holder, of_holder, extent in sources]
            chosen = sorted((one for one in found if one[2].num_cells), key=lambda one: (one[2].rows, one[2].columns))
            if dtype != last or room < wanted.num_cells:
                rounds.append([])
                last, room = dtype, most
            rounds[-1].append(Parcel(place, wanted, tuple(chosen)))
            room -= wanted.num_cells
    return rounds


def _move_round(
    world: "World",
    held: Sequence[StateTensor],
    targets: Sequence[StateTensor],
    now: Sequence[Sequence[Parcel]],
    *,
    stage: str,
) -> None:
    """Send what each rank gets from this one, and write what this one gets."""
    me, mine = world.rank, now[world.rank]
    sends, receives, arriving = [], [], []
    for peer, of_peer in enumerate(now):
        sent, expected = ([] if peer == me else _parts_of(rank, found) for rank, found in ((me, of_peer), (peer, mine)))
        values = [_view(held[place], common).reshape(-1) for _, place, common in sent]
        sends.append(torch.cat(values) if values else torch.empty(0))
        sizes = [_shape(targets[to], common).numel() for to, _, common in expected]
        like = targets[mine[0].place].tensor if mine else torch.empty(0)
        receives.append(like.new_empty(sum(sizes)))
        arriving.append(iter(receives[peer].split(sizes)))
    world.start_exchange(sends, receives, stage=stage).wait()
    for parcel in mine:
        target = targets[parcel.place]
        parts = [
            (common, _view(held[place], common))
            if holder == me
            else (common, next(arriving[holder]).view(_shape(target, common)))
            for holder, place, common in parcel.parts
        ]
        whole = join_parts(parcel.wanted, parts, len(_shape(target, parcel.wanted)), like=target.tensor)
        _view(target, parcel.wanted).copy_(whole)


def _parts_of(holder: int, parcels: Sequence[Parcel]) -> list[tuple[int, int, LocalTable]]:
    """In order of the parcels: of which tensor the part is to be, which of the holder's it is of, and what."""
    return [
        (parcel.place, place, common) for parcel in parcels for rank, place, common in parcel.parts if rank == holder
    ]


def _described(part: StateTensor) -> StateTensor:
    """All but the values."""
    return replace(part, tensor=torch.empty_like(part.tensor, device="meta"))


def _extent(part: StateTensor) -> LocalTable:
    """Which rows and columns it has; what is never cut counts as a column of numbers."""
    if part.axes:
        return part.piece
    return LocalTable(name=part.piece.name, rows=(0, part.tensor.numel()), columns=(0, 1))


def _shape(part: StateTensor, some: LocalTable) -> torch.Size:
    """Of what it has of some rows and columns."""
    return torch.Size((some.num_rows, some.dim)[: len(part.axes) or 2])


def _view(part: StateTensor, some: LocalTable) -> Tensor:
    """What it has of some rows and columns: a view."""
    values = part.tensor if part.axes else part.tensor.reshape(-1, 1)
    return values[some.inside(_extent(part))[: values.ndim]]
