"""Tables whole again: gathered from the ranks that hold their pieces, or seen where one rank holds all of one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.partition.tables.plan import Plan, Range, Shard, TableSpec
from windrow.training.shard_files import LocalTable, StateTensor

if TYPE_CHECKING:
    from windrow.comm.world import World

__all__ = ["WholeTable", "WholeTables", "gather_table", "without_values", "write_table"]


@dataclass(frozen=True, slots=True)
class WholeTable:
    """A table that one rank stores whole."""

    weight: Tensor
    """[rows, dim], the storage itself: what is written into it is looked up next. It has no gradient, since tables
    learn in the backward pass or in `ShardedTables.step`."""


class WholeTables(Mapping[str, WholeTable]):
    """The tables of a collection by name, as far as this rank stores them whole; stands for TorchRec's modules.

    Args:
        specs: of all tables.
        weights: what this rank stores of each.
    """

    def __init__(self, specs: Sequence[TableSpec], weights: Mapping[str, Sequence[StateTensor]]) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._weights = weights

    def __getitem__(self, name: str) -> WholeTable:
        """One table.

        Raises:
            KeyError: there is no such table.
            RecipeError: this rank does not store it whole.
        """
        spec = self._specs[name]
        for found in self._weights[name]:
            if found.tensor.shape == (spec.rows, spec.dim):
                return WholeTable(found.tensor)
        raise RecipeError(
            f"table {name!r} is not whole on this rank, or not in the order of ids, or ranks have copies of its rows, "
            "so it has no weight here: state_dict() brings it together on every rank, and local_tables() gives what is "
            "stored here"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)


_VALUES_AT_ONCE = 1 << 22
"""Values that travel at a time: 16 MB."""


def gather_table(
    world: "World",
    plan: Plan,
    spec: TableSpec,
    pieces: Sequence[StateTensor],
    *,
    row_ids: Tensor | None = None,
    stage: str,
) -> Tensor:
    """Bring a table together on every rank. Collective.

    Args:
        world: the ranks.
        plan: where the table is; must agree.
        spec: of the table; must agree.
        pieces: of its weights that this rank stores, replicated ones too.
        row_ids: int64 [rows], the id of each row, where it is not its number; must agree.
        stage: name of the traffic; must agree.

    Returns:
        [rows, dim] float32 in memory of its own, on the CPU, by id; of pieces on the meta device the first. Each rank
        sends its shards size - 1 times.
    """
    if pieces and pieces[0].tensor.is_meta:
        return pieces[0].tensor
    whole = torch.empty(spec.rows, spec.dim, device="cpu")
    for found in pieces:
        whole[_slices(found.piece)] = found.tensor.cpu().float()
    rows_at_once = max(_VALUES_AT_ONCE // spec.dim, 1)
    for start in range(0, spec.rows if world.size > 1 else 0, rows_at_once):
        rows = (start, start + rows_at_once)
        parts = [list(_parts(plan.shards_on(rank), spec.name, rows)) for rank in range(world.size)]
        mine = [whole[part].reshape(-1) for part in parts[world.rank]]
        everyone = world.all_gather(torch.cat([whole[0, :0], *mine]), stage=stage)
        for of_rank, values in zip(parts, everyone, strict=True):
            first = 0
            for part in of_rank:
                target = whole[part]
                target.copy_(values[first : first + target.numel()].view(target.shape))
                first += target.numel()
    return whole if row_ids is None else whole[row_ids.argsort()]


def without_values(spec: TableSpec) -> StateTensor:
    """The weights of a whole table on the meta device."""
    whole = LocalTable(name=spec.name, rows=(0, spec.rows), columns=(0, spec.dim))
    tensor = torch.empty(spec.rows, spec.dim, device="meta")
    return StateTensor(piece=whole, name="weight", tensor=tensor, axes=("rows", "columns"), replicated=False)


def write_table(pieces: Sequence[StateTensor], whole: Tensor, row_ids: Tensor | None = None) -> None:
    """Copy a whole table [rows, dim], by id, to where this rank stores its pieces; values are converted."""
    for found in pieces:
        rows, columns = _slices(found.piece)
        found.tensor.copy_(whole[rows if row_ids is None else row_ids[rows], columns])


def _slices(piece: LocalTable) -> tuple[slice, slice]:
    """Where a piece is in its table."""
    return slice(*piece.rows), slice(*piece.columns)


def _parts(shards: Iterable[Shard], table: str, rows: Range) -> Iterator[tuple[slice, slice]]:
    """Shards of one table between two rows."""
    for shard in shards:
        start, stop = max(shard.rows[0], rows[0]), min(shard.rows[1], rows[1])
        if shard.table == table and start < stop:
            yield slice(start, stop), slice(*shard.columns)
