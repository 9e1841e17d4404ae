"""Which ranks look which rows of a table up, and which of them should hold what.

A log that is in the order of its users, say, has each rank read users of its own: rows of these are looked up by that
rank alone, as long as their ids are in that order, too. Planners know how often rows are looked up, not by whom; ranks
of a plan can be exchanged for one another, though.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from windrow.comm.links import Links
from windrow.partition.tables.plan import Plan, Range, TableSpec, specs_by_name

__all__ = ["RANGES", "local_share", "nearest_ranks", "shares_near"]

RANGES = 64
"""Equal ranges of a table's rows that lookups are counted in, rank by rank."""
ALIKE = 1.2
"""Links whose bytes take at most so much longer than those of others count as equal: measured ones differ a little."""
WORTHWHILE = 0.01
"""Of all numbers looked up: what must become local for ranks to be exchanged, more than chance would have it."""

Floats = npt.NDArray[np.float64]


def shares_near(spec: TableSpec, rows: Range) -> Floats:
    """What share of a table's lookups each rank makes of a range of rows: [ranks]; see `TableSpec.near`."""
    near = np.array(spec.near)
    ranges = near.shape[1]
    # Row r is in range r * ranges // rows; of few rows some ranges have none.
    edges = -(-np.arange(ranges + 1) * spec.rows // ranges)
    inside = np.clip(edges[1:], *rows) - np.clip(edges[:-1], *rows)
    share: Floats = near @ (inside / np.maximum(np.diff(edges), 1))
    return share


def local_share(plan: Plan, spec: TableSpec) -> float:
    """The share of a table's lookups that are of rows on the rank that makes them, where there are no listed copies."""
    found = sum(float(shares_near(spec, replica.rows).sum()) for replica in plan.replicas_of(spec.name))
    for shard in plan.shards_of(spec.name):
        columns = (shard.columns[1] - shard.columns[0]) / spec.dim
        found += columns * float(shares_near(spec, shard.rows)[shard.rank])
    return found


def nearest_ranks(plan: Plan, specs: Sequence[TableSpec], links: Links | None) -> Plan:
    """The plan with its ranks exchanged for one another, so that as much as can be is looked up where it is.

    Each rank gets all that another one would have had: loads and memory stay as they were planned, and on links that
    are alike the predicted step. The best such exchange is an assignment, by the numbers that are looked up (the
    Hungarian method; O(ranks^3)).

    Args:
        plan: of one group of ranks, or it stays as it is.
        specs: of its tables; those without `TableSpec.near`, or of which ranks have copies of rows, have no say.
        links: between the ranks; where they are not alike, it stays as it is as well.
    """
    from scipy.optimize import linear_sum_assignment

    copied = {rows.table for rows in plan.copies}
    named: Mapping[str, TableSpec] = {
        name: spec for name, spec in specs_by_name(specs).items() if spec.near and name not in copied
    }
    if not named or plan.replica_groups > 1 or (links is not None and not _are_alike(links)):
        return plan
    size = len(next(iter(named.values())).near)
    local, total = np.zeros((size, size)), 0.0
    for shard in plan.shards:
        if spec := named.get(shard.table):
            numbers = spec.lookups_per_sample * (shard.columns[1] - shard.columns[0])
            found = numbers * shares_near(spec, shard.rows)
            local[shard.rank] += found
            total += float(found.sum())
    planned, nearest = linear_sum_assignment(local, maximize=True)
    if local[planned, nearest].sum() - np.trace(local) <= WORTHWHILE * total:
        return plan
    return replace(plan, shards=tuple(replace(shard, rank=int(nearest[shard.rank])) for shard in plan.shards))


def _are_alike(links: Links) -> bool:
    """Whether all ranks are on one host, or on one each, and a byte takes as long between any two."""
    between = links.seconds_per_byte[~np.eye(links.size, dtype=bool)]
    hosts = len(set(links.hosts))
    return hosts in {1, links.size} and (not len(between) or between.max() <= ALIKE * between.min())
