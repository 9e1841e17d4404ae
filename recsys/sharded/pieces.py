"""How the blocks that owners send become the matrices of each group at home."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from windrow.partition.tables.plan import Range
from windrow.recsys.sharded.layout import Layout, Lookup, OwnerLayout

__all__ = ["Piece", "pieces_of"]


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
