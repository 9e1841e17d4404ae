"""What every kind of embedding storage can do: look rows up for a batch, learn, and give its state by name."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from windrow.comm.random import Stream, stream_key
from windrow.training.shard_files import ROW_IDS, LocalTable, StateAxis, StateTensor

__all__ = ["TableBatch", "fill_slices", "table_key"]


class TableBatch(nn.Module, ABC):
    """Shards of tables that are looked up by one call, and how they learn.

    A step, with gradients that are already those of the whole job's loss::

        pooled = batch(values, offsets)      # forward
        loss.backward()                      # fused storage has learnt now; the other holds gradients
        batch.step()                         # now both have

    `parameters` are those that hold a dense gradient: what several ranks must sum before `step`. Fused storage has
    none, since its rows belong to one rank and are updated within the backward pass.

    Args:
        members: the shards, at least one. Several may belong to one table.
        lookups: for each segment of the input the member that it is looked up in. Several features may share a
            member: their segments are neighbours. So ``lookups`` ascends from 0 to len(members) - 1 without gaps,
            for example (0, 1, 1, 2).
        pooled: whether `forward` is called, or `rows`, for which all members have one length.
        replicated: whether every rank holds the same copies.
    """

    def __init__(
        self, members: tuple[LocalTable, ...], lookups: tuple[int, ...], *, pooled: bool, replicated: bool = False
    ) -> None:
        super().__init__()
        # FBGEMM 1.8 on CPUs writes past its buffers when a member's lookups are apart.
        assert list(lookups) == sorted(lookups), f"lookups {lookups} must ascend"
        assert sorted(set(lookups)) == list(range(len(members))) != [], "each member is looked up, and there is one"
        dims = tuple(members[member].dim for member in lookups)
        assert pooled or len(set(dims)) == 1, "unpooled rows of one batch have one length"
        self.members = members
        self.lookups = lookups
        self.pooled = pooled
        self.replicated = replicated
        self.is_copy = False
        """Whether a rank of another group of ranks saves what is here: see `StateTensor.is_copy`."""
        self.fixed = False
        """Whether members can have no more rows than before: see `StateTensor.fixed`."""
        self.row_ids: Tensor | None = None
        """int64 [rows of the table]: ids of rows that stand in another order than that of their ids. On the CPU, or
        where a form computes."""
        self.output_dim = sum(dims) if pooled else dims[0]

    @abstractmethod
    def forward(self, values: Tensor, offsets: Tensor, per_sample_weights: Tensor | None = None) -> Tensor:
        """Look bags of rows up.

        The input is cut into segments, one for each lookup, and each segment into B bags, one for each sample::

            values    7 2 | 4 1 . 9          lookups (0, 1), B = 2
            offsets  0 1   2   4  5          bag 0 of lookup 0 is [7], bag 1 of lookup 1 is [9]

        Args:
            values: [n] int32 or int64 row numbers inside the member. They are not checked: one out of range reads
                or writes memory that belongs to something else.
            offsets: [len(lookups) * B + 1], on the device of ``values``, ascending from 0 to n; B may be 0.
            per_sample_weights: [n] float32 that each row is multiplied by, or None for ones.

        Returns:
            [B, output_dim] float32 sums, lookups side by side and zeros for an empty bag. Differentiable towards the
            tables, not the weights.
        """

    @abstractmethod
    def rows(self, values: Tensor, offsets: Tensor) -> Tensor:
        """Look rows up one by one: [n, output_dim] float32, differentiable; the input is that of `forward`."""

    @abstractmethod
    def step(self) -> None:
        """Apply the gradients that wait, and zero them in place; nothing to do where learning is fused."""

    @abstractmethod
    def set_learning_rate(self, learning_rate: float) -> None:
        """Learn at this rate from the next `forward` (fused, whose backward pass is bound to it) or `step` on."""

    @abstractmethod
    def _stored(self, member: int) -> dict[str, Tensor]:
        """Views of a member, "weight" [rows, dim] first, then what the optimiser keeps, all float32.

        sgd: nothing. adagrad: ``sum_of_squares`` [rows, dim]. rowwise_adagrad: ``sum_of_squares`` [rows], of this
        member's columns only. adam: ``first_moment``, ``second_moment`` [rows, dim], and ``step``, a scalar that
        counts the steps taken.
        """

    def has_gradients(self) -> bool:
        """Whether gradients wait for `step`."""
        found = [parameter.grad for parameter in self.parameters() if parameter.grad is not None]
        return any(gradient.is_sparse or bool(gradient.any()) for gradient in found)

    def initialise(self, *, seed: int, scales: Sequence[float]) -> None:
        """Write first values that depend on seed, table, id and column alone, not on how tables are cut.

        Args:
            seed: the run's seed.
            scales: for each member half the width of its first values' interval around 0: uniform in [-scale, scale).
        """
        for number, (member, scale) in enumerate(zip(self.members, scales, strict=True)):
            fill_slices(self._stored(number)["weight"], member, scale, seed, self._ids_of(member))

    def _ids_of(self, member: LocalTable) -> Tensor | None:
        # Copies of rows stand behind the table.
        if self.row_ids is None or member.rows[0] >= len(self.row_ids):
            return None
        return self.row_ids[slice(*member.rows)]

    def state(self) -> list[StateTensor]:
        """Everything that is learnt: views of values and of what the optimiser keeps."""
        axes: tuple[StateAxis, StateAxis] = ("rows", "columns")
        return [
            StateTensor(
                piece=member,
                name=name,
                tensor=tensor,
                axes=axes[: tensor.ndim],
                replicated=self.replicated,
                is_copy=self.is_copy,
                fixed=self.fixed,
            )
            for number, member in enumerate(self.members)
            for name, tensor in (*self._stored(number).items(), (ROW_IDS, self._ids_of(member)))
            if tensor is not None
        ]

    def load_state(self, tensors: Iterable[StateTensor]) -> None:
        """Overwrite parts of the state, each as soon as it comes.

        Args:
            tensors: pieces and names are some of `state`'s, shapes too; values are converted where types differ.
        """
        place = {(found.piece, found.name): found.tensor for found in self.state()}
        for given in tensors:
            place[given.piece, given.name].copy_(given.tensor)


def table_key(name: str, seed: int) -> int:
    """Key of the first values of a table, in [0, 2**64)."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return stream_key(seed, Stream.INITIALISE, int.from_bytes(digest, "little"))


_CHUNK_VALUES = 1 << 20
"""Values made at a time where they must be converted or sent to another device: 4 MB, so they stay in a cache."""


def fill_slices(weight: Tensor, place: LocalTable, scale: float, seed: int, row_ids: Tensor | None = None) -> None:
    """First values of a shard, by the ids of its rows where these are not their numbers; rounded where it is short."""
    from windrow.recsys.tables.table_kernels import fill_uniform

    key = np.uint64(table_key(place.name, seed))
    in_place = weight.device.type == "cpu" and weight.dtype == torch.float32
    rows_at_once = max(_CHUNK_VALUES // max(weight.shape[1], 1), 1)
    for start in range(0, len(weight), rows_at_once):
        part = weight[start : start + rows_at_once]
        first = place.rows[0] + start
        ids = np.arange(first, first + len(part)) if row_ids is None else row_ids[start : start + len(part)].numpy()
        values = part.numpy() if in_place else np.empty(part.shape, dtype=np.float32)
        fill_uniform(values, key, ids, place.columns[0], np.float32(scale))
        if not in_place:
            part.copy_(torch.from_numpy(values))
