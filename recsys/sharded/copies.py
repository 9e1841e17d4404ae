"""Copies of hot rows on every rank: how ids find them, and how they and the rows that they are copies of stay equal.

With k hot rows a table of N rows has N + k on the ranks. Behind its own rows stand the copies, which are like any other
rows that every rank holds; ids of hot rows are changed before anything else is done with them::

    hot    90210   17   4711                    N = 100,000, k = 3
    ids    5   17   90210   6      become       5   100001   100000   6

Nobody looks the rows themselves up meanwhile. They stay with their owners, so that checkpoints, plans and exports have
nothing to know of copies: they get what those have learnt before they are read, and give them their values when they
were written.

An id is looked up in a set of bits, one for each row of the table, and where it is hot among those of its word: 12 bits
for 8 rows, and 4 bytes for each hot row.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.recsys.sharded.packing import Samples
from windrow.recsys.tables.table import TableBatch
from windrow.training.shard_files import StateTensor

if TYPE_CHECKING:
    from windrow.comm.world import World

__all__ = ["CopyIndex", "read_copies", "renumbered", "write_copies"]

_INT32_ROWS = 1 << 31


class CopyIndex:
    """Finds the rows of a table that have copies.

    Args:
        ids: of these rows, each once.
        rows: of the table.
    """

    def __init__(self, ids: Sequence[int], rows: int) -> None:
        self.ids = torch.tensor(ids, dtype=torch.int64)
        """[k] row of the table that each copy is of."""
        self.rows = rows
        """Of the table."""
        found = np.asarray(ids, np.int64)
        order = np.argsort(found)
        words = found[order] >> 6
        self._bits = np.zeros((rows + 63) >> 6, np.uint64)
        np.bitwise_or.at(self._bits, words, np.uint64(1) << (found[order] & 63).astype(np.uint64))
        self._before = np.searchsorted(words, np.arange(len(self._bits))).astype(np.int32)
        self._places = order.astype(np.int32)

    def renumber(self, ids: npt.NDArray[np.integer]) -> None:
        """Change ids of hot rows, in place, to those of their copies."""
        from windrow.recsys.sharded.packing_kernels import renumber_copied

        renumber_copied(ids, self._bits, self._before, self._places, self.rows)

    def inside(self, piece: StateTensor) -> tuple[Tensor, Tensor]:
        """The copies of rows that a piece of the table holds, [n], and where it holds them, [n]."""
        start, stop = piece.piece.rows
        ids = self.ids.to(piece.tensor.device)
        copies = ((start <= ids) & (ids < stop)).nonzero()[:, 0]
        return copies, ids[copies] - start


def renumbered(samples: Sequence[Samples], index: Mapping[int, CopyIndex]) -> Sequence[Samples]:
    """A batch with the ids of copies in the place of those of hot rows.

    Args:
        samples: each group.
        index: by place of the feature in the layout.

    Cost: one look into a few bytes for each id of these features, and a copy of all ids of their groups.
    """
    return [_renumbered(group, index) for group in samples] if index else samples


def _renumbered(group: Samples, index: Mapping[int, CopyIndex]) -> Samples:
    keys = {group.keys[feature]: found for feature, found in index.items() if feature in group.keys}
    if not keys:
        return group
    is_wide = max(found.rows + len(found.ids) for found in keys.values()) >= _INT32_ROWS
    ids = group.ids.astype(np.int64 if is_wide else group.ids.dtype)
    for key, found in keys.items():
        found.renumber(ids[slice(*group.starts[key : key + 2].tolist())])
    return replace(group, ids=ids)


def write_copies(copies: Iterable[TableBatch], owned: Iterable[TableBatch], index: Mapping[str, CopyIndex]) -> None:
    """Write what copies have learnt into the rows that this rank owns.

    Args:
        copies: tables of copies.
        owned: the others of this rank.
        index: by table.
    """
    for copy, piece in _pairs(copies, owned):
        if not piece.axes:
            piece.tensor.copy_(copy.tensor)
            continue
        chosen, places = index[piece.piece.name].inside(piece)
        piece.tensor[places] = copy.tensor[chosen][(slice(None), slice(*piece.piece.columns))[: piece.tensor.ndim]]


def read_copies(
    world: "World",
    copies: Sequence[TableBatch],
    owned: Sequence[TableBatch],
    index: Mapping[str, CopyIndex],
    *,
    stage: str,
) -> None:
    """Give copies the values and the optimiser state of the rows that they are copies of. Collective.

    Args:
        world: ranks that hold the tables together.
        copies: see `write_copies`.
        owned: likewise.
        index: likewise.
        stage: name of the traffic; must agree.

    Cost: an all-reduce of as many numbers as copies have, tensor by tensor.
    """
    pairs = _pairs(copies, owned)
    numbers = {(copy.piece, copy.name): float(piece.tensor) for copy, piece in pairs if not piece.axes}
    for of_rank in world.all_gather_object(numbers, stage=stage):
        numbers |= of_rank
    for target in [part for batch in copies for part in batch.state()]:
        if not target.axes:
            # What is never cut is the same in all pieces.
            target.tensor.fill_(numbers[target.piece, target.name])
            continue
        # What is kept for each row is a mean over columns, which has to come out as it went in.
        dtype = torch.float64 if target.tensor.ndim == 1 else target.tensor.dtype
        total = torch.zeros_like(target.tensor, dtype=dtype)
        for copy, piece in pairs:
            if (copy.piece, copy.name) == (target.piece, target.name):
                chosen, places = index[piece.piece.name].inside(piece)
                values = piece.tensor[places]
                if values.ndim > 1:
                    total[chosen, slice(*piece.piece.columns)] = values
                else:
                    total[chosen] += values.double() * piece.piece.dim
        if total.ndim == 1:
            total /= target.piece.dim
        target.tensor.copy_(world.all_reduce(total, stage=stage))


def _pairs(copies: Iterable[TableBatch], owned: Iterable[TableBatch]) -> list[tuple[StateTensor, StateTensor]]:
    """What is kept of copies, and the same of each piece of their tables that this rank owns."""
    kept = {(part.piece.name, part.name): part for batch in copies for part in batch.state()}
    parts = [part for batch in owned for part in batch.state()]
    return [(kept[key], part) for part in parts if (key := (part.piece.name, part.name)) in kept]
