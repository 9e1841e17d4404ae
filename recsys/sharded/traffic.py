"""What looking up a minibatch costs under a plan, in expectation: bytes on the wire and rows of tables read.

Of what an owner gets, the part of its own samples does not travel, so (ranks - 1) / ranks of it does. The messages are
those of `windrow.recsys.sharded.packing`; a vector takes 4 bytes for each column, and its gradient as much back.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from windrow.partition.tables.plan import Range
from windrow.recsys.sharded.layout import Layout
from windrow.recsys.sharded.packing import MessageFormat

__all__ = ["FeatureLoad", "LookupTraffic", "expected_traffic"]

HEADER_BYTES = 8
"""An int64 for each group and each request."""

LENGTH_BYTES = 4
"""An int32 on the wire."""

VALUE_BYTES = 4
"""A float32 on the wire: a weight of an id, or a number of a vector."""


@dataclass(frozen=True, slots=True)
class FeatureLoad:
    """What one rank's batch has of a feature.

    Attributes:
        rows: lists.
        ids: in all of them.
        one_each: whether every list has exactly one id, so that no lengths travel.
    """

    rows: float
    ids: float
    one_each: bool


@dataclass(frozen=True, slots=True)
class LookupTraffic:
    """What all ranks together send and look up in a step.

    Attributes:
        id_bytes: of ids, their weights, lengths and headers, from rank to rank.
        lookups: rows of tables that are read, on whichever rank.
        vector_bytes: of vectors on their way home from other ranks; their gradients take as much back.
    """

    id_bytes: float
    lookups: float
    vector_bytes: float

    def __add__(self, other: "LookupTraffic") -> "LookupTraffic":
        return LookupTraffic(
            self.id_bytes + other.id_bytes,
            self.lookups + other.lookups,
            self.vector_bytes + other.vector_bytes,
        )


def expected_traffic(
    layout: Layout,
    form: MessageFormat,
    loads: Mapping[str, FeatureLoad],
    id_share: Callable[[str, Range], float],
) -> LookupTraffic:
    """Add up what a step moves, where every rank's batch is alike.

    Args:
        layout: of one collection on all ranks.
        form: of its messages; lengths travel in pooled collections alone.
        loads: of every feature of the layout, for one rank.
        id_share: ``(feature, rows)``: share of the feature's ids that fall into a range of rows of its table.

    Returns:
        The sums over all ranks.
    """
    size = len(layout.owners)
    id_bytes = lookups = vector_bytes = 0.0
    for owner in layout.owners:
        counts, message = [], float(HEADER_BYTES * (layout.num_groups + len(owner.requests)))
        for request in owner.requests:
            feature = layout.features[request.feature]
            load = loads[feature]
            ids = load.ids if request.whole else load.ids * id_share(feature, request.rows)
            counts.append(ids)
            message += ids * (form.id_bytes + VALUE_BYTES * form.weighted)
            if form.with_lengths and not (request.whole and load.one_each):
                message += LENGTH_BYTES * load.rows
        # An owner's own samples stay at home; every other rank sends it as much.
        id_bytes += (size - 1) * message
        for lookup in owner.lookups:
            ids = counts[lookup.request]
            load = loads[layout.features[owner.requests[lookup.request].feature]]
            lookups += size * ids
            vectors = load.rows if form.with_lengths else ids
            vector_bytes += (size - 1) * vectors * VALUE_BYTES * lookup.dim
    for lookup in layout.replicated.lookups:
        feature = layout.features[layout.replicated.requests[lookup.request].feature]
        lookups += size * loads[feature].ids
    return LookupTraffic(id_bytes, lookups, vector_bytes)
