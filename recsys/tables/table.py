"""What every kind of embedding storage can do: look rows up for a batch, and learn from the gradient."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor, nn

__all__ = ["LocalTable", "TableBatch"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalTable:
    """The rectangle of one embedding table that this rank stores: a shard, or the whole table."""

    name: str
    """Name of the table."""
    rows: tuple[int, int]
    """[start, stop) of its rows in the whole table; may be empty."""
    columns: tuple[int, int]
    """[start, stop) of its columns in the whole table."""

    @property
    def num_rows(self) -> int:
        """Rows stored."""
        return self.rows[1] - self.rows[0]

    @property
    def dim(self) -> int:
        """Columns stored."""
        return self.columns[1] - self.columns[0]


class TableBatch(nn.Module, ABC):
    """Rectangles of tables that are looked up by one call, and how they learn.

    A step, with gradients that are already those of the whole job's loss::

        pooled = batch(values, offsets)      # forward
        loss.backward()                      # fused storage has learnt now; the other holds gradients
        batch.step()                         # now both have

    `parameters` are those that hold a dense gradient: what several ranks must sum before `step`. Fused storage has
    none, since its rows belong to one rank and are updated within the backward pass.

    Args:
        members: the rectangles, at least one. Several may belong to one table.
        lookups: for each segment of the input the member that it is looked up in. Several features may share a
            member: their segments are neighbours. So ``lookups`` ascends from 0 to len(members) - 1 without gaps,
            for example (0, 1, 1, 2).
        pooled: sum the rows of each bag, or return each row.
    """

    def __init__(self, members: tuple[LocalTable, ...], lookups: tuple[int, ...], *, pooled: bool) -> None:
        super().__init__()
        # FBGEMM 1.8 on CPUs writes past its buffers when a member's lookups are apart.
        assert list(lookups) == sorted(lookups), f"lookups {lookups} must ascend"
        assert sorted(set(lookups)) == list(range(len(members))) != [], (
            "each member is looked up, and there is one"
        )
        dims = tuple(members[member].dim for member in lookups)
        assert pooled or len(set(dims)) == 1, "unpooled rows of one batch have one length"
        self.members = members
        self.lookups = lookups
        self.pooled = pooled
        self.output_dim = sum(dims) if pooled else dims[0]

    @abstractmethod
    def forward(self, values: Tensor, offsets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Look rows up.

        The input is cut into segments, one for each lookup, and each segment into B bags, one for each sample::

            values    7 2 | 4 1 . 9          lookups (0, 1), B = 2
            offsets  0 1   2   4  5          bag 0 of lookup 0 is [7], bag 1 of lookup 1 is [9]

        Args:
            values: [n] int32 or int64 row numbers inside the member. They are not checked: one out of range reads
                or writes memory that belongs to something else.
            offsets: [len(lookups) * B + 1], on the device of ``values``, ascending from 0 to n; B may be 0.
            weights: [n] float32 that each row is multiplied by, or None for ones; pooled only.

        Returns:
            Float32; [B, output_dim] sums, lookups side by side and zeros for an empty bag, or the rows themselves,
            [n, dim]. Differentiable towards the tables, and towards weights that require a gradient.
        """

    @abstractmethod
    def step(self) -> None:
        """Apply the gradients that wait, and zero them in place; nothing to do where learning is fused."""

    @abstractmethod
    def set_learning_rate(self, learning_rate: float) -> None:
        """Learn at this rate from the next `forward` (fused, whose backward pass is bound to it) or `step` on."""

    @abstractmethod
    def weight(self, member: int) -> Tensor:
        """The values of a member: [rows, dim], a view without gradient that may be written to."""

    @abstractmethod
    def optimizer_state(self, member: int) -> dict[str, Tensor]:
        """What the optimiser keeps of a member, as views that may be written to.

        Returns:
            sgd: nothing. adagrad: ``sum_of_squares`` [rows, dim]. rowwise_adagrad: ``sum_of_squares`` [rows], of
            this member's columns only. adam: ``first_moment``, ``second_moment`` [rows, dim], and ``step``, a
            scalar that counts the steps taken. All float32.
        """

    @property
    def num_bytes(self) -> int:
        """Bytes of values and optimiser state; gradients are not counted."""
        tensors = [
            tensor
            for member in range(len(self.members))
            for tensor in (self.weight(member), *self.optimizer_state(member).values())
        ]
        return sum(tensor.nbytes for tensor in tensors)
