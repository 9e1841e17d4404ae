"""The route of pooled vectors: from what owners looked up to the matrix of each group on every rank.

An owner looks the bags of all ranks up at once; rows of one rank lie together, so that where nothing is deduplicated
nothing is copied to send them::

    owner 0's output [rows of all ranks, its columns]           home (rank 1)
        rank 0's rows                                           a matrix for each group [its rows, all columns]
        rank 1's rows      ------------------------------------>  columns of owner 0 copied, or added where a table
                                                                  is cut by rows
                           <------------------------------------  the same columns of the gradient

A row is a sample, or in a deduplicated group a distinct one. Where an owner has columns of several groups, each group
has rows of its own number, and a message is one band after the other (`windrow.recsys.sharded.layout.Band`)::

    owner's output   columns of group 0   columns of group 1            message to rank 1
      rank 0         3 rows               2 rows
      rank 1         4 rows        ->     1 row, 3 of padding     ->    4 rows of the one, then 1 of the other
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from windrow.comm.messages import Wire
from windrow.comm.route import Block, Landing, Route
from windrow.partition.tables.plan import Range
from windrow.recsys.sharded.layout import Layout, Lookup, OwnerLayout

__all__ = ["Piece", "pieces_of", "pooled_route"]


def pooled_route(
    wire: Wire, layout: Layout, pieces: Sequence["Piece"], num_rows: npt.NDArray[np.int64]
) -> Route:
    """The route of one minibatch.

    Args:
        wire: how vectors travel.
        layout: the same on every rank.
        pieces: of the layout.
        num_rows: [ranks, groups] rows of each rank.

    Returns:
        From the outputs of this owner's batches, and locally those of the replicated tables', to a matrix for each
        group. Rows that pad a batch go nowhere: their bags are empty.
    """
    rank, size = wire.world.rank, wire.world.size
    owner, mine = layout.owners[rank], num_rows[rank]
    starts = [
        list(accumulate(num_rows[:, list(batch.groups)].max(axis=1).tolist(), initial=0))
        for batch in owner.batches
    ]
    outgoing = [
        _bands(owner, [of_batch[peer] for of_batch in starts], num_rows[peer]) for peer in range(size)
    ]
    outgoing.append(_bands(layout.replicated, [0] * len(layout.replicated.batches), mine))
    arriving = [[(int(mine[band.group]), band.width) for band in other.bands] for other in layout.owners]
    landings: list[list[Landing]] = [[] for _ in range(size + 1)]
    for piece in pieces:
        target = Block(piece.group, slice(0, int(mine[piece.group])), piece.output)
        landings[piece.owner].append(Landing(piece.band, target, piece.columns, piece.add))
    return Route(wire, outgoing, landings, arriving)


def _bands(owner: OwnerLayout, starts: Sequence[int], rows: npt.NDArray[np.int64]) -> list[Block]:
    """One rank's rows of each group in an owner's outputs, which begin there in each batch, band by band."""
    found = []
    for band in owner.bands:
        start, first = starts[band.batch], owner.batches[band.batch].columns[0]
        columns = (band.columns[0] - first, band.columns[1] - first)
        found.append(Block(band.batch, slice(start, start + int(rows[band.group])), columns))
    return found


@dataclass(frozen=True, slots=True)
class Piece:
    """Columns on their way from a band of an owner to the group's matrix, and their gradient on the way back."""

    owner: int
    """Place in `Layout.owners`; their number for `Layout.replicated`."""
    band: int
    """Place in `OwnerLayout.bands`."""
    columns: Range
    """Columns of the band."""
    group: int
    """Of the band, and of the matrix."""
    output: Range
    """Columns of the group's matrix."""
    add: bool
    """Whether an earlier piece filled these columns already, so that this one is added."""


def pieces_of(layout: Layout) -> tuple[Piece, ...]:
    """How owners' bands become one matrix for each group.

    Blocks are cut wherever a piece of the same table begins or ends, so that the first to come to a column can be
    copied and the later ones added, and joined again where neighbours go the same way.

    Args:
        layout: of all owners.

    Returns:
        Pieces in the order in which they must be applied; without ``add`` they fill every column of every group's
        matrix (`Layout.columns_in_group`) exactly once.
    """
    owners = (*layout.owners, layout.replicated)
    sources = [(number, lookup) for number, owner in enumerate(owners) for lookup in owner.lookups]
    in_group = layout.columns_in_group()
    cuts = sorted({column for _, lookup in sources for column in lookup.output})
    filled: set[int] = set()
    pieces: list[Piece] = []
    for number, lookup in sources:
        band, start_in_band = _place_in_bands(owners[number], lookup)
        shift, group = _place_in_group(layout, in_group, lookup)
        inside = [cut for cut in cuts if lookup.output[0] <= cut <= lookup.output[1]]
        for start, stop in pairwise(inside):
            first = start_in_band + start - lookup.output[0]
            piece = Piece(
                number,
                band,
                (first, first + stop - start),
                group,
                (start + shift, stop + shift),
                add=start in filled,
            )
            filled.add(start)
            if pieces and _continues(pieces[-1], piece):
                last = pieces.pop()
                piece = Piece(
                    number,
                    band,
                    (last.columns[0], piece.columns[1]),
                    group,
                    (last.output[0], piece.output[1]),
                    add=piece.add,
                )
            pieces.append(piece)
    return tuple(pieces)


def _place_in_bands(owner: OwnerLayout, lookup: Lookup) -> tuple[int, int]:
    """The band of a lookup, and its first column there."""
    for number, band in enumerate(owner.bands):
        if lookup.columns[0] < band.columns[1]:
            return number, lookup.columns[0] - band.columns[0]
    raise AssertionError("bands cover all columns")


def _place_in_group(layout: Layout, in_group: Sequence[Range], lookup: Lookup) -> tuple[int, int]:
    """What to add to the collection's column to get the group's, and the group."""
    for (_, feature, columns), (first, _) in zip(layout.outputs, in_group, strict=True):
        if lookup.output[0] < columns[1]:
            return first - columns[0], layout.groups[feature]
    raise AssertionError("outputs cover all columns")


def _continues(last: Piece, piece: Piece) -> bool:
    return (last.owner, last.band, last.columns[1], last.group, last.output[1], last.add) == (
        piece.owner,
        piece.band,
        piece.columns[0],
        piece.group,
        piece.output[0],
        piece.add,
    )
