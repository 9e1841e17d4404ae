"""Which split each sample of a staged log is in, and the order that samples are put in.

[split] by = "time"               each split ends at a time; rows are sorted by time where the log is not
[deduplication] shard, cluster    rows are sorted by session instead: RecD's O1 and O2
"""

from windrow.recsys.splits import LogSplitOptions, parse_instant
from windrow.recsys.staged_log import StagedLog

__all__ = ["Cuts", "find_cuts", "sort_by_session", "split_code"]

Cuts = tuple[int, int] | None
"""Times at which validation and test begin; None where the split of each sample is known already."""


def find_cuts(staged: StagedLog, rows: int, split: LogSplitOptions, *, in_order: bool) -> Cuts:
    """Find out when validation and test begin.

    Args:
        staged: the log.
        rows: of it, at least one.
        split: how it is split.
        in_order: whether rows are in order of time.
    """
    if split.by != "time":
        return None
    if split.instants:
        first, second = (parse_instant(instant) for instant in split.instants)
        return first, second
    train, validation, test = split.fractions
    # One past the last time, where a split has no share and would begin behind the last row.
    end = staged.time_of_row(rows - 1, in_order=in_order) + 1
    bounds = (round(train * rows), round((train + validation) * rows))
    wanted = (validation + test > 0, test > 0)
    first, second = (
        staged.time_of_row(bound, in_order=in_order) if some and bound < rows else end
        for bound, some in zip(bounds, wanted, strict=True)
    )
    return first, second


def split_code(cuts: Cuts) -> str:
    """The code of a row's split, in SQL: what `windrow.recsys.write_splits` works out in NumPy.

    Args:
        cuts: from `find_cuts`.
    """
    return (
        "split"
        if cuts is None
        else f"CASE WHEN time < {cuts[0]} THEN 0 WHEN time < {cuts[1]} THEN 1 ELSE 2 END"
    )


def sort_by_session(
    staged: StagedLog, cuts: Cuts, *, shard: bool, cluster: bool, has_times: bool
) -> dict[int, tuple[int, ...]]:
    """Bring the samples of a session together.

    Args:
        staged: the log, whose rows are put in another order.
        cuts: from `find_cuts`.
        shard: keep them in one file (O1).
        cluster: keep them next to one another (O2), in order of time where there are times.
        has_times: whether the log has times.

    Returns:
        For each split the samples of its files, in their order; empty without `shard`.
    """
    # Shards are in the order that the log would have without them: that of time only where the split is by time.
    times = has_times if cluster else cuts is not None
    return staged.sort_by_session(split_code(cuts), shard=shard, cluster=cluster, times=times)
