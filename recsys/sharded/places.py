"""Where the rows that owners found belong in the results of a rank that asked for them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from windrow.recsys.sharded.layout import Layout, Lookup, OwnerLayout
from windrow.recsys.sharded.samples import Samples

__all__ = ["Places", "Target", "find_places", "targets_of"]


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
