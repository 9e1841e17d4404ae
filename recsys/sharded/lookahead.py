"""Lookahead: vectors of the next minibatch that this one cannot change travel while this one is learnt from.

An owner knows the ids of both minibatches before it reads a row of the first::

    minibatch n         lookup | vectors | forward, backward | gradients, update
    minibatch n + 1     which  |         | early vectors     |                   | lookup | the other vectors | forward

A vector is early where no row of it is looked up by any rank in minibatch n, so that the update leaves it as it is.
Ranks are told which these are, a bit for each vector, while vectors of minibatch n travel. The rest is read and sent
when the update is over. What lands is, bit for bit, what lands without lookahead; gradients travel as they do without.

The lookahead of BagPipe (Agarwal et al., BagPipe: Accelerating Deep Recommendation Model Training, SOSP 2023), whose
trainers keep a cache of the rows that they will need again, and are told by an oracle what to fetch and to write back.
Here the rows that are wanted again and again are those of which each rank has a copy (`Plan.copies`), the owner is the
oracle, and pooled vectors go early as well as rows.

Cost: what is early is looked up twice, at its owner, the second time for the backward pass; a byte of memory for each
row that an owner has, and one bit a vector on the wire.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.comm.route import Block, Early, Landing, Route, Rows
from windrow.comm.wire import Shape, Wire, make_codec
from windrow.recsys.sharded.layout import OwnerLayout
from windrow.recsys.sharded.packing import LookupInput, Message, Samples, unpack

if TYPE_CHECKING:
    from windrow.recsys.sharded.collection import ShardedTables

__all__ = ["EarlyVectors", "Lookahead", "find_unchanged"]

Mask: TypeAlias = npt.NDArray[np.bool_]


class Lookahead:
    """What a collection knows of its vectors, under one plan.

    Args:
        tables: the collection, laid out.
    """

    def __init__(self, tables: "ShardedTables[Any]") -> None:
        layout, self.rank = tables.layout, tables.group.rank
        self.owner = own = layout.owners[self.rank]
        self.dims = tables.block_dims
        self.columns = [
            np.array([lookup.columns[0] for lookup in own.lookups[first:stop]], np.int64) for first, stop in own.batches
        ]
        """For each batch where the columns of each lookup begin."""
        others = {table.name for form in tables.held.forms for table in form.tables}
        names = [table.name for table in tables.held.tables if table.name not in others]
        learnt_alone = tables.plan.replica_groups == 1
        alone = {name for name in names if learnt_alone and not tables.held.options.of(name).moves_every_row}
        self.flags = [
            _Flags(own, batch) if own.members[own.lookups[batch[0]].member].name in alone else None
            for batch in own.batches
        ]
        """For each batch, where an update changes those rows alone that were looked up, a mark for each row."""
        self.is_possible = tables.group.size > 1 and len(alone) > 0
        """Whether any vector can be early; the same on every rank."""
        codec = make_codec(tables.forms.vectors, columns=self._columns_of)
        self.wires = [
            Wire(
                tables.group,
                stage=tables.stage,
                codec=codec,
                device=tables.device,
                rows_stage=stage,
                shared_memory=True,
            )
            for stage in ("vectors early", "vectors")
        ]
        """How vectors travel early, and how the others do: a block for each lookup."""

    def _columns_of(self, peer: int, sent: bool) -> Sequence[Sequence[int]]:  # noqa: FBT001  # the type has it so
        return [[dim] for dims in self.dims[self.rank if sent else peer] for dim in dims]


class EarlyVectors:
    """Those of one minibatch. Collective at every stage.

    Args:
        tables: the collection.
        before: what this rank's tables are asked for in the minibatch before.
        received: what each rank asks this one for.
        asked: what this rank asks each owner for, and at the end what of replicated tables.
        samples: likewise, group by group.
    """

    def __init__(
        self,
        tables: "ShardedTables[Any]",
        before: Sequence[LookupInput],
        received: Sequence[Message],
        asked: Sequence[Message],
        samples: Sequence[Samples],
    ) -> None:
        self._tables, self._about = tables, tables.lookahead
        about, rank = self._about, self._about.rank
        self.wanted = unpack(received, about.owner, tables.form)
        """Input of this rank's tables."""
        self.route = route = tables.route(self.wanted, received, asked, samples, 0)
        """Of all vectors, and of their gradients."""
        unchanged = find_unchanged(about.flags, before, self.wanted, pooled=tables.form.with_lengths)
        self._sent = [
            []
            if peer == rank
            else [
                _mask_of(block, unchanged[block.matrix], about.columns, len(dims))
                for block, dims in zip(blocks, about.dims[rank], strict=True)
            ]
            for peer, blocks in enumerate(route.outgoing[: tables.group.size])
        ]
        bits = [torch.from_numpy(np.packbits(_flat(masks))) for masks in self._sent]
        sizes = [
            0 if owner == rank else sum(shape[0] * len(each) for shape, each in zip(shapes, dims, strict=True))
            for owner, (shapes, dims) in enumerate(zip(route.arriving, about.dims, strict=True))
        ]
        self._received = [torch.empty(-(-size // 8), dtype=torch.uint8) for size in sizes]
        self._pending = tables.group.start_exchange(bits, self._received, stage=f"{tables.stage}: which are early")
        self._early: Early | None = None

    @torch.no_grad()
    def start(self) -> None:
        """Look what is early up, and send it."""
        self._pending.wait()
        rank, found = self._about.rank, list[list[Mask]]()
        of_owners = zip(self._received, self.route.arriving, self._about.dims, strict=True)
        for owner, (bits, shapes, dims) in enumerate(of_owners):
            found.append([])
            flags, start = np.unpackbits(bits.numpy()).astype(np.bool_), 0
            for shape, of_block in zip(shapes, dims, strict=True) if owner != rank else ():
                stop = start + shape[0] * len(of_block)
                found[-1].append(flags[start:stop].reshape(len(of_block), shape[0]))
                start = stop
        early, rest = (
            self._part(wire, found, is_early=is_early)
            for wire, is_early in zip(self._about.wires, (True, False), strict=True)
        )
        self._early = Early(early.start(self._tables.look_up(self.wanted)), rest)

    def gone_ahead(self) -> Early:
        """What is under way, and what is still to go."""
        if self._early is None:
            # The minibatch before was not finished, as in a loop that gives one up.
            self.start()
        assert self._early is not None
        return self._early

    def drop(self) -> None:
        """Have nothing under way, since rows change before the rest is read."""
        self._pending.wait()
        if self._early is not None:
            self._early.transfer.wait()
            self._early.transfer.release()

    def _part(self, wire: Wire, received: Sequence[Sequence[Mask]], *, is_early: bool) -> Route:
        """The route of what goes ahead, or of the rest: a block for each lookup."""
        route, rank, all_dims = self.route, self._about.rank, self._about.dims
        outgoing, landings, arriving = list[list[Block]](), list[list[Landing]](), list[list[Shape]]()
        for peer, (sent, masks) in enumerate(zip(self._sent, received, strict=True)):
            outgoing.append([])
            landings.append([])
            arriving.append([])
            if peer == rank:
                continue
            for block, mask, dims in zip(route.outgoing[peer], sent, all_dims[rank], strict=True):
                outgoing[-1] += _parts(block, mask == is_early, dims)
            for landing in route.landings[peer]:
                dims, mask = all_dims[peer][landing.block], masks[landing.block] == is_early
                for dim, part in zip(dims, _landing_parts(landing, mask, dims), strict=True):
                    landings[-1].append(Landing(len(arriving[-1]), part, add=landing.add))
                    arriving[-1].append((part.num_rows, dim))
        return Route(wire, outgoing, landings, arriving)


class _Flags:
    """A mark for each row of a batch of tables: those that an update changes.

    Args:
        owner: its layout.
        batch: first lookup, and the one after the last.
    """

    def __init__(self, owner: OwnerLayout, batch: tuple[int, int]) -> None:
        members = [lookup.member for lookup in owner.lookups[slice(*batch)]]
        rows = [owner.members[member].num_rows for member in range(members[0], members[-1] + 1)]
        bounds = np.concatenate([[0], np.cumsum(rows)])
        self._first_rows = bounds[np.array(members) - members[0]]
        self._marks: Mask | None = None
        self._num_rows = int(bounds[-1])

    def changed(self, before: LookupInput, wanted: LookupInput) -> Mask:
        """[ids that are wanted] whether their rows are looked up before."""
        if self._marks is None:
            self._marks = np.zeros(self._num_rows, np.bool_)
        touched = self._places(before)
        self._marks[touched] = True
        found = self._marks[self._places(wanted)]
        self._marks[touched] = False
        return found

    def _places(self, given: LookupInput) -> npt.NDArray[np.int64]:
        places: npt.NDArray[np.int64] = given.values.numpy() + np.repeat(self._first_rows, given.counts.sum(axis=0))
        return places


def find_unchanged(
    flags: Sequence[_Flags | None], before: Sequence[LookupInput], wanted: Sequence[LookupInput], *, pooled: bool
) -> list[Mask]:
    """Which vectors of a minibatch the update of the one before leaves as they are.

    Args:
        flags: of each batch of tables; None: an update may change any row.
        before: for each batch what is looked up in the minibatch before.
        wanted: likewise, in this one.
        pooled: whether a vector is the sum of a bag.

    Returns:
        Pooled for each batch [bags of all ranks, lookups], else for each lookup [its ids of all ranks, 1].

    Cost:
        A look into memory for each id of both minibatches.
    """
    found: list[Mask] = []
    for marks, old, new in zip(flags, before, wanted, strict=True):
        changed = np.ones(len(new.values), np.bool_) if marks is None else marks.changed(old, new)
        of_lookups = new.counts.sum(axis=0)
        if pooled:
            before_bag = np.concatenate([[0], np.cumsum(changed)])[new.offsets.numpy()]
            # Where any row may change, empty bags alone do not.
            found.append((before_bag[1:] == before_bag[:-1]).reshape(len(of_lookups), -1).T)
        else:
            found += [~part[:, None] for part in np.split(changed, np.cumsum(of_lookups)[:-1])]
    return found


def _mask_of(block: Block, unchanged: Mask, columns: Sequence[npt.NDArray[np.int64]], num_lookups: int) -> Mask:
    """[lookups, rows] of a block, from those of its matrix [rows, lookups]."""
    rows = block.rows if isinstance(block.rows, slice) else block.rows.numpy()
    if block.columns is None:
        # Vectors, one after the other.
        return unchanged.reshape(1, -1)[:, rows]
    first = int(np.searchsorted(columns[block.matrix], block.columns[0]))
    return unchanged[rows, first : first + num_lookups].T


def _flat(masks: Sequence[Mask]) -> Mask:
    return np.concatenate([np.empty(0, np.bool_), *(mask.reshape(-1) for mask in masks)])


def _chosen(rows: Rows, mask: Mask) -> Tensor:
    numbers = torch.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
    return numbers[torch.from_numpy(mask)]


def _parts(block: Block, mask: Mask, dims: Sequence[int]) -> Iterator[Block]:
    """What a mask [lookups, rows] leaves of each lookup of a block."""
    start = 0 if block.columns is None else block.columns[0]
    for of_lookup, dim in zip(mask, dims, strict=True):
        columns = None if block.columns is None else (start, start + dim)
        yield Block(block.matrix, _chosen(block.rows, of_lookup), columns)
        start += dim


def _landing_parts(landing: Landing, mask: Mask, dims: Sequence[int]) -> Iterator[Block]:
    """Where these belong."""
    target, runs, column = landing.target, landing.runs, 0
    for of_lookup, dim in zip(mask, dims, strict=True):
        columns = target.columns
        if runs is not None:
            # The vectors of a lookup stay side by side.
            run = int(np.searchsorted(runs[:, 0], column, side="right")) - 1
            start = int(runs[run, 1] + column - runs[run, 0])
            columns = (start, start + dim)
        yield Block(target.matrix, _chosen(target.rows, of_lookup), columns)
        column += dim
