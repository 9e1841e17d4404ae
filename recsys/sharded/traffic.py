"""What looking up a minibatch costs under a plan, in expectation: bytes on the wire and rows of tables read.

Of what an owner gets, the part of its own samples does not travel, so (ranks - 1) / ranks of it does. The messages are
those of `windrow.recsys.sharded.packing`; a vector takes 4 bytes for each column, and its gradient as much back.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from windrow.partition.tables.plan import Cost, Range
from windrow.recsys.sharded.layout import Layout, Request
from windrow.recsys.sharded.packing import MessageFormat, header_length

__all__ = ["FeatureLoad", "expected_traffic"]

_HEADER_BYTES = 8
"""Of a number in a header."""

_LENGTH_BYTES = 4
"""An int32 on the wire."""

_VALUE_BYTES = 4
"""A float32 on the wire: a weight of an id, or a number of a vector."""


@dataclass(frozen=True, slots=True)
class FeatureLoad:
    """What one rank's batch has of a feature."""

    rows: float
    """Lists."""
    ids: float
    """In all of them."""
    one_each: bool
    """Whether every list has exactly one id, so that no lengths travel."""


def expected_traffic(
    layout: Layout,
    form: MessageFormat,
    loads: Mapping[str, FeatureLoad],
    shares: Callable[[str, Range], tuple[float, float]],
) -> Cost:
    """Add up what a step moves, where every rank's batch is alike.

    Args:
        layout: of one collection on all ranks.
        form: of its messages; lengths travel in pooled collections alone.
        loads: of every feature of the layout, for one rank.
        shares: ``(feature, rows)``: of the feature's ids, which fall into a range of rows of its table; and of its
            lists, which have any of these (`windrow.partition.tables.access.filled_bags`).

    Returns:
        The sums over all ranks; memory is left out.
    """
    size = len(layout.owners)

    def shares_of(request: Request) -> tuple[float, float]:
        return (1.0, 1.0) if request.whole else shares(layout.features[request.feature], request.rows)

    id_bytes = lookups = lookup_bytes = vector_bytes = 0.0
    for owner in (*layout.owners, layout.replicated):
        travels = 0 if owner is layout.replicated else size - 1
        message = float(_HEADER_BYTES * header_length(owner, layout.num_groups))
        for request in owner.requests:
            load = loads[layout.features[request.feature]]
            of_ids, of_lists = shares_of(request)
            message += of_ids * load.ids * (form.id_bytes + _VALUE_BYTES * form.weighted)
            if form.with_lengths and not load.one_each:
                message += _LENGTH_BYTES * of_lists * load.rows
        # An owner's own samples stay local; every other rank sends it as much.
        id_bytes += travels * message
        for lookup in owner.lookups:
            request = owner.requests[lookup.request]
            load = loads[layout.features[request.feature]]
            of_ids, of_lists = shares_of(request)
            ids = of_ids * load.ids
            lookups += size * ids
            lookup_bytes += size * ids * _VALUE_BYTES * lookup.dim
            vectors = of_lists * load.rows if form.with_lengths else ids
            vector_bytes += travels * vectors * _VALUE_BYTES * lookup.dim
    return Cost(
        lookups=lookups,
        lookup_bytes=lookup_bytes,
        id_bytes=id_bytes,
        forward_bytes=vector_bytes,
        backward_bytes=vector_bytes,
    )
