"""Pooled vectors on their way home, and their gradients on the way back.

An owner looks the bags of all ranks up at once; rows of one rank lie together, so that where nothing is deduplicated
nothing is copied to send them::

    owner 0's output [rows of all ranks, its columns]           home (rank 1)
        rank 0's rows                                           a matrix for each group [its rows, all columns]
        rank 1's rows      ------------------------------------>  columns of owner 0 copied, or added where a table
                                                                  is cut by rows; divided where bags are averaged
                           <------------------------------------  the same columns of the gradient

A row is a sample, or in a deduplicated group a distinct one. Where an owner has columns of several groups, each group
has rows of its own number, and a message is one block (`Band`) after the other.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd import Variable

from windrow.comm.world import World
from windrow.partition.tables.plan import Range
from windrow.recsys.sharded.buffers import Buffers
from windrow.recsys.sharded.layout import Layout, OwnerLayout
from windrow.recsys.sharded.pieces import pieces_of

if TYPE_CHECKING:
    from windrow.comm.pending import Pending

__all__ = ["PooledExchange", "PooledTransfer", "Scale"]

Scale = tuple[int, Range, Tensor]
"""Group, columns of its matrix to multiply, and [rows, 1] what by."""


class PooledExchange:
    """How owners' outputs become the matrices of each group on every rank.

    Args:
        world: all its ranks make the same exchange.
        layout: the same on every rank.
        device: of vectors and results.
        stage: name of the traffic in errors and in the meter; must agree.
    """

    def __init__(self, world: World, layout: Layout, *, device: torch.device, stage: str) -> None:
        self.world = world
        self.layout = layout
        self.stage = stage
        self.device = device
        self.pieces = pieces_of(layout)
        self.widths = [0] * layout.num_groups
        """Columns of each group's matrix."""
        for (_, feature, _), (_, stop) in zip(layout.outputs, layout.columns_in_group(), strict=True):
            self.widths[layout.groups[feature]] = stop
        self.buffers = Buffers(device)

    def start(self, pooled: Sequence[Tensor], num_rows: npt.NDArray[np.int64]) -> "PooledTransfer":
        """Send every rank its rows. Collective.

        Args:
            pooled: for each batch of this owner [bags of all ranks, its columns] float32, bags grouped by the rank
                they belong to; their graph is kept for the gradients.
            num_rows: [ranks, groups] rows of each rank.
        """
        return PooledTransfer(self, pooled, num_rows)


class PooledTransfer:
    """One minibatch's pooled vectors in flight; made by `PooledExchange.start`."""

    def __init__(
        self, exchange: PooledExchange, pooled: Sequence[Tensor], num_rows: npt.NDArray[np.int64]
    ) -> None:
        self._exchange = exchange
        self._num_rows = num_rows
        self._pooled = pooled
        self._rank = exchange.world.rank
        self._owner = exchange.layout.owners[self._rank]
        blocks = self._blocks_of_ranks([found.detach() for found in pooled])
        self._received, incoming, self._parts = self._borrow(self._shapes_at_home())
        outgoing = self._in_one_message(blocks)
        self._borrowed: Tensor | None = None
        if outgoing is None:
            self._borrowed, outgoing, copies = self._borrow(self._shapes_of_ranks())
            for targets, sources in zip(copies, blocks, strict=True):
                for target, source in zip(targets, sources, strict=False):
                    target.copy_(source)
        self._parts[self._rank] = blocks[self._rank]
        self._pending: Pending[None] = exchange.world.start_exchange(
            outgoing, incoming, stage=f"{exchange.stage}: vectors"
        )

    def finish(self, replicated: Sequence[Tensor], scales: Sequence[Scale]) -> tuple[Tensor, ...]:
        """Wait for the vectors and put them together.

        In training mode the results' backward pass is collective: every rank runs it once, also one without samples.

        Args:
            replicated: for each batch of the tables that every rank holds [bags, columns], with its graph.
            scales: what to multiply.

        Returns:
            For each group [rows of this rank, columns] float32.

        Raises:
            DeadlineError: a rank did not come in time.
        """
        self._pending.wait()
        # Nothing that is differentiated need have come here: a rank may hold no table.
        anchor = torch.empty(0, requires_grad=torch.is_grad_enabled())
        outputs: tuple[Tensor, ...] = _Assemble.apply(  # type: ignore[no-untyped-call]  # torch does not annotate it
            self, scales, anchor, *replicated
        )
        return outputs

    def assemble(self, replicated: Sequence[Tensor], scales: Sequence[Scale]) -> tuple[Tensor, ...]:
        """The columns of all owners side by side, group by group."""
        exchange = self._exchange
        sources = [*self._parts, self._blocks_at_home(replicated)]
        outputs = self._matrices_at_home()
        for piece in exchange.pieces:
            target = _columns(outputs[piece.group], piece.output)
            part = _columns(sources[piece.owner][piece.band], piece.columns)
            if piece.add:
                target.add_(part)
            else:
                target.copy_(part)
        for group, columns, scale in scales:
            _columns(outputs[group], columns).mul_(scale)
        self._parts = []
        exchange.buffers.give(self._received)
        if self._borrowed is not None:
            exchange.buffers.give(self._borrowed)
        return tuple(outputs)

    def send_back(self, gradients: Sequence[Tensor], scales: Sequence[Scale]) -> list[Tensor]:
        """Start to give owners the gradients of their columns; `learn` ends it. Collective.

        Args:
            gradients: of each group's matrix.
            scales: as in `finish`.

        Returns:
            Gradients of the outputs of replicated tables, batch by batch.
        """
        gradients = list(gradients)
        for group in {group for group, _, _ in scales}:
            gradients[group] = gradients[group].clone()
        for group, columns, scale in scales:
            _columns(gradients[group], columns).mul_(scale)
        exchange = self._exchange
        replicated_layout = exchange.layout.replicated
        bags = [sum(_bags(self._num_rows, batch.groups)) for batch in self._owner.batches]
        widths = [batch.columns[1] - batch.columns[0] for batch in self._owner.batches]
        # Rows that pad a batch are no gradient of anything: their bags are empty.
        self._arrived_buffer, self._arrived = exchange.buffers.take(list(zip(bags, widths, strict=True)))
        self._blocks = self._blocks_of_ranks(self._arrived)
        incoming = self._in_one_message(self._blocks)
        self._incoming_buffer, self._incoming = None, self._blocks
        if incoming is None:
            self._incoming_buffer, incoming, self._incoming = self._borrow(self._shapes_of_ranks())
        self._sent, outgoing, parts = self._borrow(self._shapes_at_home())
        parts[self._rank] = self._blocks[self._rank]
        replicated = [
            torch.empty(
                max(int(self._num_rows[self._rank, group]) for group in batch.groups),
                batch.columns[1] - batch.columns[0],
                device=exchange.device,
            )
            for batch in replicated_layout.batches
        ]
        targets = [*parts, self._blocks_at_home(replicated)]
        for piece in exchange.pieces:
            _columns(targets[piece.owner][piece.band], piece.columns).copy_(
                _columns(gradients[piece.group], piece.output)
            )
        self._pending = exchange.world.start_exchange(
            outgoing, incoming, stage=f"{exchange.stage}: gradients"
        )
        return replicated

    def learn(self) -> None:
        """Wait for the gradients of all ranks, and run the backward pass of this owner's lookups.

        Raises:
            DeadlineError: a rank did not come in time.
        """
        self._pending.wait()
        buffers = self._exchange.buffers
        if self._incoming_buffer is not None:
            for targets, sources in zip(self._blocks, self._incoming, strict=True):
                for target, source in zip(targets, sources, strict=False):
                    target.copy_(source)
            buffers.give(self._incoming_buffer)
        found = [
            (pooled, arrived)
            for pooled, arrived in zip(self._pooled, self._arrived, strict=True)
            if pooled.requires_grad
        ]
        if found:
            torch.autograd.backward([pooled for pooled, _ in found], [arrived for _, arrived in found])
        buffers.give(self._arrived_buffer)
        buffers.give(self._sent)

    def _blocks_of_ranks(self, outputs: Sequence[Tensor]) -> list[list[Tensor]]:
        """For each rank the bands of this owner's outputs that are its rows: views."""
        starts = [
            list(accumulate(_bags(self._num_rows, batch.groups), initial=0)) for batch in self._owner.batches
        ]
        return [
            _bands(outputs, self._owner, [of_batch[rank] for of_batch in starts], rows)
            for rank, rows in enumerate(self._num_rows)
        ]

    def _blocks_at_home(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """The bands of the output of replicated tables, which has the rows of this rank alone: views."""
        replicated = self._exchange.layout.replicated
        return _bands(outputs, replicated, [0] * len(replicated.batches), self._num_rows[self._rank])

    def _matrices_at_home(self) -> list[Tensor]:
        """[rows, columns] for each group, to be filled."""
        rows: list[int] = self._num_rows[self._rank].tolist()
        return [
            torch.empty(count if width else 0, width, device=self._exchange.device)
            for count, width in zip(rows, self._exchange.widths, strict=True)
        ]

    def _in_one_message(self, blocks: Sequence[Sequence[Tensor]]) -> list[Tensor] | None:
        """For each rank its block, where this owner has but one band; None where blocks have to be joined."""
        if len(self._owner.bands) > 1:
            return None
        nothing = torch.empty(0, device=self._exchange.device)
        return [bands[0] if bands else nothing for bands in blocks]

    def _shapes_at_home(self) -> list[list[tuple[int, int]]]:
        """Of the bands that each owner sends here; none of this rank's own, which stay where they are."""
        rows = self._num_rows[self._rank]
        return [
            [] if number == self._rank else _shapes(owner, rows)
            for number, owner in enumerate(self._exchange.layout.owners)
        ]

    def _shapes_of_ranks(self) -> list[list[tuple[int, int]]]:
        """Of the bands that each rank gets from here; none of this rank's own."""
        return [
            [] if number == self._rank else _shapes(self._owner, rows)
            for number, rows in enumerate(self._num_rows)
        ]

    def _borrow(
        self, shapes: Sequence[Sequence[tuple[int, int]]]
    ) -> tuple[Tensor, list[Tensor], list[list[Tensor]]]:
        """Memory for a message to or from each rank: what to give back, messages, and the matrices in each."""
        buffer, matrices = self._exchange.buffers.take([shape for of_rank in shapes for shape in of_rank])
        sizes = [sum(rows * columns for rows, columns in of_rank) for of_rank in shapes]
        messages = list(buffer[: sum(sizes)].split(sizes))
        remaining = iter(matrices)
        return buffer, messages, [[next(remaining) for _ in of_rank] for of_rank in shapes]


class _Assemble(torch.autograd.Function):
    """The vectors come home; in the backward pass their gradients go back."""

    @staticmethod
    def forward(
        ctx: Any, transfer: PooledTransfer, scales: Sequence[Scale], anchor: Tensor, *replicated: Tensor
    ) -> tuple[Tensor, ...]:
        del anchor
        ctx.transfer = transfer
        ctx.scales = scales
        return transfer.assemble(replicated, scales)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        replicated = ctx.transfer.send_back(gradients, ctx.scales)
        # The gradients travel while the rest of the model is differentiated; tables learn when that is done.
        Variable._execution_engine.queue_callback(ctx.transfer.learn)  # noqa: SLF001  # as torch's own DDP does
        return None, None, None, *replicated


def _bags(num_rows: npt.NDArray[np.int64], groups: Sequence[int]) -> list[int]:
    """Bags of each rank in a batch: as many as the largest of its groups has rows."""
    found: list[int] = num_rows[:, list(groups)].max(axis=1).tolist()
    return found


def _bands(
    outputs: Sequence[Tensor], owner: OwnerLayout, starts: Sequence[int], rows: npt.NDArray[np.int64]
) -> list[Tensor]:
    """Views of one rank's rows of each group in an owner's outputs, which begin there in each batch, band by band."""
    found = []
    for band, (count, width) in zip(owner.bands, _shapes(owner, rows), strict=True):
        first, start = band.columns[0] - owner.batches[band.batch].columns[0], starts[band.batch]
        found.append(outputs[band.batch][start : start + count, first : first + width])
    return found


def _shapes(owner: OwnerLayout, rows: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    return [(int(rows[band.group]), band.width) for band in owner.bands]


def _columns(matrix: Tensor, columns: Range) -> Tensor:
    return matrix[:, columns[0] : columns[1]]
