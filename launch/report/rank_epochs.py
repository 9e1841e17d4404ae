"""What each rank did in each epoch, checked: a run folder's ranks.jsonl as the panels need it."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from windrow.comm.errors import StoreError
from windrow.launch.rank_cost import RankCost, communication_share
from windrow.launch.rank_record import RankRecord, read_rank_records

__all__ = [
    "RankEpochs",
    "cache_hit_rate",
    "home_share",
    "mean_traffic",
    "read_rank_epochs",
    "traffic_stages",
    "waiting_share",
    "waiting_stages",
]

RankEpochs = Mapping[int, Sequence[RankCost]]
"""Epoch -> what each rank did in it, by rank."""


def read_rank_epochs(path: Path) -> dict[int, tuple[RankCost, ...]]:
    """Read a ranks.jsonl.

    Args:
        path: the file; need not exist.

    Returns:
        Epoch -> its ranks. A last line that a killed process left unfinished is passed over.

    Raises:
        StoreError: another line is not such a record, or its numbers do not fit its ranks.
    """
    records = read_rank_records(path)
    for number, record in enumerate(records, start=1):
        try:
            _check(record)
        except (AttributeError, TypeError, ValueError) as error:
            raise StoreError(f"{path}, line {number}: {error}. Remove that line.") from error
    return {record.epoch: record.ranks for record in records}


def home_share(ranks: Iterable[RankCost]) -> float | None:
    """Share of the rows asked for that were found on the asking rank, among its own or in its cache.

    Args:
        ranks: whose rows are added up.

    Returns:
        From 0 to 1; None where no rows were asked for.
    """
    listed = list(ranks)
    home = sum(rank.rows_local + rank.rows_cached for rank in listed)
    everything = home + sum(rank.rows_remote for rank in listed)
    return home / everything if everything else None


def cache_hit_rate(ranks: Iterable[RankCost]) -> float | None:
    """Share of the rows of other ranks that the asking rank found in its cache.

    Args:
        ranks: whose rows are added up.

    Returns:
        Above 0, to 1; None where no row was found in a cache, as where there is none.
    """
    listed = list(ranks)
    cached = sum(rank.rows_cached for rank in listed)
    return cached / (cached + sum(rank.rows_remote for rank in listed)) if cached else None


def waiting_share(ranks: Iterable[RankCost]) -> float | None:
    """Share of the time of training that was spent waiting in collectives.

    Args:
        ranks: whose seconds are added up.

    Returns:
        From 0 on; None where it was not recorded, or no time passed.
    """
    listed = list(ranks)
    return communication_share(listed) if any(rank.waiting_seconds for rank in listed) else None


def waiting_stages(epochs: RankEpochs) -> list[str]:
    """Stages in which ranks waited, those with the most seconds first."""
    totals: dict[str, float] = {}
    for ranks in epochs.values():
        for rank in ranks:
            for stage, seconds in rank.waiting_seconds.items():
                totals[stage] = totals.get(stage, 0.0) + seconds
    return sorted(totals, key=lambda stage: -totals[stage])


def traffic_stages(epochs: RankEpochs) -> list[str]:
    """Stages in which bytes went from rank to rank, those with the most bytes first."""
    totals: dict[str, int] = {}
    for ranks in epochs.values():
        for rank in ranks:
            for stage, row in rank.bytes_sent.items():
                totals[stage] = totals.get(stage, 0) + sum(row)
    return sorted((stage for stage in totals if totals[stage]), key=lambda stage: -totals[stage])


def mean_traffic(epochs: RankEpochs, stages: Iterable[str]) -> list[list[float]]:
    """Bytes from rank to rank in an epoch, on average over the epochs.

    Args:
        epochs: at least one; those with another number of ranks than the last one are passed over.
        stages: which are added up.

    Returns:
        [from, to].
    """
    size = len(list(epochs.values())[-1])
    chosen = [ranks for ranks in epochs.values() if len(ranks) == size]
    wanted = list(stages)
    return [
        [
            statistics.fmean(
                sum(ranks[sender].bytes_sent.get(stage, no_bytes)[receiver] for stage in wanted)
                for ranks in chosen
            )
            for receiver in range(size)
        ]
        for sender in range(size)
        for no_bytes in [[0] * size]
    ]


def _check(record: RankRecord) -> None:
    if not record.ranks:
        raise ValueError("it names no ranks")
    for place, rank in enumerate(record.ranks):
        for stage, row in rank.bytes_sent.items():
            if len(row) != len(record.ranks):
                raise ValueError(
                    f"bytes_sent of rank {place} in {stage!r} has {len(row)} numbers for {len(record.ranks)} ranks"
                )
        if not isinstance(rank.host, str):
            raise TypeError(f"expected the name of a host for rank {place}, got {rank.host!r}")
        counts = [rank.rows_local, rank.rows_cached, rank.rows_remote, rank.bytes_reduced]
        memory = [rank.peak_memory_bytes, rank.peak_gpu_memory_bytes]
        seconds = [rank.seconds, *rank.stage_seconds.values(), *rank.waiting_seconds.values()]
        traffic = [number for row in rank.bytes_sent.values() for number in row]
        wrong = [value for value in (*counts, *memory, *seconds, *traffic) if not _is_amount(value)]
        if wrong:
            raise ValueError(f"expected numbers from 0 on for rank {place}, got {wrong[0]!r}")


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
