"""The pieces of tables that one rank holds, as modules that look them up."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from windrow.recsys.sharded.layout import OwnerLayout
from windrow.recsys.sharded.unpacking import LookupInput
from windrow.recsys.tables.make import make_table_batch
from windrow.recsys.tables.options import TableOptions
from windrow.recsys.tables.table import LocalTable, TableBatch

__all__ = ["RankTables", "StoredTable"]


@dataclass(frozen=True, slots=True)
class StoredTable:
    """One rectangle of a table, as a checkpoint writes and reads it."""

    table: LocalTable
    """Which rectangle of which table."""
    weight: Tensor
    """[rows, columns] values, a view that may be written to."""
    optimizer_state: dict[str, Tensor]
    """What the optimiser keeps of it: views that may be written to."""
    replicated: bool
    """Whether every rank holds the same copy."""


class RankTables(nn.Module):
    """What one rank holds, in batches.

    Pooled, of tables that the same groups of features look into; unpooled rows of one batch have one length, so there
    is a batch for each length.

    Args:
        owner: members and lookups; there may be none.
        options: how they are stored and learn.
        rows: rows of each whole table, by name.
        pooled: sum the rows of a bag, or return each row.
        device: of the tables.
        fused: learn in the backward pass, where the optimiser can.
        seed: of the first values.
    """

    def __init__(
        self,
        owner: OwnerLayout,
        options: TableOptions,
        *,
        rows: dict[str, int],
        pooled: bool,
        device: torch.device,
        fused: bool,
        seed: int,
    ) -> None:
        super().__init__()
        self.batches: list[TableBatch] = []
        self._groups: list[list[int]] = []
        self._owner = owner
        for chosen in _groups(owner, pooled=pooled):
            numbers = sorted({owner.lookups[number].member for number in chosen})
            batch = make_table_batch(
                options,
                tuple(owner.members[number] for number in numbers),
                tuple(numbers.index(owner.lookups[number].member) for number in chosen),
                table_rows=rows,
                pooled=pooled,
                fused=fused,
                device=device,
                seed=seed,
            )
            self.batches.append(batch)
            self._groups.append(chosen)
        self.registered = nn.ModuleList(self.batches)

    def pooled(self, wanted: Sequence[LookupInput]) -> list[Tensor]:
        """Look bags up.

        Args:
            wanted: for each batch of the owner's layout.

        Returns:
            For each [bags of all ranks, columns] float32 sums. A backward pass may always be run through them.
        """
        return [
            self._pooled(tables, batch.columns[1] - batch.columns[0], of_batch)
            for tables, batch, of_batch in zip(self.batches, self._owner.batches, wanted, strict=True)
        ]

    def _pooled(self, tables: TableBatch, width: int, wanted: LookupInput) -> Tensor:
        if not sum(wanted.num_bags):
            return torch.zeros(0, width, device=wanted.values.device, requires_grad=torch.is_grad_enabled())
        pooled: Tensor = tables(wanted.values, wanted.offsets, wanted.weights)
        return pooled

    def rows(self, wanted: LookupInput) -> list[Tensor]:
        """Look rows up.

        Returns:
            For each lookup [its ids of all ranks, dim] float32, rank by rank; those without ids have no graph.
        """
        if len(self.batches) == 1:
            (batch,) = self.batches
            return _look_up_rows(batch, wanted)
        found: dict[int, Tensor] = {}
        for batch, chosen in zip(self.batches, self._groups, strict=True):
            found.update(zip(chosen, _look_up_rows(batch, wanted.select(chosen)), strict=True))
        return [found[number] for number in range(len(self._owner.lookups))]

    def stored(self, *, replicated: bool) -> Iterator[StoredTable]:
        """The rectangles, for checkpoints and export."""
        for batch in self.batches:
            for number, member in enumerate(batch.members):
                yield StoredTable(member, batch.weight(number), batch.optimizer_state(number), replicated)


def _groups(owner: OwnerLayout, *, pooled: bool) -> list[list[int]]:
    """Lookups that one batch of tables can do."""
    if pooled:
        return [list(range(*batch.lookups)) for batch in owner.batches]
    everything = list(range(len(owner.lookups)))
    dims = sorted({lookup.dim for lookup in owner.lookups})
    return [[number for number in everything if owner.lookups[number].dim == dim] for dim in dims]


def _look_up_rows(batch: TableBatch, wanted: LookupInput) -> list[Tensor]:
    counts = wanted.counts.sum(axis=0).tolist()
    if not sum(counts):
        return [torch.empty(0, batch.output_dim, device=wanted.values.device) for _ in counts]
    return list(batch(wanted.values, wanted.offsets).split(counts))
