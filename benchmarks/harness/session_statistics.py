"""What the published figures say of a log: expected of options, and measured in any log of sessions.

A sample is compared with the one before it in its session:

    before   [4 9 1]      [4 9 1]        [4 9 1]          [4 9 1]
    now      [4 9 1]      [9 1 7]        [5 5]            first of its session: not counted
             unchanged    moved on:      neither
             3 of 3 ids   2 of 3 ids     0 of 2 ids
             repeated     repeated       repeated
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from windrow.comm.errors import DataError
from windrow.recsys.log.duckdb_sql import open_database, sql_name, sql_text
from windrow.recsys.log.synthetic.options import FeatureGroup, SessionFeature, SessionLogOptions
from windrow.recsys.log.synthetic.sessions import popularity

__all__ = ["PUBLISHED", "SessionLogStatistics", "expected_statistics", "measured_statistics"]

PUBLISHED_BATCH = 4096
"""Samples of the batches for which the paper says how many samples of a session they hold."""

PUBLISHED = {
    "samples_per_session": 16.5,
    "samples_per_session_in_batch": 1.15,
    "unchanged_share": 0.80,
    "unchanged_id_share": 0.816,
    "repeated_id_share": 0.894,
}
"""The published figures, under the names of `SessionLogStatistics`; see `windrow.recsys.log.synthetic.options`."""

MEMORY_LIMIT = "2GB"
"""What DuckDB may hold at a time; the rest goes to a temporary folder."""


@dataclass(frozen=True, kw_only=True)
class SessionLogStatistics:
    """How much of a log repeats."""

    samples_per_session: float
    """Mean."""
    samples_per_session_in_batch: float | None
    """Samples over distinct sessions in batches of 4,096 neighbours of the file; None without a whole batch, and where
    it was not worked out."""
    mean_length: dict[str, float]
    """Feature -> ids of a sample."""
    unchanged: dict[str, float]
    """Feature -> share of samples, but first ones of sessions, that have what the sample before has."""
    unchanged_share: float
    """Mean of `unchanged` over the features."""
    unchanged_id_share: float
    """Share of all ids, but those of first samples, that belong to such values."""
    repeated_id_share: float
    """The same, with all ids but the newest of lists that moved on by one."""


def expected_statistics(options: SessionLogOptions) -> SessionLogStatistics:
    """What a log of any size has, up to chance.

    Args:
        options: of the log.

    Returns:
        Means over all logs of these options; the figure about batches is left to `measured_statistics`.
    """
    lengths: dict[str, float] = {}
    unchanged: dict[str, float] = {}
    unchanged_ids: dict[str, float] = {}
    repeated_ids: dict[str, float] = {}
    for group in options.groups:
        mean = 1.0 if group.mean_length is None else group.mean_length
        for feature in group.features:
            again = _same_by_chance(group, feature)
            lengths[feature.name] = mean * (1 - group.empty)
            unchanged_ids[feature.name] = same = group.unchanged + (1 - group.unchanged) * again
            unchanged[feature.name] = group.empty + (1 - group.empty) * same
            repeated_ids[feature.name] = same + (1 - group.unchanged) * group.shifted * (1 - 1 / mean)
    total = sum(lengths.values())
    return SessionLogStatistics(
        samples_per_session=options.samples_per_session,
        samples_per_session_in_batch=None,
        mean_length=lengths,
        unchanged=unchanged,
        unchanged_share=float(np.mean(list(unchanged.values()))),
        unchanged_id_share=sum(lengths[name] * unchanged_ids[name] for name in lengths) / total,
        repeated_id_share=sum(lengths[name] * repeated_ids[name] for name in lengths) / total,
    )


def measured_statistics(
    path: Path, features: Sequence[str], *, session: str = "session", time: str = "time"
) -> SessionLogStatistics:
    """Measure a Parquet log, in any order, out of core.

    Args:
        path: one file.
        features: columns of ids or lists of ids.
        session: column of session ids.
        time: column that orders the samples of a session.

    Raises:
        DataError: no session has a second sample, so that there is nothing to compare.
    """
    with TemporaryDirectory() as folder, open_database(MEMORY_LIMIT, Path(folder)) as database:
        scan = f"read_parquet({sql_text(path)}, file_row_number = true)"
        samples, sessions = _row(database, f"SELECT count(*), count(DISTINCT {sql_name(session)}) FROM {scan}")
        if samples == sessions:
            raise DataError(f"{path}: every session has one sample, so that none can be compared with another")
        whole = samples // PUBLISHED_BATCH * PUBLISHED_BATCH
        (in_batches,) = _row(
            database,
            f"SELECT sum(sessions) FROM (SELECT count(DISTINCT {sql_name(session)}) AS sessions FROM {scan} "
            f"WHERE file_row_number < {whole} GROUP BY file_row_number // {PUBLISHED_BATCH})",
        )
        types = dict(database.execute(f"SELECT column_name, column_type FROM (DESCRIBE FROM {scan})").fetchall())
        counts = {}
        for feature in features:
            # A feature with one id counts as a list of it.
            ids = sql_name(feature) if types[feature].endswith("[]") else f"[{sql_name(feature)}]"
            counts[feature] = _row(database, _comparison(scan, ids, session, time))
    compared_ids = sum(count[2] for count in counts.values())
    unchanged = {feature: float(count[1]) for feature, count in counts.items()}
    return SessionLogStatistics(
        samples_per_session=samples / sessions,
        samples_per_session_in_batch=whole / in_batches if whole else None,
        mean_length={feature: float(count[0]) for feature, count in counts.items()},
        unchanged=unchanged,
        unchanged_share=float(np.mean(list(unchanged.values()))),
        unchanged_id_share=sum(count[3] for count in counts.values()) / compared_ids,
        repeated_id_share=sum(count[4] for count in counts.values()) / compared_ids,
    )


def _comparison(scan: str, ids: str, session: str, time: str) -> str:
    """A query for: mean length, share unchanged; ids compared, unchanged and repeated."""
    return (
        f"WITH samples AS (SELECT {sql_name(session)} AS session, {sql_name(time)} AS time, "
        f"{ids} AS now FROM {scan}), "
        "pairs AS (SELECT now, lag(now) OVER (PARTITION BY session ORDER BY time) AS before FROM samples) "
        "SELECT avg(len(now)), avg((now = before)::INT) FILTER (before IS NOT NULL), "
        "coalesce(sum(len(now)) FILTER (before IS NOT NULL), 0), "
        "coalesce(sum(len(now)) FILTER (now = before), 0), "
        "coalesce(sum(CASE WHEN now = before THEN len(now) WHEN len(now) = len(before) "
        "AND now[1:len(now) - 1] = before[2:len(now)] THEN len(now) - 1 ELSE 0 END) "
        "FILTER (before IS NOT NULL), 0) FROM pairs"
    )


def _same_by_chance(group: FeatureGroup, feature: SessionFeature) -> float:
    """Share of changes, of lists that are not empty, that give what was there before; longer lists hardly ever do."""
    twice = float((popularity(feature) ** 2).sum())
    if group.mean_length is None:
        return twice
    single = 1 / group.mean_length
    return twice * (group.shifted * single + (1 - group.shifted) * single**2)


def _row(database: Any, query: str) -> tuple[Any, ...]:
    row: tuple[Any, ...] = database.execute(query).fetchone()
    return row
