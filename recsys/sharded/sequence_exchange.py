"""The route of single rows: from what owners looked up to the rows of each feature's ids, in their order.

What an owner found for one rank is one message, lookup after lookup, and in each the rows in the order of the ids that
this rank asked for. Where a table is cut by rows, home knows which of its ids it asked this owner for, and puts the
rows in their places.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.comm.messages import Wire
from windrow.comm.route import Block, Landing, Route
from windrow.partition.tables.plan import Range
from windrow.recsys.sharded.layout import Layout, Lookup, OwnerLayout
from windrow.recsys.sharded.packing import Message
from windrow.recsys.sharded.samples import Samples

__all__ = ["output_of", "row_route"]


def row_route(
    wire: Wire,
    layout: Layout,
    outputs: Sequence[Sequence[tuple[int, Range]]],
    counts: npt.NDArray[np.int64],
    asked: Sequence[Message],
    samples: Sequence[Samples],
) -> Route:
    """The route of one minibatch.

    Args:
        wire: how rows travel.
        layout: the same on every rank.
        outputs: `output_of` the lookups of each owner, and at the end of the replicated tables.
        counts: [ranks, lookups] ids that each rank asks this one for.
        asked: what this rank asks each owner for.
        samples: likewise, group by group.

    Returns:
        From the rows that this owner found for each lookup [ids of all ranks, columns], and locally those of the
        replicated tables', to the rows of each output.
    """
    starts = [list(accumulate(of_lookup, initial=0)) for of_lookup in counts.T.tolist()]
    outgoing = [
        [Block(lookup, slice(bounds[peer], bounds[peer + 1])) for lookup, bounds in enumerate(starts)]
        for peer in range(wire.world.size)
    ]
    arriving = [
        [(int(message.counts[lookup.request]), lookup.dim) for lookup in owner.lookups]
        for owner, message in zip(layout.owners, asked, strict=True)
    ]
    landings = [
        _landings(owner, of_owner, samples)
        for owner, of_owner in zip((*layout.owners, layout.replicated), outputs, strict=True)
    ]
    # Ids of replicated tables, whose order is that of the samples, land as they stand.
    outgoing.append(
        [Block(number, slice(0, landing.target.num_rows)) for number, landing in enumerate(landings[-1])]
    )
    return Route(wire, outgoing, landings, arriving)


def output_of(layout: Layout, owner: OwnerLayout) -> list[tuple[int, Range]]:
    """For each lookup of an owner its place in `Layout.outputs`, and which columns of that output it gives."""
    found = []
    for lookup in owner.lookups:
        start, stop = lookup.output
        number = next(number for number, (_, _, columns) in enumerate(layout.outputs) if start < columns[1])
        first = layout.outputs[number][2][0]
        found.append((number, (start - first, stop - first)))
    return found


def _landings(
    owner: OwnerLayout, outputs: Sequence[tuple[int, Range]], samples: Sequence[Samples]
) -> list[Landing]:
    rows: dict[int, slice | Tensor] = {}
    for lookup in owner.lookups:
        if lookup.request not in rows:
            rows[lookup.request] = _rows(owner, lookup, samples)
    return [
        Landing(block, Block(number, rows[lookup.request], columns))
        for block, (lookup, (number, columns)) in enumerate(zip(owner.lookups, outputs, strict=True))
    ]


def _rows(owner: OwnerLayout, lookup: Lookup, samples: Sequence[Samples]) -> slice | Tensor:
    """Which of a feature's ids an owner was asked for."""
    request = owner.requests[lookup.request]
    group = samples[owner.request_groups[lookup.request]]
    key = group.keys[request.feature]
    start, stop = int(group.starts[key]), int(group.starts[key + 1])
    if request.whole:
        return slice(0, stop - start)
    ids = group.ids[start:stop]
    return torch.from_numpy(np.flatnonzero((request.rows[0] <= ids) & (ids < request.rows[1])))
