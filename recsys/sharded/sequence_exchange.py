"""Rows of single ids on their way home, and their gradients on the way back.

What an owner found for one rank is one message, lookup after lookup, and in each the rows in the order of the ids that
this rank asked for. Where a table is cut by rows, home knows which of its ids it asked this owner for, and puts the
rows in their places.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Variable

from windrow.comm.world import World
from windrow.recsys.sharded.layout import Layout, Lookup, OwnerLayout
from windrow.recsys.sharded.packing import Message
from windrow.recsys.sharded.samples import Samples

__all__ = ["Places", "SequenceExchange", "SequenceTransfer", "Target", "find_places", "targets_of"]


class SequenceExchange:
    """How rows that owners found become the collection's results on every rank.

    Args:
        world: all its ranks make the same exchange.
        layout: the same on every rank.
        device: of rows and results.
        stage: name of the traffic in errors and in the meter; must agree.
    """

    def __init__(self, world: World, layout: Layout, *, device: torch.device, stage: str) -> None:
        self.world = world
        self.layout = layout
        self.device = device
        self.stage = stage
        self.targets = [targets_of(layout, owner) for owner in (*layout.owners, layout.replicated)]
        """Of each owner's lookups, and at the end of those of replicated tables."""

    def start(
        self, rows: list[Tensor], counts: np.ndarray, messages: Sequence[Message], samples: Sequence[Samples]
    ) -> "SequenceTransfer":
        """Send every rank its rows. Collective.

        Args:
            rows: for each lookup of this owner [ids of all ranks, dim] float32, rank by rank; their graph is kept.
            counts: [ranks, lookups] number of ids.
            messages: what this rank asked each owner for.
            samples: likewise, group by group.
        """
        return SequenceTransfer(self, rows, counts, messages, samples)


class SequenceTransfer:
    """One minibatch's rows in flight; made by `SequenceExchange.start`."""

    def __init__(
        self,
        exchange: SequenceExchange,
        rows: list[Tensor],
        counts: np.ndarray,
        messages: Sequence[Message],
        samples: Sequence[Samples],
    ) -> None:
        self._exchange = exchange
        self._rows = rows
        self._counts = counts
        layout, device, rank = exchange.layout, exchange.device, exchange.world.rank
        blocks = [row.detach().split(of_ranks) for row, of_ranks in zip(rows, counts.T.tolist(), strict=True)]
        self._sends = [
            _joined([block[peer] for block in blocks], device) for peer in range(len(layout.owners))
        ]
        self._shapes = [
            [(int(message.counts[lookup.request]), lookup.dim) for lookup in owner.lookups]
            for owner, message in zip(layout.owners, messages, strict=True)
        ]
        sizes = [sum(count * dim for count, dim in shapes) for shapes in self._shapes]
        self._parts = [
            self._sends[owner] if owner == rank else torch.empty(size, device=device)
            for owner, size in enumerate(sizes)
        ]
        self._num_rows = counts.sum(1).tolist(), [sum(count for count, _ in found) for found in self._shapes]
        """Sent to each rank, and received from each."""
        self._pending = exchange.world.start_exchange(
            self._sends, self._parts, stage=f"{exchange.stage}: vectors", num_rows=self._num_rows
        )
        # While the rows travel:
        *self._places, self._replicated_places = [
            find_places(owner, targets, samples, device)
            for owner, targets in zip((*layout.owners, layout.replicated), exchange.targets, strict=True)
        ]
        self._lengths = []
        for _, feature, _ in layout.outputs:
            group = samples[layout.groups[feature]]
            key = group.keys[feature]
            self._lengths.append(int(group.starts[key + 1] - group.starts[key]))

    def finish(self, replicated: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Wait for the rows and put them in their places.

        In training mode the backward pass of the results is collective: every rank runs it once.

        Args:
            replicated: for each lookup of the tables that every rank holds [ids, dim], with its graph.

        Returns:
            For each output [ids of its feature, columns] float32.

        Raises:
            DeadlineError: a rank did not come in time.
        """
        self._pending.wait()
        anchor = torch.empty(0, requires_grad=torch.is_grad_enabled())
        outputs: tuple[Tensor, ...] = _Place.apply(  # type: ignore[no-untyped-call]  # torch does not annotate it
            self, anchor, *replicated
        )
        return outputs

    def place(self, replicated: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The rows of all owners in the order of the ids."""
        outputs = tuple(
            torch.empty(length, stop - start, device=self._exchange.device)
            for length, (_, _, (start, stop)) in zip(
                self._lengths, self._exchange.layout.outputs, strict=True
            )
        )
        for places, shapes, part in zip(self._places, self._shapes, self._parts, strict=True):
            blocks = part.split([count * dim for count, dim in shapes])
            for place, shape, block in zip(places, shapes, blocks, strict=True):
                place.write(block.view(shape), outputs)
        for place, rows in zip(self._replicated_places, replicated, strict=True):
            place.write(rows, outputs)
        self._parts, self._sends = [], []
        return outputs

    def send_back(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Start to give owners the gradients of their rows; `learn` ends it. Collective.

        Args:
            gradients: of each output.

        Returns:
            Gradients of the rows of replicated tables, lookup by lookup.
        """
        exchange = self._exchange
        rank, layout = exchange.world.rank, exchange.layout
        sends = [
            _joined([place.read(gradients) for place in places], exchange.device) for places in self._places
        ]
        dims = np.array([lookup.dim for lookup in layout.owners[rank].lookups], np.int64)
        self._sizes: list[list[int]] = (self._counts * dims).tolist()
        self._arrived = [
            sends[peer] if peer == rank else torch.empty(sum(size), device=exchange.device)
            for peer, size in enumerate(self._sizes)
        ]
        sent, received = self._num_rows
        self._pending = exchange.world.start_exchange(
            sends, self._arrived, stage=f"{exchange.stage}: gradients", num_rows=(received, sent)
        )
        return [
            place.read(gradients).view(-1, lookup.dim)
            for place, lookup in zip(self._replicated_places, layout.replicated.lookups, strict=True)
        ]

    def learn(self) -> None:
        """Wait for the gradients of all ranks, and run the backward pass of this owner's lookups.

        Raises:
            DeadlineError: a rank did not come in time.
        """
        self._pending.wait()
        blocks = [part.split(size) for part, size in zip(self._arrived, self._sizes, strict=True)]
        found = [
            (rows, torch.cat([block[number] for block in blocks]).view_as(rows))
            for number, rows in enumerate(self._rows)
            if rows.requires_grad
        ]
        if found:
            torch.autograd.backward([rows for rows, _ in found], [gradient for _, gradient in found])


class _Place(torch.autograd.Function):
    """Rows come home; in the backward pass their gradients go back."""

    @staticmethod
    def forward(
        ctx: Any, transfer: SequenceTransfer, anchor: Tensor, *replicated: Tensor
    ) -> tuple[Tensor, ...]:
        del anchor
        ctx.transfer = transfer
        return transfer.place(replicated)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        replicated = ctx.transfer.send_back(gradients)
        # The gradients travel while the rest of the model is differentiated; tables learn when that is done.
        Variable._execution_engine.queue_callback(ctx.transfer.learn)  # noqa: SLF001  # as torch's own DDP does
        return None, None, *replicated


def _joined(blocks: Sequence[Tensor], device: torch.device) -> Tensor:
    if not blocks:
        return torch.empty(0, device=device)
    return torch.cat([block.reshape(-1) for block in blocks])


@dataclass(frozen=True, slots=True)
class Target:
    """Which columns of which result a lookup gives."""

    output: int
    """Place in `Layout.outputs`."""
    columns: slice
    """Columns of that output."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where the rows of one lookup belong."""

    target: Target
    """Output and columns."""
    positions: Tensor | None
    """[rows] int64 which of the feature's ids these are; None for all of them, in order."""

    def write(self, rows: Tensor, outputs: Sequence[Tensor]) -> None:
        """Put rows where they belong."""
        block = self._block(outputs)
        if self.positions is None:
            block.copy_(rows)
        else:
            block.index_copy_(0, self.positions, rows)

    def read(self, outputs: Sequence[Tensor]) -> Tensor:
        """The rows that belong there, as one vector."""
        block = self._block(outputs)
        return (block if self.positions is None else block.index_select(0, self.positions)).reshape(-1)

    def _block(self, outputs: Sequence[Tensor]) -> Tensor:
        return outputs[self.target.output][:, self.target.columns]


def targets_of(layout: Layout, owner: OwnerLayout) -> list[Target]:
    """The target of each lookup of an owner, the same for every minibatch."""
    found = []
    for lookup in owner.lookups:
        start, stop = lookup.output
        number = next(number for number, (_, _, columns) in enumerate(layout.outputs) if start < columns[1])
        first = layout.outputs[number][2][0]
        found.append(Target(number, slice(start - first, stop - first)))
    return found


def find_places(
    owner: OwnerLayout, targets: Sequence[Target], samples: Sequence[Samples], device: torch.device
) -> list[Places]:
    """Where the rows of each lookup of an owner belong in the results of this rank.

    Args:
        owner: who answers.
        targets: of its lookups.
        samples: what this rank asks for, group by group.
        device: of the rows.

    Returns:
        One for each lookup.
    """
    positions: dict[int, Tensor | None] = {}
    for lookup in owner.lookups:
        if lookup.request not in positions:
            positions[lookup.request] = _positions(owner, lookup, samples, device)
    return [
        Places(target, positions[lookup.request])
        for lookup, target in zip(owner.lookups, targets, strict=True)
    ]


def _positions(
    owner: OwnerLayout, lookup: Lookup, samples: Sequence[Samples], device: torch.device
) -> Tensor | None:
    request = owner.requests[lookup.request]
    if request.whole:
        return None
    group = samples[owner.request_groups[lookup.request]]
    key = group.keys[request.feature]
    ids = group.ids[group.starts[key] : group.starts[key + 1]]
    return torch.from_numpy(np.flatnonzero((request.rows[0] <= ids) & (ids < request.rows[1]))).to(device)
