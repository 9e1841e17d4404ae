"""What one rank holds of a collection, and its lookups there."""

from collections.abc import Sequence

import torch
from torch import Tensor

from windrow.recsys.sharded.layout import OwnerLayout
from windrow.recsys.sharded.packing import LookupInput
from windrow.recsys.tables.make import make_table_batch
from windrow.recsys.tables.options import TableOptions
from windrow.recsys.tables.table import TableBatch

__all__ = ["RankTables"]


class RankTables:
    """What one rank holds, in batches.

    Pooled, of tables that the same groups of features look into; unpooled rows of one batch have one length, so there
    is a batch for each length. Tables of one batch have the same `TableOptions.of_one_batch`.

    Args:
        owner: members and lookups; there may be none.
        options: how they are stored and learn.
        rows: rows of each whole table, by name.
        pooled: sum the rows of a bag, or return each row.
        device: of the tables.
        replicated: whether every rank holds the same.
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
        replicated: bool,
        seed: int,
    ) -> None:
        self.batches: list[TableBatch] = []
        self._groups: list[list[int]] = []
        self._owner = owner
        self._rate_factors: list[float] = []
        for chosen in [] if device.type == "meta" else _groups(owner, options, pooled=pooled):
            numbers = sorted({owner.lookups[number].member for number in chosen})
            batch = make_table_batch(
                options,
                tuple(owner.members[number] for number in numbers),
                tuple(numbers.index(owner.lookups[number].member) for number in chosen),
                table_rows=rows,
                pooled=pooled,
                replicated=replicated,
                device=device,
                seed=seed,
            )
            self.batches.append(batch)
            own_rate = options.of(batch.members[0].name).learning_rate
            self._rate_factors.append(own_rate / options.learning_rate)
            self._groups.append(chosen)

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

    def set_learning_rate(self, learning_rate: float) -> None:
        """Learn at this rate, or where a table has its own, at one changed by the same factor."""
        for batch, factor in zip(self.batches, self._rate_factors, strict=True):
            batch.set_learning_rate(learning_rate * factor)


def _groups(owner: OwnerLayout, options: TableOptions, *, pooled: bool) -> list[list[int]]:
    """Lookups that one batch of tables can do."""
    if pooled:
        return [list(range(*batch.lookups)) for batch in owner.batches]
    found: list[tuple[int, TableOptions, list[int]]] = []
    for number, lookup in sorted(enumerate(owner.lookups), key=lambda entry: entry[1].dim):
        kind = options.of_one_batch(owner.members[lookup.member].name)
        same = [chosen for dim, other, chosen in found if (dim, other) == (lookup.dim, kind)]
        if same:
            same[0].append(number)
        else:
            found.append((lookup.dim, kind, [number]))
    return [chosen for _, _, chosen in found]


def _look_up_rows(batch: TableBatch, wanted: LookupInput) -> list[Tensor]:
    counts = wanted.counts.sum(axis=0).tolist()
    if not sum(counts):
        return [torch.empty(0, batch.output_dim, device=wanted.values.device) for _ in counts]
    return list(batch.rows(wanted.values, wanted.offsets).split(counts))
