"""Pooled vectors on their way home, and their gradients on the way back.

An owner looks the bags of all ranks up at once; rows of one rank lie together, so that where nothing is deduplicated
nothing is copied to send them::

    owner 0's output [rows of all ranks, its columns]           home (rank 1)
        rank 0's rows                                           a matrix for each group [its rows, all columns]
        rank 1's rows      ------------------------------------>  columns of owner 0 copied, or added where a table
                                                                  is cut by rows; divided where bags are averaged
                           <------------------------------------  the same columns of the gradient

A row is a sample, or in a deduplicated group a distinct one. Where an owner has columns of several groups, each group
has rows of its own number, and a message is one band after the other (`windrow.recsys.sharded.pooled_blocks`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd import Variable

from windrow.comm.world import World
from windrow.partition.tables.plan import Range
from windrow.recsys.sharded.layout import Layout, Lookup, OwnerLayout
from windrow.recsys.sharded.pooled_blocks import Buffers, PooledBlocks, copy_bands, count_rows

if TYPE_CHECKING:
    from windrow.comm.transfer import Pending

__all__ = ["Piece", "PooledExchange", "PooledTransfer", "Scale", "pieces_of"]

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
        self._pooled = pooled
        self._rank = exchange.world.rank
        self._blocks = PooledBlocks(
            exchange.layout, self._rank, num_rows, buffers=exchange.buffers, device=exchange.device
        )
        blocks = self._blocks.of_ranks([found.detach() for found in pooled])
        self._received, incoming, self._parts = self._blocks.borrow_for_home()
        outgoing = self._blocks.in_one_message(blocks)
        self._borrowed: Tensor | None = None
        if outgoing is None:
            self._borrowed, outgoing, copies = self._blocks.borrow_for_ranks()
            copy_bands(blocks, copies)
        self._parts[self._rank] = blocks[self._rank]
        self._pending: Pending[None] = exchange.world.start_exchange(
            outgoing,
            incoming,
            stage=f"{exchange.stage}: vectors",
            num_rows=(count_rows(blocks), count_rows(self._parts)),
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
        sources = [*self._parts, self._blocks.at_home(replicated)]
        outputs = self._blocks.matrices(exchange.widths)
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
        blocks = self._blocks
        # Rows that pad a batch are no gradient of anything: their bags are empty.
        self._arrived_buffer, self._arrived = exchange.buffers.take(blocks.output_shapes())
        self._gradients = blocks.of_ranks(self._arrived)
        incoming = blocks.in_one_message(self._gradients)
        self._incoming_buffer, self._incoming = None, self._gradients
        if incoming is None:
            self._incoming_buffer, incoming, self._incoming = blocks.borrow_for_ranks()
        self._sent, outgoing, parts = blocks.borrow_for_home()
        parts[self._rank] = self._gradients[self._rank]
        replicated = [torch.empty(shape, device=exchange.device) for shape in blocks.replicated_shapes()]
        targets = [*parts, blocks.at_home(replicated)]
        for piece in exchange.pieces:
            _columns(targets[piece.owner][piece.band], piece.columns).copy_(
                _columns(gradients[piece.group], piece.output)
            )
        self._pending = exchange.world.start_exchange(
            outgoing,
            incoming,
            stage=f"{exchange.stage}: gradients",
            num_rows=(count_rows(parts), count_rows(self._gradients)),
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
            copy_bands(self._incoming, self._gradients)
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


def _columns(matrix: Tensor, columns: Range) -> Tensor:
    return matrix[:, columns[0] : columns[1]]


@dataclass(frozen=True, slots=True)
class Piece:
    """Columns on their way from a band of an owner to the group's matrix, and their gradient on the way back."""

    owner: int
    """Place in `Layout.owners`; their number for `Layout.replicated`."""
    band: int
    """Place in `OwnerLayout.bands`."""
    columns: Range
    """Columns of the band."""
    group: int
    """Of the band, and of the matrix."""
    output: Range
    """Columns of the group's matrix."""
    add: bool
    """Whether an earlier piece filled these columns already, so that this one is added."""


def pieces_of(layout: Layout) -> tuple[Piece, ...]:
    """How owners' bands become one matrix for each group.

    Blocks are cut wherever a piece of the same table begins or ends, so that the first to come to a column can be
    copied and the later ones added, and joined again where neighbours go the same way.

    Args:
        layout: of all owners.

    Returns:
        Pieces in the order in which they must be applied; without ``add`` they fill every column of every group's
        matrix (`Layout.columns_in_group`) exactly once.
    """
    owners = (*layout.owners, layout.replicated)
    sources = [(number, lookup) for number, owner in enumerate(owners) for lookup in owner.lookups]
    in_group = layout.columns_in_group()
    cuts = sorted({column for _, lookup in sources for column in lookup.output})
    filled: set[int] = set()
    pieces: list[Piece] = []
    for number, lookup in sources:
        band, start_in_band = _place_in_bands(owners[number], lookup)
        shift, group = _place_in_group(layout, in_group, lookup)
        inside = [cut for cut in cuts if lookup.output[0] <= cut <= lookup.output[1]]
        for start, stop in pairwise(inside):
            first = start_in_band + start - lookup.output[0]
            piece = Piece(
                number,
                band,
                (first, first + stop - start),
                group,
                (start + shift, stop + shift),
                add=start in filled,
            )
            filled.add(start)
            if pieces and _continues(pieces[-1], piece):
                last = pieces.pop()
                piece = Piece(
                    number,
                    band,
                    (last.columns[0], piece.columns[1]),
                    group,
                    (last.output[0], piece.output[1]),
                    add=piece.add,
                )
            pieces.append(piece)
    return tuple(pieces)


def _place_in_bands(owner: OwnerLayout, lookup: Lookup) -> tuple[int, int]:
    """The band of a lookup, and its first column there."""
    for number, band in enumerate(owner.bands):
        if lookup.columns[0] < band.columns[1]:
            return number, lookup.columns[0] - band.columns[0]
    raise AssertionError("bands cover all columns")


def _place_in_group(layout: Layout, in_group: Sequence[Range], lookup: Lookup) -> tuple[int, int]:
    """What to add to the collection's column to get the group's, and the group."""
    for (_, feature, columns), (first, _) in zip(layout.outputs, in_group, strict=True):
        if lookup.output[0] < columns[1]:
            return first - columns[0], layout.groups[feature]
    raise AssertionError("outputs cover all columns")


def _continues(last: Piece, piece: Piece) -> bool:
    return (last.owner, last.band, last.columns[1], last.group, last.output[1], last.add) == (
        piece.owner,
        piece.band,
        piece.columns[0],
        piece.group,
        piece.output[0],
        piece.add,
    )
