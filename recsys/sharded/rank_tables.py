"""What one rank holds of a collection, and its lookups there."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.recsys.sharded.layout import OwnerLayout
from windrow.recsys.sharded.packing import LookupInput
from windrow.recsys.tables.compressed import CompressedTables, LookupThroughForm
from windrow.recsys.tables.dense_gradient import DenseGradientTableBatch
from windrow.recsys.tables.make import make_table_batch
from windrow.recsys.tables.options import TableOptions

if TYPE_CHECKING:
    from windrow.comm.world import World
    from windrow.recsys.tables.table import TableBatch

__all__ = ["RankTables"]


class RankTables:
    """What one rank holds, in batches.

    Tables of one batch have the same `TableOptions.of_one_batch`.

    Args:
        owner: members, lookups and batches; there may be none.
        compressed: where tables that are not stored as they are come from, by name.
        options: how they are stored and learn.
        rows: rows of each whole table, by name.
        pooled: sum the rows of a bag, or return each row.
        device: of the tables.
        replicated: whether every rank holds the same.
        peers: the ranks that hold what this one does, in the order of their groups; None where there is one group.
        fixed: names of tables that cannot have more rows later, in batches of their own.
        seed: of the first values; None: they are zero, for what is about to be loaded.
        row_ids: int64 [rows], of one table that there is: ids of rows that stand in another order; None: numbers.
    """

    def __init__(
        self,
        owner: OwnerLayout,
        compressed: Mapping[str, CompressedTables],
        options: TableOptions,
        *,
        rows: dict[str, int],
        pooled: bool,
        device: torch.device,
        replicated: bool,
        peers: "World | None",
        fixed: Collection[str],
        seed: int | None,
        row_ids: Tensor | None,
    ) -> None:
        self.batches: list[TableBatch] = []
        self._pooled, self._peers = pooled, peers
        self._have_moved = False
        self._rate_factors: list[float] = []
        firsts = [owner.lookups[first] for first, _ in owner.batches]
        self._widths = [lookup.dim if lookup.request in owner.cut else None for lookup in firsts]
        """Of the vectors of each batch whose tables are cut by rows."""
        for of_batch in [] if device.type == "meta" else owner.batches:
            chosen = owner.lookups[slice(*of_batch)]
            first = chosen[0].member
            members = owner.members[first : chosen[-1].member + 1]
            lookups = tuple(lookup.member - first for lookup in chosen)
            through = compressed.get(members[0].name)
            batch: TableBatch
            if through is not None:
                batch = LookupThroughForm(members, lookups, through, pooled=pooled, row_ids=row_ids)
            else:
                batch = make_table_batch(
                    options,
                    members,
                    lookups,
                    table_rows=rows,
                    pooled=pooled,
                    replicated=replicated,
                    by_row=peers is not None,
                    device=device,
                    seed=seed,
                    row_ids=row_ids,
                )
            batch.fixed = members[0].name in fixed
            batch.is_copy = peers is not None and peers.rank > 0
            self.batches.append(batch)
            own_rate = options.of(members[0].name).learning_rate
            self._rate_factors.append(own_rate / options.learning_rate)

    def look_up(self, wanted: Sequence[LookupInput]) -> list[Tensor]:
        """Look bags, or rows, up.

        Args:
            wanted: for each batch of the owner's layout.

        Returns:
            Pooled: for each batch [bags of all ranks, columns] float32 sums, through which a backward pass may always
            be run; of tables that are cut by rows vector by vector, [bags of all ranks x lookups, their width].
            Unpooled: for each lookup [its ids of all ranks, dim] float32, rank by rank; those of a batch without ids
            have no graph.
        """
        # Rows are float32, whatever the model around computes in.
        with torch.autocast(wanted[0].values.device.type if wanted else "cpu", enabled=False):
            return self._look_up(wanted)

    def _look_up(self, wanted: Sequence[LookupInput]) -> list[Tensor]:
        found: list[Tensor] = []
        for tables, given, width in zip(self.batches, wanted, self._widths, strict=True):
            counts = given.counts.sum(axis=0).tolist()
            has_any = sum(given.num_bags if self._pooled else counts)
            rows: Tensor
            if not has_any:
                wants_gradient = self._pooled and torch.is_grad_enabled()
                rows = torch.zeros(0, tables.output_dim, device=given.values.device, requires_grad=wants_gradient)
            elif self._pooled:
                rows = tables(given.values, given.offsets, given.weights)
            else:
                rows = tables.rows(given.values, given.offsets)
            if rows.requires_grad:
                rows.register_hook(self._refuse_if_moved)
            if self._pooled:
                found.append(rows if width is None else rows.view(-1, width))
            else:
                found += rows.split(counts)
        return found

    def sum_between_groups(self, *, stage: str) -> None:
        """Sum the gradients of rows over the ranks that hold them. Collective over `peers`.

        Every rank then takes the same step with the sum, so that copies stay equal, bit for bit, and equal to those of
        one group, up to the order of additions: with row-wise Adagrad, which squares sums, not parts of them.
        """
        if self._peers is not None:
            for batch in self.batches:
                if isinstance(batch, DenseGradientTableBatch):
                    batch.sum_row_gradients(self._peers, stage=stage)

    def retire(self) -> None:
        """Learn no more, since the tables have moved: backward passes raise `RecipeError` from now on."""
        self._have_moved = True

    def _refuse_if_moved(self, _: Tensor) -> None:
        if self._have_moved:
            raise RecipeError(
                "the tables have moved to another plan since these rows were looked up, so nothing would learn from "
                "this backward pass: run it, and step(), before move_to()"
            )

    def set_learning_rate(self, learning_rate: float) -> None:
        """Learn at this rate, or where a table has its own, at one changed by the same factor."""
        for batch, factor in zip(self.batches, self._rate_factors, strict=True):
            batch.set_learning_rate(learning_rate * factor)
