"""What a planner has to know about an embedding table."""

from collections.abc import Sequence
from dataclasses import dataclass

from windrow.comm.errors import PlanError

__all__ = ["TableSpec", "rectangle_bytes", "specs_by_name"]

ACCUMULATOR_BYTES = 4.0
"""One float32: the least optimiser state that a row of any piece keeps, where its optimiser keeps any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSpec:
    """One embedding table: its shape, what it weighs, and how often it is looked up."""

    name: str
    """Unique among the tables of a model."""
    rows: int
    """Number of embedding vectors."""
    dim: int
    """Numbers in each vector."""
    features: tuple[str, ...]
    """Features whose ids are row numbers of this table."""
    bytes_per_value: int = 4
    """Size of a weight: 4 for float32, 2 for float16."""
    optimizer_bytes_per_row: float = 0.0
    """Optimiser state of a whole row: 0 for SGD, 4 for row-wise Adagrad, 4 x dim for Adagrad, 8 x dim for Adam."""
    lookups_per_sample: float = 1.0
    """Expected ids per sample, over all its features together."""

    def __post_init__(self) -> None:
        if not self.name:
            raise PlanError("a table has an empty name: name it")
        for key in ("rows", "dim", "bytes_per_value"):
            if getattr(self, key) < 1:
                raise PlanError(f"table {self.name!r}: {key} = {getattr(self, key)}: expected at least 1")
        for key in ("optimizer_bytes_per_row", "lookups_per_sample"):
            if not 0 <= getattr(self, key) < float("inf"):
                raise PlanError(f"table {self.name!r}: {key} = {getattr(self, key)}: expected 0 or more")

    @property
    def num_bytes(self) -> int:
        """Memory of the whole table on one rank: weights and optimiser state."""
        return rectangle_bytes(self, self.rows, self.dim)


def rectangle_bytes(spec: TableSpec, num_rows: int, num_columns: int) -> int:
    """Memory of a piece of a table: weights and optimiser state.

    State for each weight (Adagrad, Adam) is shared out with the columns. State for each row (row-wise Adagrad:
    one float32) is kept by every piece of the row, so that cutting columns multiplies it.

    Args:
        spec: the table.
        num_rows: height of the piece.
        num_columns: width of the piece.

    Returns:
        Bytes, rounded up.
    """
    share = spec.optimizer_bytes_per_row * num_columns / spec.dim
    least = min(spec.optimizer_bytes_per_row, ACCUMULATOR_BYTES)
    return num_rows * num_columns * spec.bytes_per_value + -int(-num_rows * max(share, least) // 1)


def specs_by_name(specs: Sequence[TableSpec]) -> dict[str, TableSpec]:
    """The tables by name, in their order.

    Raises:
        PlanError: two tables have the same name.
    """
    named: dict[str, TableSpec] = {}
    for spec in specs:
        if spec.name in named:
            raise PlanError(f"two tables are named {spec.name!r}: give each table a name of its own")
        named[spec.name] = spec
    return named
