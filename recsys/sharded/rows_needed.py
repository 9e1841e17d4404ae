"""Where the rows are that a minibatch names: on this rank or on others.

An id names one row in each shard of its table that holds it, so one row in every table that is not cut by columns.
A row that several ids name counts as often, since bags are looked up without a search for duplicates; a list that
several samples of a deduplicated group have counts once.
"""

from collections.abc import Sequence

from windrow.comm.meter import RowsFound
from windrow.recsys.sharded.layout import Layout, OwnerLayout
from windrow.recsys.sharded.message import Message
from windrow.recsys.sharded.samples import Samples

__all__ = ["rows_asked_for", "rows_of_whole_tables"]


def rows_asked_for(
    layout: Layout, samples: Sequence[Samples], messages: Sequence[Message], rank: int
) -> RowsFound:
    """Count the rows that the samples of one rank need.

    Args:
        layout: of the tables.
        samples: each group of this rank.
        messages: what it asks each owner for, itself included.
        rank: this rank.

    Cost:
        One addition for each lookup of each owner, whatever the number of ids.
    """
    asked = []
    for owner, message in zip(layout.owners, messages, strict=True):
        counts: list[int] = message.counts.tolist()
        asked.append(sum(counts[lookup.request] for lookup in owner.lookups))
    copies = rows_of_whole_tables(layout.replicated, samples)
    return RowsFound(local=asked[rank] + copies, remote=sum(asked) - asked[rank])


def rows_of_whole_tables(owner: OwnerLayout, samples: Sequence[Samples]) -> int:
    """Count the rows that samples need of an owner that holds no table in pieces.

    Args:
        owner: what it holds.
        samples: each group of one rank.
    """
    total = 0
    for lookup in owner.lookups:
        group = samples[owner.request_groups[lookup.request]]
        key = group.keys[owner.requests[lookup.request].feature]
        total += int(group.starts[key + 1] - group.starts[key])
    return total
