"""Pooled vectors on their way home, and their gradients on the way back.

An owner looks the bags of all ranks up at once; rows of one rank lie together, so that nothing is copied to send them::

    owner 0's output [samples of all ranks, its columns]        home (rank 1)
        rank 0's samples                                        output [its samples, all columns]
        rank 1's samples   ------------------------------------>  columns of owner 0 copied, or added where a table
                                                                  is cut by rows; divided where bags are averaged
                           <------------------------------------  the same columns of the gradient
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Variable

from windrow.comm.world import World
from windrow.partition.tables.plan import Range
from windrow.recsys.sharded.buffers import Buffers
from windrow.recsys.sharded.layout import Layout, pieces_of

if TYPE_CHECKING:
    from windrow.comm.pending import Pending

__all__ = ["PooledExchange", "PooledTransfer"]


class PooledExchange:
    """How owners' outputs become the collection's output on every rank.

    Args:
        world: all its ranks make the same exchange.
        layout: the same on every rank.
        device: of vectors and results.
        stage: name of the traffic in errors and in the meter; must agree.
    """

    def __init__(self, world: World, layout: Layout, *, device: torch.device, stage: str) -> None:
        self.world = world
        self.stage = stage
        self.output_width = layout.width
        self.widths = [owner.width for owner in layout.owners]
        self.replicated_width = layout.replicated.width
        self.pieces = pieces_of(layout)
        self.buffers = Buffers(device)

    def start(self, pooled: Tensor, num_samples: Sequence[int]) -> "PooledTransfer":
        """Send every rank its rows. Collective.

        Args:
            pooled: [sum(num_samples), width of this owner] float32, rows grouped by the rank they belong to; its
                graph is kept for the gradients.
            num_samples: samples of each rank.
        """
        return PooledTransfer(self, pooled, list(num_samples))


class PooledTransfer:
    """One minibatch's pooled vectors in flight; made by `PooledExchange.start`."""

    def __init__(self, exchange: PooledExchange, pooled: Tensor, num_samples: list[int]) -> None:
        self._exchange = exchange
        self._num_samples = num_samples
        self._pooled = pooled
        world = exchange.world
        self._home_samples = num_samples[world.rank]
        blocks = list(pooled.detach().split(num_samples))
        self._received, self._parts = exchange.buffers.take(self._shapes_at_home())
        self._parts[world.rank] = blocks[world.rank]
        self._pending: Pending[None] = world.start_exchange(
            blocks, self._parts, stage=f"{exchange.stage}: vectors"
        )

    def finish(self, replicated: Tensor | None, scales: Sequence[tuple[Range, Tensor]]) -> Tensor:
        """Wait for the vectors and put them together.

        In training mode the result's backward pass is collective: every rank runs it once, also one without samples.

        Args:
            replicated: [samples, columns] output of the tables that every rank holds, with its graph; None without.
            scales: columns of the output to multiply, and [samples, 1] what by.

        Returns:
            [samples of this rank, all columns] float32.

        Raises:
            DeadlineError: a rank did not come in time.
        """
        self._pending.wait()
        # Nothing that is differentiated need have come here: a rank may hold no table.
        anchor = torch.empty(0, requires_grad=torch.is_grad_enabled())
        output: Tensor = _Assemble.apply(  # type: ignore[no-untyped-call]  # torch does not annotate it
            self, scales, anchor, replicated
        )
        return output

    def assemble(self, replicated: Tensor | None, scales: Sequence[tuple[Range, Tensor]]) -> Tensor:
        """The columns of all owners side by side."""
        sources = [*self._parts, replicated]
        output = self._pooled.new_empty(self._home_samples, self._exchange.output_width)
        for piece in self._exchange.pieces:
            source = sources[piece.owner]
            assert source is not None, "replicated tables were looked up"
            target, part = _columns(output, piece.output), _columns(source, piece.columns)
            if piece.add:
                target.add_(part)
            else:
                target.copy_(part)
        for columns, scale in scales:
            _columns(output, columns).mul_(scale)
        self._parts = []
        self._exchange.buffers.give(self._received)
        return output

    def send_back(self, gradient: Tensor, scales: Sequence[tuple[Range, Tensor]]) -> Tensor | None:
        """Start to give owners the gradients of their columns; `learn` ends it. Collective.

        Args:
            gradient: [samples, all columns] of the output.
            scales: as in `finish`.

        Returns:
            [samples, columns] gradient of the output of replicated tables; None without.
        """
        if scales:
            gradient = gradient.clone()
            for columns, scale in scales:
                _columns(gradient, columns).mul_(scale)
        world = self._exchange.world
        buffers = self._exchange.buffers
        width = self._exchange.widths[world.rank]
        self._borrowed, (self._arrived,) = buffers.take([(sum(self._num_samples), width)])
        blocks = list(self._arrived.split(self._num_samples))
        self._sent, parts = buffers.take(self._shapes_at_home())
        parts[world.rank] = blocks[world.rank]
        replicated = gradient.new_empty(self._home_samples, self._exchange.replicated_width)
        targets = [*parts, replicated]
        for piece in self._exchange.pieces:
            _columns(targets[piece.owner], piece.columns).copy_(_columns(gradient, piece.output))
        self._pending = world.start_exchange(parts, blocks, stage=f"{self._exchange.stage}: gradients")
        return replicated if self._exchange.replicated_width else None

    def learn(self) -> None:
        """Wait for the gradients of all ranks, and run the backward pass of this owner's lookup.

        Raises:
            DeadlineError: a rank did not come in time.
        """
        self._pending.wait()
        if self._pooled.requires_grad:
            torch.autograd.backward(self._pooled, self._arrived)
        self._exchange.buffers.give(self._borrowed)
        self._exchange.buffers.give(self._sent)

    def _shapes_at_home(self) -> list[tuple[int, int]]:
        """Of the vectors that each other owner sends, or whose gradients it gets."""
        rank = self._exchange.world.rank
        widths = self._exchange.widths
        return [(self._home_samples, 0 if o == rank else width) for o, width in enumerate(widths)]


class _Assemble(torch.autograd.Function):
    """The vectors come home; in the backward pass their gradients go back."""

    @staticmethod
    def forward(
        ctx: Any,
        transfer: PooledTransfer,
        scales: Sequence[tuple[Range, Tensor]],
        anchor: Tensor,
        replicated: Tensor | None,
    ) -> Tensor:
        del anchor
        ctx.transfer = transfer
        ctx.scales = scales
        return transfer.assemble(replicated, scales)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None, Tensor | None]:
        (gradient,) = gradients
        replicated = ctx.transfer.send_back(gradient, ctx.scales)
        # The gradients travel while the rest of the model is differentiated; tables learn when that is done.
        Variable._execution_engine.queue_callback(ctx.transfer.learn)  # noqa: SLF001  # as torch's own DDP does
        return None, None, None, replicated


def _columns(matrix: Tensor, columns: Range) -> Tensor:
    return matrix[:, columns[0] : columns[1]]
